"""Micro-batches by number, drawn in worker processes, and the signals that end a run."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, Dataset

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.errors import MDiffError
from mdiff_core.models.config import ModelConfig
from mdiff_core.prompts import Codec
from mdiff_core.training.batch import Batch, Encoder
from mdiff_core.training.config import TrainConfig
from mdiff_core.training.data.sources import build_stream

logger = logging.getLogger(__name__)

PREFETCH = 4
"""Micro-batches that each worker keeps ready."""


class MicroBatches(Dataset[Batch]):
    """Micro-batch ``i`` of a run: samples ``i * micro_batch`` up to the next one's first.

    Args:
        config: Settings of the run.
        shapes: Of the network that is trained.
    """

    def __init__(self, config: TrainConfig, shapes: ModelConfig) -> None:
        run = config.run
        self._config, self._shapes, self._size = config, shapes, run.micro_batch
        base = resolve_checkpoint(config.model.base)
        codec = Codec.from_folder(base, image_token_id=shapes.image_token_id)
        self.stream = build_stream(
            config.data, shapes.capabilities, seed=run.seed, group=run.micro_batch
        )
        self._encoder = Encoder(shapes, codec, config.objective, run.seed)

    def __getitem__(self, index: int) -> Batch:
        first = index * self._size
        numbers = range(first, first + self._size)
        return self._encoder.batch([self._encoder.encode(self.stream[i], i) for i in numbers])

    def __reduce__(self) -> tuple[Any, ...]:
        # Templates and fonts do not travel to processes that are not forked; settings do.
        return (MicroBatches, (self._config, self._shapes))


def _start_worker(worker: int) -> None:
    """Make a worker give way to the training process, which alone decides when it ends."""
    # On few cores a worker that interrupts one thread of a product makes all others wait for it.
    if hasattr(os, "nice"):
        os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Drawn(Dataset[Batch | MDiffError]):
    """Micro-batches, or what is wrong with them.

    An error that is raised in a worker arrives as the text of its traceback; one that is returned
    arrives as it is.
    """

    def __init__(self, data: MicroBatches) -> None:
        self._data = data

    def __getitem__(self, index: int) -> Batch | MDiffError:
        try:
            return self._data[index]
        except MDiffError as error:
            return error


def _alone(drawn: list[Batch | MDiffError]) -> Batch | MDiffError:
    return drawn[0]


def _unbroken(drawn: Batch | MDiffError) -> Batch:
    if isinstance(drawn, MDiffError):
        raise drawn
    return drawn


def load_in_order(data: MicroBatches, order: Sequence[int], workers: int) -> Iterator[Batch]:
    """Return micro-batches in a given order.

    Args:
        data: The micro-batches.
        order: Their numbers.
        workers: Processes that draw them; 0 draws in this one.

    Returns:
        The micro-batches. What is wrong with one is raised when it is taken, in the same words
        with any number of workers.
    """
    loader: DataLoader[Batch | MDiffError] = DataLoader(
        _Drawn(data),
        sampler=order,
        batch_size=1,
        collate_fn=_alone,
        num_workers=workers,
        prefetch_factor=PREFETCH if workers else None,
        worker_init_fn=_start_worker,
    )
    # The workers start now and not with the first micro-batch that is taken.
    return map(_unbroken, iter(loader))


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a wish to stop after the step; the second one acts."""

    def handle(number: int, frame: FrameType | None) -> None:
        logger.warning("signal %d: the run ends after this step, saved", number)
        stop()
        restore()

    def restore() -> None:
        for name, old in previous.items():
            signal.signal(name, old)

    previous: dict[int, Any] = {}
    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            previous[name] = signal.signal(name, handle)
    except ValueError:
        # Not the main thread: signals are somebody else's.
        previous = {}
    try:
        yield
    finally:
        restore()
