"""Validation: the weights that would be exported read samples the training does not see."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mdiff_core.cache import KVCache
from mdiff_core.config import DecodeConfig
from mdiff_core.engine import Engine
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.prompts import Codec
from mdiff_core.training.data.sample import Sample
from mdiff_core.training.metrics import character_error, normalize_spaces
from mdiff_core.types import DecodeRequest

CACHE_TOKENS = 2**15
"""Enough for eight layout requests; the rest of the memory is the training's."""


@dataclass(frozen=True, slots=True)
class Validation:
    """How well samples are read.

    Attributes:
        character_error: Characters wrong / characters.
        exact: Share of samples without an error.
        tokens_per_forward: Answer tokens and end tokens by forwards a request took part in.
        seconds: Time of decoding.
    """

    character_error: float
    exact: float
    tokens_per_forward: float
    seconds: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values, for the log."""
        return asdict(self)


def validate(
    model: MinerUDiffusion,
    codec: Codec,
    samples: Sequence[Sample],
    *,
    threshold: float,
    block_length: int,
) -> Validation:
    """Decode samples and compare.

    Args:
        model: A plain network, used up: its linear layers may be repacked.
        codec: Its codec.
        samples: What is read.
        threshold: Confidence threshold.
        block_length: Tokens denoised together.

    Returns:
        The measures.
    """
    decode = DecodeConfig(threshold=threshold, block_length=block_length)
    started = time.perf_counter()
    cache = KVCache.bytes_per_token(model.config.text, model.dtype) * CACHE_TOKENS
    with Engine(model, codec, cache_bytes=cache) as engine:
        results = engine.generate(
            DecodeRequest(image=s.image, task=s.task, config=decode) for s in samples
        )
    seconds = time.perf_counter() - started
    pairs = [(result.text, sample.text) for result, sample in zip(results, samples, strict=True)]
    exact = sum(normalize_spaces(answer) == normalize_spaces(truth) for answer, truth in pairs)
    forwards = sum(result.num_forwards for result in results)
    # An end token is a token that was decoded.
    tokens = sum(result.num_tokens + (result.finish_reason != "length") for result in results)
    return Validation(
        character_error=character_error(pairs),
        exact=exact / len(pairs),
        tokens_per_forward=tokens / forwards if forwards else 0.0,
        seconds=seconds,
    )
