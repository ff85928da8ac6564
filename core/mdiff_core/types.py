"""Requests and results of the engine. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mdiff_core.config import DecodeConfig, Task

if TYPE_CHECKING:
    from PIL import Image

FinishReason = Literal["stop", "length", "empty", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """One image and what to read in it.

    Attributes:
        image: PIL image of any mode, upright. For a checkpoint of unit ``segment`` a piece prepared
            by :mod:`mdiff_core.segments`.
        task: ``layout``, ``text``, ``table`` or ``formula``.
        config: How to decode.
    """

    image: Image.Image
    task: Task = "text"
    config: DecodeConfig = field(default_factory=DecodeConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """What was decoded for one request.

    Attributes:
        token_ids: Tokens up to the end token, without it; all of them with ``ignore_end``.
        step_map: For each token the 1-based denoising step, counted over the whole request, in
            which it was confirmed.
        text: The tokens as text, special tokens of the answer format included.
        finish_reason: ``stop`` (end token), ``length`` (limit reached), ``empty`` (an end token
            came first), ``error``.
        confidence: Mean confidence of ``token_ids`` in [0, 1]; None when there are none.
        num_forwards: Network forwards this request took part in.
        num_prompt_tokens: Length of the prompt, image tokens included.
        error: The error, with ``finish_reason`` ``error``.
    """

    token_ids: list[int] = field(default_factory=list)
    step_map: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "stop"
    confidence: float | None = None
    num_forwards: int = 0
    num_prompt_tokens: int = 0
    error: Exception | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the answer."""
        return len(self.token_ids)
