"""The steady state of decoding as one replayed CUDA graph: forward, head and rule together.

Denoising blocks and commits of finished blocks have one shape, so a step over R rows and at most S
keys is captured once per bucket and replayed afterwards; its inputs are one copy to the device and
its outcome one copy back. Prompts, sampling and the rarer rules run eagerly.

Without capture the same static step runs on any device: that is how it is tested on a CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdiff_core.attention import grouped_attention
from mdiff_core.cache import KVCache
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.runner import Outcome, Runner
from mdiff_core.sampling import greedy
from mdiff_core.scheduler import Span
from mdiff_core.unmasking import StepState, dynamic

logger = logging.getLogger(__name__)

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
KEY_BUCKETS = (128, 256, 512, 1024, 2048, 4096)
NEVER = 2.0
"""A threshold no probability passes: the static rule as a case of the dynamic one."""


def bucket(size: int, buckets: tuple[int, ...]) -> int | None:
    """Return the smallest bucket that holds ``size``, or None."""
    return next((b for b in buckets if b >= size), None)


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    length: int
    keys: int

    @property
    def num_ints(self) -> int:
        # ids, write slots and masked flags a position; key table, start, keys seen, minimum a row.
        return self.rows * (3 * self.length + self.keys + 3)


class _StaticStep:
    """One bucket: static buffers and, with capture, the graph over them."""

    def __init__(self, shape: _Shape, model: MinerUDiffusion, cache: KVCache) -> None:
        device = model.device
        pin = device.type == "cuda"
        self.shape, self._model, self._cache = shape, model, cache
        self.host_ints = torch.zeros(shape.num_ints, dtype=torch.int64, pin_memory=pin)
        self.host_floats = torch.zeros(shape.rows, dtype=torch.float32, pin_memory=pin)
        self._ints = torch.zeros(shape.num_ints, dtype=torch.int64, device=device)
        self._floats = torch.zeros(shape.rows, dtype=torch.float32, device=device)
        self._ones = torch.ones(shape.rows, 1, device=device)
        self._key_ids = torch.arange(shape.keys, device=device)
        self._offsets = torch.arange(shape.length, device=device)
        self._replay: Callable[[], Tensor] | None = None

    def capture(self, pool: Any) -> Any:
        """Record the step as a CUDA graph.

        Args:
            pool: Memory pool of the graphs before, or None for a new one. They can share it: they
                run one after the other, and an outcome is on the host before the next one runs.

        Returns:
            The pool.
        """
        device = self._model.device
        # Streams and graphs belong to the current device, which need not be the model's.
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no annotation
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.warm_up()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                out = self._step()

        def replay() -> Tensor:
            with torch.cuda.device(device):
                graph.replay()
            return out

        self._replay = replay
        return graph.pool()

    def warm_up(self) -> None:
        """Run the step three times on what the host buffers hold, as capture demands.

        It writes keys and values like any step, so without its inputs it would write over the
        cache of others.
        """
        self._load()
        for _ in range(3):
            self._step()

    def __call__(self) -> Tensor:
        """Run on what the host buffers hold; returns (3, R, L) fp32 on the host."""
        self._load()
        return (self._replay or self._step)().cpu()

    def _load(self) -> None:
        self._ints.copy_(self.host_ints, non_blocking=True)
        self._floats.copy_(self.host_floats, non_blocking=True)

    def split(self, ints: Tensor) -> tuple[Tensor, ...]:
        """Return views of an int buffer: ids, slots, masked (R, L), table (R, S), three (R,)."""
        rows, length, keys = self.shape.rows, self.shape.length, self.shape.keys
        sizes = [rows * length] * 3 + [rows * keys] + [rows] * 3
        parts = torch.split(ints, sizes)
        grids = [part.view(rows, -1) for part in parts[:4]]
        return (*grids, *parts[4:])

    def _step(self) -> Tensor:
        shape, decoder = self.shape, self._model.decoder
        ids, slots, masked, table, start, seen, required = self.split(self._ints)
        write, read = slots.reshape(-1), table.reshape(-1)
        visible = (self._key_ids < seen[:, None])[:, None].expand(-1, shape.length, -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._cache.keys[layer], self._cache.values[layer]
            keys.index_copy_(0, write, k)
            values.index_copy_(0, write, v)
            cached = [x.index_select(0, read).view(shape.rows, shape.keys, *k.shape[1:])
                      for x in (keys, values)]  # fmt: skip
            queries = q.view(shape.rows, shape.length, *q.shape[1:])
            return grouped_attention(queries, cached[0], cached[1], visible).flatten(0, 1)

        positions = (start[:, None] + self._offsets).reshape(-1)
        hidden = decoder(decoder.embed_tokens(ids.reshape(-1)), positions, attend)
        tokens, confidence = greedy(decoder.lm_head(hidden), self._model.config.mask_token_id)
        grid = confidence.view(shape.rows, shape.length)
        chosen = dynamic(
            StepState(
                confidence=grid,
                entropy=None,
                masked=masked > 0,
                num_required=required[:, None],
                threshold=self._floats[:, None],
                factor=self._ones,
                entropy_bound=self._ones,
            )
        )
        # Token ids are exact in fp32 up to 2^24.
        return torch.stack([tokens.view_as(grid).float(), grid, chosen.float()])


class GraphedRunner:
    """A :class:`~mdiff_core.runner.Runner` that replays graphs where the work allows it.

    Args:
        runner: The eager runner for everything else.
        trash_slot: A cache slot that belongs to nobody; padding rows write there.
        capture: Capture CUDA graphs; without, the static step runs eagerly.
    """

    def __init__(self, runner: Runner, *, trash_slot: int, capture: bool) -> None:
        self._runner, self._trash, self._capture = runner, trash_slot, capture
        self._steps: dict[_Shape, _StaticStep] = {}
        self._pool: Any = None
        self.num_replays = 0
        self.encode = runner.encode

    @property
    def num_head_rows(self) -> int:
        """Rows the head ran on outside graphs."""
        return self._runner.num_head_rows

    def run(self, spans: list[Span]) -> list[Outcome]:
        """Run one forward, see :meth:`mdiff_core.runner.Runner.run`."""
        shape = self._shape(spans)
        if shape is None:
            return self._runner.run(spans)
        with torch.inference_mode():
            step = self._steps.get(shape)
            if step is None:
                step = _StaticStep(shape, self._runner.model, self._runner.cache)
                if self._capture:
                    logger.debug("capturing a graph of %s", shape)
                    self._fill(step, spans)
                    self._pool = step.capture(self._pool)
                self._steps[shape] = step
            places = self._fill(step, spans)
            out = step().numpy()
        self.num_replays += 1
        return [
            Outcome(span, ids.astype(np.int64), confidence, chosen > 0)
            for span, (ids, confidence, chosen) in zip(
                spans, (out[:, place] for place in places), strict=True
            )
        ]

    def _shape(self, spans: list[Span]) -> _Shape | None:
        length = spans[0].sequence.block_length
        for span in spans:
            config = span.sequence.config
            if (
                span.num_prompt
                or not span.denoises
                or span.sequence.block_length != length
                or config.temperature > 0
                or config.rule not in ("dynamic", "static")
            ):
                return None
        rows = bucket(sum(len(span.ids) // length for span in spans), ROW_BUCKETS)
        keys = bucket(max(span.num_keys for span in spans), KEY_BUCKETS)
        return None if rows is None or keys is None else _Shape(rows, length, keys)

    def _fill(self, step: _StaticStep, spans: list[Span]) -> list[int]:
        """Write the spans into the host buffers; return the row of each span's open block."""
        length = step.shape.length
        ids, slots, masked, table, start, seen, required = (
            part.numpy() for part in step.split(step.host_ints)
        )
        threshold = step.host_floats.numpy()
        slots[:], table[:], seen[:], required[:], masked[:] = self._trash, self._trash, 1, 1, 0
        ids[:], start[:], threshold[:] = 0, 0, NEVER
        places, row = [], 0
        for span in spans:
            sequence = span.sequence
            for offset in range(0, len(span.ids), length):
                part = slice(offset, offset + length)
                keys = int(span.limits[offset])
                ids[row], slots[row] = span.ids[part], span.slots[part]
                table[row, :keys] = sequence.slots[:keys]
                # Hidden by the mask, but a weight of 0 does not hide NaN, which a slot that nobody
                # has written may hold.
                table[row, keys:] = sequence.slots[0]
                start[row], seen[row] = span.start + offset, keys
                row += 1
            config = sequence.config
            masked[row - 1] = sequence.masked
            required[row - 1] = sequence.num_required
            threshold[row - 1] = NEVER if config.rule == "static" else config.threshold
            places.append(row - 1)
        return places
