"""Crops read and compared: text lines, regions, tables, formulas, whole layouts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Engine, Request
from mdiff_adapters.evaluation.metrics import (
    character_error,
    edit_similarity,
    formula_match,
    page_iou,
    teds,
    teds_structure,
    word_error,
)
from mdiff_adapters.text import strip_special_tokens, unify_scripts
from mdiff_core.config import TASKS, Task
from mdiff_core.protocol import LAYOUT_SIZE_PX
from mdiff_core.segments import prepare_line

__all__ = ["Crop", "Reading", "Score", "load_crops", "read_crops", "score"]

_FINISHED = ("stop", "empty")


@dataclass(frozen=True, slots=True)
class Crop:
    """An upright crop (or page, for the layout task) and its true answer."""

    name: str
    image: Image.Image
    truth: str
    task: Task = "text"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine answered about a crop.

    Attributes:
        crop: The crop.
        answer: The answer, pieces of a line joined.
        tokens: Tokens decoded, end tokens included.
        forwards: Forwards its requests took part in.
        errors: Requests of it that failed.
    """

    crop: Crop
    answer: str
    tokens: int
    forwards: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well and how fast crops were read.

    Attributes:
        num_crops: Crops read.
        num_errors: Requests that failed.
        metrics: By name; those of tasks that did not occur are left out.
        tokens: Tokens decoded, end tokens included.
        forwards: Forwards, summed over requests.
        seconds: Wall time of reading.
    """

    num_crops: int
    num_errors: int
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that a request confirms in a forward, on average."""
        return self.tokens / self.forwards if self.forwards else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values with the speeds."""
        seconds = max(self.seconds, 1e-9)
        return {
            "num_crops": self.num_crops,
            "num_errors": self.num_errors,
            **self.metrics,
            "tokens_per_forward": self.tokens_per_forward,
            "tokens_per_s": self.tokens / seconds,
            "crops_per_s": self.num_crops / seconds,
            "seconds": self.seconds,
        }


def load_crops(folder: Path, *, tasks: Sequence[Task] = TASKS, every: int = 1) -> Iterator[Crop]:
    """Yield the labelled crops of a folder.

    Args:
        folder: With ``labels.jsonl`` or ``lines.json``; see
            :mod:`mdiff_core.training.data.folder`.
        tasks: Tasks the engine can be asked; crops of others are left out.
        every: Take every n-th record of what is left.

    Yields:
        Crops, opened one by one.

    Raises:
        ConfigError: If the folder has no readable labels.
        ImageError: If an image is broken.
    """
    from mdiff_core.training.data.folder import load_record, read_labels

    records = [record for record in read_labels(folder) if record.task in tasks]
    for record in records[::every]:
        image = load_record(record)
        if record.task == "layout":
            image = image.resize((LAYOUT_SIZE_PX, LAYOUT_SIZE_PX), Image.Resampling.BICUBIC)
        yield Crop(record.image.name, image, record.text, record.task)


def read_crops(engine: Engine, crops: Iterable[Crop], decode: DecodeConfig) -> Iterator[Reading]:
    """Read crops as one stream of requests.

    For an engine of unit ``segment`` each text crop is taken as one line and cut into its pieces.

    Args:
        engine: The engine.
        crops: Taken as they are needed.
        decode: Decoding settings.

    Yields:
        Readings, in the order of the crops.
    """
    unit = engine.capabilities
    waiting: dict[int, tuple[Crop, list[bool], dict[int, Answer]]] = {}

    def requests() -> Iterator[Request]:
        for number, crop in enumerate(crops):
            images, gaps = _prepare(crop, unit)
            waiting[number] = (crop, gaps, {})
            for piece, image in enumerate(images):
                yield Request(id=f"{number}.{piece}", image=image, task=crop.task, decode=decode)

    upcoming = 0
    for answer in engine.answer(requests()):
        number, piece = map(int, answer.id.split("."))
        waiting[number][2][piece] = answer
        while upcoming in waiting and len(waiting[upcoming][2]) == len(waiting[upcoming][1]):
            yield _join(*waiting.pop(upcoming), unit)
            upcoming += 1
    for number in sorted(waiting):
        # A crop without ink at the end asks nothing and is read as nothing.
        yield _join(*waiting[number], unit)


def _prepare(crop: Crop, unit: Capabilities) -> tuple[list[Image.Image], list[bool]]:
    if unit.segment_px is None or crop.task != "text":
        return [crop.image], [False]
    pieces = prepare_line(np.asarray(crop.image.convert("L")), unit)
    return [image for image, _ in pieces], [gap for _, gap in pieces]


def _join(
    crop: Crop, gaps: Sequence[bool], answers: dict[int, Answer], unit: Capabilities
) -> Reading:
    text = ""
    for piece, gap in enumerate(gaps):
        part = answers[piece].text.strip()
        text += (" " if gap and text and part else "") + part
    if crop.task not in ("layout", "table"):
        text = strip_special_tokens(text).text
    if crop.task == "text" and unit.segment_px is not None:
        text = unify_scripts(text)  # as the segmenter that cuts lines does
    found = list(answers.values())
    return Reading(
        crop=crop,
        answer=text,
        tokens=sum(a.num_tokens + (a.finish_reason in _FINISHED) for a in found),
        forwards=sum(a.num_forwards for a in found),
        errors=sum(a.error is not None for a in found),
    )


def score(readings: Iterable[Reading]) -> Score:
    """Compare readings with their truths, and measure the time it takes to get them.

    Args:
        readings: Usually straight from :func:`read_crops`: the clock runs while they come.

    Returns:
        The score. Text: ``character_error``, ``word_error``, ``exact``. Table: ``teds``,
        ``teds_s``. Formula: ``formula_match``. Layout: ``page_iou``. All means over crops but the
        two error rates, which are over all characters and words.
    """
    started = time.perf_counter()
    done = list(readings)
    seconds = time.perf_counter() - started
    by_task: dict[Task, list[Reading]] = {}
    for reading in done:
        by_task.setdefault(reading.crop.task, []).append(reading)
    metrics: dict[str, float] = {}
    if texts := by_task.get("text"):
        pairs = [(r.answer, r.crop.truth) for r in texts]
        metrics["character_error"] = character_error(pairs)
        metrics["word_error"] = word_error(pairs)
        metrics["edit_similarity"] = _mean([edit_similarity(*pair) for pair in pairs])
        metrics["exact"] = _mean([float(a.split() == t.split()) for a, t in pairs])
    if tables := by_task.get("table"):
        metrics["teds"] = _mean([teds(r.answer, r.crop.truth) for r in tables])
        metrics["teds_s"] = _mean([teds_structure(r.answer, r.crop.truth) for r in tables])
    if formulas := by_task.get("formula"):
        metrics["formula_match"] = _mean([formula_match(r.answer, r.crop.truth) for r in formulas])
    if layouts := by_task.get("layout"):
        metrics["page_iou"] = _mean([page_iou(r.answer, r.crop.truth) for r in layouts])
    return Score(
        num_crops=len(done),
        num_errors=sum(r.errors for r in done),
        metrics=metrics,
        tokens=sum(r.tokens for r in done),
        forwards=sum(r.forwards for r in done),
        seconds=seconds,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
