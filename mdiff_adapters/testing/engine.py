"""An engine that follows a script: deterministic, without a model, for tests and examples."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from mdiff_adapters.engines.answers import failed, unsupported
from mdiff_adapters.engines.base import Answer, Capabilities, Request, Task
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError

Script = Callable[[Request], "str | Answer"]
"""Says what is answered to a request; an exception it raises becomes the answer's error."""

ONE_TEXT_REGION = "<|box_start|>050 050 950 950<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"
"""A layout answer: one upright text region on nearly the whole page."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request asked, without its pixels: task, image size in px, decode, origin."""

    task: Task
    size_px: tuple[int, int]
    threshold: float
    origin: dict[str, Any] = field(default_factory=dict)


def default_script(request: Request) -> str:
    """Answer a page with one text region that says which page it is."""
    if request.task == "layout":
        return ONE_TEXT_REGION
    if request.task == "table":
        return "<fcel>a<fcel>b<nl><fcel>1<fcel>2<nl>"
    if request.task == "formula":
        return "x^2"
    page = request.origin.get("page")
    return "Text" if page is None else f"Text of page {page + 1}"


class ScriptedEngine(SpecEngine):
    """An engine whose answers are written down.

    ``open_engine("scripted:")`` gives one with the default script, so that worker processes can
    build it too.

    Args:
        script: Says what is answered; by default :func:`default_script`.
        capabilities: What it claims to know; by default all tasks on regions.
        delay_s: Seconds each answer takes (it sleeps, as an engine on a device waits).
        name: Its name.

    Attributes:
        asked: What was asked so far, in order, without the images.
        num_calls: Calls of ``answer``.
    """

    def __init__(
        self,
        script: Script = default_script,
        *,
        capabilities: Capabilities | None = None,
        delay_s: float = 0.0,
        name: str = "scripted:",
    ) -> None:
        super().__init__(EngineSpec("scripted:", (("delay_s", delay_s),) if delay_s else ()))
        self._script = script
        self._capabilities = capabilities or Capabilities()
        self._delay_s = delay_s
        self._name = name
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.num_calls = 0

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Build the engine of ``scripted:``; its only option is ``delay_s``."""
        options: dict[str, Any] = dict(spec.options)
        unknown = set(options) - {"delay_s"}
        if spec.target or unknown:
            raise ConfigError(
                f"engine {spec} cannot be built", hint="write scripted: with option delay_s only"
            )
        return cls(name=spec.spec, **options)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it claims to know."""
        return self._capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in order, each before the next request is pulled.

        Raises:
            EngineError: If the engine is closed.
        """
        self._check_open()
        with self._lock:
            self.num_calls += 1
        return (self._answer(request) for request in requests)

    def _answer(self, request: Request) -> Answer:
        refusal = unsupported(request, self)
        if refusal is not None:
            return refusal
        with self._lock:
            self.asked.append(
                Asked(
                    request.task,
                    request.image.size,
                    request.decode.threshold,
                    dict(request.origin),
                )
            )
        if self._delay_s:
            time.sleep(self._delay_s)
        try:
            said = self._script(request)
        except Exception as error:  # noqa: BLE001  a script raises to play a failing engine
            return failed(request.id, error)
        if isinstance(said, Answer):
            return said
        return Answer(
            id=request.id,
            text=said,
            finish_reason="stop" if said else "empty",
            confidence=1.0,
            num_tokens=len(said),
            num_forwards=1,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._script is not default_script:
            raise TypeError("a ScriptedEngine with a script of its own cannot be pickled")
        return super().__reduce__()
