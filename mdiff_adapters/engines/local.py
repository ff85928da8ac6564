"""The engine in this process: the decoding core behind the contract of documents.

Knows no tensor; imports the core's engine, and with it torch, only when it is built.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from mdiff_adapters.engines.answers import failed, unsupported
from mdiff_adapters.engines.base import Answer, Capabilities, Request
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, EngineError
from mdiff_core.types import DecodeRequest

if TYPE_CHECKING:
    from mdiff_core import DecodeResult
    from mdiff_core import Engine as CoreEngine


class LocalEngine(SpecEngine):
    """Answers with a model in this process.

    Callers in several threads share the core's continuous batch: whoever waits runs the next
    forward for everybody. What a caller no longer wants (it closed its iterator) leaves the batch.

    Args:
        core: The decoding engine.
        spec: The spec it stands for; its name, and what it pickles as.
    """

    def __init__(self, core: CoreEngine, spec: EngineSpec | None = None) -> None:
        super().__init__(spec or EngineSpec("tiny"))
        self._core = core
        self._pid = os.getpid()

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Load the checkpoint of ``spec``; its options are those of ``mdiff_core.Engine.load``.

        Raises:
            ConfigError: If an option is unknown.
            CheckpointError: If the checkpoint is missing or cannot be used.
        """
        from mdiff_core import Engine as CoreEngine

        spec.check_options()
        options: dict[str, Any] = dict(spec.options)
        # The core reads the whole string: `modelscope:` tells it where to look.
        return cls(CoreEngine.load(spec.spec, **options), spec)

    @property
    def core(self) -> CoreEngine:
        """The decoding engine, for reports on device, dtype and cache."""
        return self._core

    @property
    def capabilities(self) -> Capabilities:
        """What its checkpoint was trained for."""
        return self._core.capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in the order of completion.

        Args:
            requests: Pulled in the calling thread, a bounded number ahead of the answers. An
                exception they raise reaches the caller.

        Returns:
            A lazy iterator; closing it drops what was not yet decoded.

        Raises:
            EngineError: If the engine is closed, or was built before a fork.
        """
        self._check_open()
        if self._pid != os.getpid():
            raise EngineError(
                "this engine belongs to the parent process",
                hint="pass the spec string to workers and call open_engine there",
                adapter=self.name,
            )
        return self._answer(requests)

    def _answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        feed = _Feed(requests, self)
        results = self._core.stream(feed.core_requests())
        lost: Exception = EngineError("the core ended without an answer", adapter=self.name)
        while True:
            try:
                index, result = next(results)
            except StopIteration:
                break
            except Exception as error:
                if feed.broken:
                    raise
                lost = error
                break
            yield from feed.take_refused()
            yield _to_answer(feed.running.pop(index), result)
        yield from feed.take_refused()
        # Whatever became of the core: each request it took is answered once.
        for request in feed.running.values():
            yield failed(request.id, lost)

    def close(self) -> None:
        """Release the model; who is waiting for answers gets errors."""
        if not self._closed:
            super().close()
            self._core.close()


class _Feed:
    """The requests of one call on their way to the core, which knows them by index.

    Attributes:
        running: What the core has taken and not yet answered.
        refused: Answers to what it was never given.
        broken: The caller's own iterable raised.
    """

    def __init__(self, requests: Iterable[Request], engine: LocalEngine) -> None:
        self._source = iter(requests)
        self._engine = engine
        self.running: dict[int, Request] = {}
        self.refused: deque[Answer] = deque()
        self.broken = False

    def core_requests(self) -> Iterator[DecodeRequest]:
        from mdiff_core.unmasking import get_rule

        index = 0
        while True:
            try:
                request = next(self._source, None)
            except BaseException:
                self.broken = True
                raise
            if request is None:
                return
            refusal = unsupported(request, self._engine)
            if refusal is None:
                try:
                    get_rule(request.decode.rule)  # the core would stop the whole stream
                except ConfigError as error:
                    refusal = failed(request.id, error)
            if refusal is not None:
                self.refused.append(refusal)
                continue
            self.running[index] = request
            index += 1
            yield DecodeRequest(image=request.image, task=request.task, config=request.decode)

    def take_refused(self) -> Iterator[Answer]:
        while self.refused:
            yield self.refused.popleft()


def _to_answer(request: Request, result: DecodeResult) -> Answer:
    return Answer(
        id=request.id,
        text=result.text,
        finish_reason=result.finish_reason,
        confidence=result.confidence,
        num_tokens=result.num_tokens,
        num_forwards=result.num_forwards,
        error=result.error,
    )
