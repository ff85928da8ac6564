"""The engine contract: whatever answers (image, task) requests. Loads no torch.

One bad request is an answer with an error, never an exception for its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from typing_extensions import Self

from mdiff_adapters.document import FinishReason
from mdiff_core.config import Capabilities, DecodeConfig, Task

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Answer", "Capabilities", "DecodeConfig", "Engine", "Request", "Task"]

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to an engine.

    Attributes:
        id: Chosen by the caller, unique in one ``answer`` call; the answer carries it.
        image: RGB image, upright: a crop, a whole page, or a prepared piece of a line.
        task: ``layout``, ``text``, ``table`` or ``formula``.
        decode: Decoding settings.
        origin: Where the crop comes from; engines that only look at pixels ignore it. Keys in
            use: ``source`` (str), ``stem`` (file stem), ``page`` (0-based int), ``region`` (id),
            ``order`` (int, position of the region in the layout answer).
    """

    id: str
    image: Image.Image
    task: Task = "text"
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    origin: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine says to one request.

    Attributes:
        id: Id of the request.
        text: The answer as decoded, special tokens of the format included (layout records, OTSL).
            Halves of a surrogate pair are joined; one without its other half becomes U+FFFD.
        finish_reason: ``stop``, ``length``, ``loop``, ``empty``, ``error`` or ``timeout``.
        confidence: Mean confidence of the confirmed tokens in [0, 1]; None where unknown.
        num_tokens: Tokens confirmed.
        num_forwards: Forwards this request took part in; 0 where unknown.
        error: The error, with ``finish_reason`` ``error`` or ``timeout``.
    """

    id: str
    text: str = ""
    finish_reason: FinishReason = "stop"
    confidence: float | None = None
    num_tokens: int = 0
    num_forwards: int = 0
    error: Exception | None = None

    def __post_init__(self) -> None:
        # JSON can hold half a pair, which no UTF-8 encoder takes. Whatever engine the answer comes
        # from, it comes through here, and nobody behind has to expect one.
        if _SURROGATE.search(self.text):
            halves = self.text.encode("utf-16-le", "surrogatepass")
            object.__setattr__(self, "text", halves.decode("utf-16-le", "replace"))


@runtime_checkable
class Engine(Protocol):
    """Answers requests lazily, each as soon as it is ready. Thread-safe, a context manager."""

    @property
    def name(self) -> str:
        """The spec string it was built from."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can be asked."""
        ...

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in the order of completion."""
        ...

    def close(self) -> None:
        """Release model, cache and connections; further calls raise ``EngineError``."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
