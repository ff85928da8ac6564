"""What a training sample is, and what gives samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from mdiff_core.config import Task

Boxes = npt.NDArray[np.float32]
Gray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One image and the answer a model should give.

    Attributes:
        image: As a request would carry it: a prepared piece for a checkpoint of unit ``segment``,
            else an upright crop or page.
        text: The answer, without an end token.
        task: What is asked.
        boxes: (characters of ``text``, 4) x0, y0, x1, y1 in px of ``image``, where the characters
            are drawn; None where that is not known.
        consistency: Agreement C in [0, 1] of stochastic runs on it; None where none were made.
        origin: Where it comes from, enough to make or find it again.
    """

    image: Image.Image
    text: str
    task: Task = "text"
    boxes: Boxes | None = None
    consistency: float | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)


class SampleSource(Protocol):
    """Gives the same sample for the same seed and index, in any process."""

    name: str

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        ...


@lru_cache(maxsize=8)
def epoch_order(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    """Return the order in which ``size`` samples come in an epoch."""
    return generator(seed, epoch).permutation(size)


def to_gray(values: npt.ArrayLike) -> Gray:
    """Return values rounded and clipped to grey levels."""
    gray: Gray = np.clip(np.rint(np.asarray(values)), 0, 255).astype(np.uint8)
    return gray


def generator(*key: int) -> np.random.Generator:
    """Return the random stream of a key; streams of different keys are independent."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
