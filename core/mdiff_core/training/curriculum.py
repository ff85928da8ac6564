"""The second stage's samples: those on which a model, asked several times, does not agree.

Source: MinerU-Diffusion (arXiv 2603.22458), section on the two-stage curriculum. For each sample, T
stochastic runs give answers y_1 .. y_T; its consistency is C = 2 / (T (T - 1)) * sum over pairs of
S(y_i, y_j), S the similarity of the task. Samples with C below tau are hard: they are labelled
anew, from the renderer's truth or by a person, and trained on with weight 1 + beta (1 - C),
together with a random part of the first stage's data.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mdiff_core.config import DecodeConfig, Task
from mdiff_core.engine import Engine
from mdiff_core.training.config import MineConfig, TrainConfig
from mdiff_core.training.data.sample import Sample
from mdiff_core.training.data.sources import build_source
from mdiff_core.training.metrics import edit_similarity
from mdiff_core.types import DecodeRequest

__all__ = ["MinedRecord", "Similarity", "consistency", "mine", "sample_answers"]

logger = logging.getLogger(__name__)

Similarity = Callable[[str, str], float]
"""``similarity(a, b)`` of two answers in [0, 1]; 1 for equal ones."""


def consistency(answers: Iterable[str], similarity: Similarity) -> float:
    """Return the mean similarity of all pairs of answers.

    Args:
        answers: At least two.
        similarity: Symmetric.

    Returns:
        C in [0, 1].

    Raises:
        ValueError: If there are fewer than two answers.
    """
    pairs = list(combinations(answers, 2))
    if not pairs:
        raise ValueError("consistency needs at least two answers")
    return sum(similarity(a, b) for a, b in pairs) / len(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedRecord:
    """One sample that was looked at.

    Attributes:
        task: Its task.
        consistency: C of its runs.
        answers: What the runs answered.
        text: The label for the second stage: the truth where it is known, else the answer closest
            to the others, to be corrected by a person.
        status: ``truth``, ``reviewed``, or ``open`` (not checked: not trained on).
        source: Kind and options of its source.
        seed: Seed of its stream.
        index: Its index there.
        origin: Where its picture comes from, for the person.
    """

    task: Task
    consistency: float
    answers: tuple[str, ...]
    text: str
    status: str
    source: Mapping[str, Any]
    seed: int
    index: int
    origin: Mapping[str, Any]

    def to_json(self) -> str:
        """Return one line of JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(values, ensure_ascii=False, default=str)


def sample_answers(
    engine: Engine, samples: Iterable[Sample], settings: MineConfig, *, block_length: int
) -> Iterator[tuple[int, Sample, list[str]]]:
    """Ask an engine several times about each sample, each time with another seed.

    Args:
        engine: The model after the first stage.
        samples: What it is asked about; taken as they are needed.
        settings: Runs, temperature, threshold and seed.
        block_length: Tokens denoised together.

    Yields:
        (number of the sample, the sample, its answers), in the order of completion. Samples whose
        decoding failed are left out.
    """
    # Each sample and run has a seed of its own, within the range that a request takes.
    first_seed = settings.seed * 1_000_003
    waiting: dict[int, Sample] = {}
    answers: dict[int, list[str]] = {}

    def requests() -> Iterator[DecodeRequest]:
        for number, sample in enumerate(samples):
            waiting[number], answers[number] = sample, []
            for run in range(settings.runs):
                yield DecodeRequest(
                    image=sample.image,
                    task=sample.task,
                    config=DecodeConfig(
                        temperature=settings.temperature,
                        threshold=settings.threshold,
                        block_length=block_length,
                        seed=(first_seed + number * settings.runs + run) % 2**63,
                    ),
                )

    failed: set[int] = set()
    for index, result in engine.stream(requests()):
        number = index // settings.runs
        answers[number].append(result.text)
        if result.error is not None:
            logger.warning("sample %d is left out: %s", number, result.error)
            failed.add(number)
        if len(answers[number]) == settings.runs:
            found, sample = answers.pop(number), waiting.pop(number)
            if number not in failed:
                yield number, sample, found


def mine(
    config: TrainConfig,
    engine: Engine,
    *,
    similarities: Mapping[Task, Similarity] | None = None,
    labelled: bool = True,
    on_looked_at: Callable[[], None] | None = None,
) -> Iterator[MinedRecord]:
    """Look for hard samples in the data of a run.

    Args:
        config: Settings of the run; ``config.mine`` says how many samples and how.
        engine: The model after the first stage.
        similarities: S by task; tasks without one take the normalised edit similarity.
            ``mdiff_adapters.evaluation.SIMILARITIES`` has those of the paper.
        labelled: Whether the data's own texts are the truth (drawn data, checked labels). If not,
            the records come out open, with the model's answer as a proposal.
        on_looked_at: Called for each sample that was looked at, hard or not.

    Yields:
        The hard samples, as they are found.
    """
    settings = config.mine
    # What was mined before is known to be hard.
    sources = [s for s in settings.data or config.data if s.kind != "mined"]
    known = similarities or {}
    total = sum(source.weight for source in sources)
    for source in sources:
        drawn = build_source(source.kind, source.options, engine.capabilities)
        size = len(drawn) if isinstance(drawn, Sized) else None
        count = max(1, round(settings.samples * source.weight / total))
        count = count if size is None else min(count, size)
        about = {"kind": source.kind, "options": dict(source.options)}
        pictures = (drawn.sample(settings.seed, index) for index in range(count))
        found = sample_answers(
            engine, pictures, settings, block_length=config.objective.block_length
        )
        for index, sample, answers in found:
            if on_looked_at is not None:
                on_looked_at()
            similarity = known.get(sample.task, edit_similarity)
            agreement = consistency(answers, similarity)
            if agreement < settings.tau:
                yield MinedRecord(
                    task=sample.task,
                    consistency=agreement,
                    answers=tuple(answers),
                    text=sample.text if labelled else central_answer(answers, similarity),
                    status="truth" if labelled else "open",
                    source=about,
                    seed=settings.seed,
                    index=index,
                    origin=sample.origin,
                )


def central_answer(answers: list[str], similarity: Similarity) -> str:
    """Return the answer that is most like the others; the first of several."""
    scores = [sum(similarity(answer, other) for other in answers) for answer in answers]
    return answers[scores.index(max(scores))]
