"""The engine in this process: one worker thread owns the model and batches all callers together.

Knows no document and no tensor; imports the decoding core, and with it torch, when it is built.
"""

from __future__ import annotations

import inspect
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from typing_extensions import Self

from mdiff_adapters.engines.answers import failed, unsupported
from mdiff_adapters.engines.base import Answer, Capabilities, Request
from mdiff_adapters.engines.registry import open_engine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, DecodeError, EngineError
from mdiff_core.config import suggest

MAX_IN_FLIGHT = 256
"""Requests one call may have in the engine at a time: enough to fill a batch, bounded in memory."""


@dataclass(slots=True, eq=False)
class _Call:
    """One ``answer`` call: where its answers go, and whether somebody still wants them."""

    answers: queue.SimpleQueue[Answer] = field(default_factory=queue.SimpleQueue)
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    request: Request
    call: _Call

    def fail(self, error: Exception) -> None:
        self.call.answers.put(failed(self.request.id, error))


class LocalEngine:
    """Answers with a model in this process.

    All callers share the model: their requests meet in one queue, and the worker thread feeds them
    to a single stream of the core, where a request joins the running batch as soon as a row is
    free. What a caller no longer wants (it closed its iterator) is not decoded.

    Args:
        core: The decoding engine of ``mdiff_core``, or an object with its ``stream``,
            ``capabilities`` and (optional) ``close``.
        spec: The spec it stands for; its name, and what it pickles as.
        make_request: Builds the core's request from keywords ``image``, ``task`` and ``config``;
            the core's own ``DecodeRequest`` by default.
    """

    def __init__(
        self,
        core: Any,
        spec: EngineSpec | None = None,
        *,
        make_request: Callable[..., Any] | None = None,
    ) -> None:
        if make_request is None:
            from mdiff_core.types import DecodeRequest

            make_request = DecodeRequest
        self._core = core
        self._spec = spec or EngineSpec("tiny")
        self._make_request = make_request
        self._capabilities: Capabilities = core.capabilities
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        # A daemon: an engine that nobody closed must not keep the interpreter from ending.
        self._worker = threading.Thread(target=self._work, name="mdiff-engine", daemon=True)
        self._worker.start()

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Load the checkpoint of ``spec``; its options are those of ``mdiff_core.Engine.load``.

        Raises:
            ConfigError: If an option is unknown.
            CheckpointError: If the checkpoint is missing or cannot be used.
        """
        from mdiff_core import Engine

        known = list(inspect.signature(Engine.load).parameters)[1:]
        for name, _ in spec.options:
            if name not in known:
                raise ConfigError(f"a checkpoint has no option {name!r}", hint=suggest(name, known))
        return cls(Engine.load(spec.target, **dict(spec.options)), spec)

    @property
    def name(self) -> str:
        """The spec string it was built from."""
        return self._spec.spec

    @property
    def capabilities(self) -> Capabilities:
        """What its checkpoint was trained for."""
        return self._capabilities

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in the order of completion.

        Args:
            requests: Pulled in the calling thread, at most :data:`MAX_IN_FLIGHT` ahead.

        Returns:
            A lazy iterator; closing it drops what was not yet decoded.

        Raises:
            EngineError: If the engine is closed, or was built before a fork.
        """
        self._check_open()
        return self._answer(requests)

    def _answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        call = _Call()
        waiting = 0
        source = iter(requests)
        try:
            while True:
                while waiting < MAX_IN_FLIGHT and (request := next(source, None)) is not None:
                    refusal = unsupported(request, self)
                    if refusal is not None:
                        yield refusal
                        continue
                    self._submit(_Job(request, call))
                    waiting += 1
                    # The caller's iterable may be slow (it renders pages): hand out what is ready.
                    while not call.answers.empty():
                        waiting -= 1
                        yield call.answers.get()
                if not waiting:
                    return
                waiting -= 1
                yield call.answers.get()
        finally:
            call.abandoned = True

    def _submit(self, job: _Job) -> None:
        with self._gate:
            if not self._closed:
                self._jobs.put(job)
                return
        job.fail(EngineError("the engine was closed", adapter=self.name))

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(
                "the engine is closed", hint="open_engine builds a new one", adapter=self.name
            )
        if self._pid != os.getpid():
            raise EngineError(
                "this engine belongs to the parent process",
                hint="pass the spec string to workers and call open_engine there",
                adapter=self.name,
            )

    # -- the worker thread -------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)
        while not self._jobs.empty():
            left = self._jobs.get()
            if left is not None:
                left.fail(EngineError("the engine was closed", adapter=self.name))

    def _run(self, first: _Job) -> None:
        """Decode ``first`` and whatever arrives while the core still asks for more."""
        running: dict[int, _Job] = {}
        try:
            for index, result in self._core.stream(self._feed(first, running)):
                job = running.pop(index)
                job.call.answers.put(self._to_answer(job.request, result))
        except Exception as error:  # noqa: BLE001  a failing core is an answer, not a dead worker
            for job in running.values():
                job.fail(error)

    def _feed(self, first: _Job, running: dict[int, _Job]) -> Iterator[Any]:
        index = 0
        job: _Job | None = first
        while job is not None:
            if not job.call.abandoned:
                try:
                    core_request = self._make_request(
                        image=job.request.image, task=job.request.task, config=job.request.decode
                    )
                except Exception as error:  # noqa: BLE001  one bad request must not reach the batch
                    job.fail(error)
                else:
                    running[index] = job
                    index += 1
                    yield core_request
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is None:  # closing: let the loop of the worker see it too
                self._jobs.put(None)
                return

    def _to_answer(self, request: Request, result: Any) -> Answer:
        error = result.error
        if error is not None and not isinstance(error, Exception):
            error = DecodeError(str(error), adapter=self.name)
        return Answer(
            id=request.id,
            text=result.text,
            finish_reason="error" if error is not None else result.finish_reason,
            confidence=result.confidence,
            num_tokens=result.num_tokens,
            num_forwards=result.num_forwards,
            error=error,
        )

    def close(self) -> None:
        """End the worker after what it is decoding, and release the model."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        if self._pid == os.getpid():
            self._worker.join()
        release = getattr(self._core, "close", None)
        self._core = None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A model does not travel to another process; what it was built from does.
        return (open_engine, (self._spec,))
