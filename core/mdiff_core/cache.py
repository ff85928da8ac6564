"""The key/value cache: preallocated token slots, and attention of packed spans over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mdiff_core.attention import grouped_attention
from mdiff_core.models.config import TextConfig
from mdiff_core.scheduler import Span


class KVCache:
    """Keys and values of all layers in token slots; who owns a slot is the scheduler's matter.

    Args:
        config: Decoder shapes.
        num_slots: Tokens it holds.
        device: Where.
        dtype: Type of keys and values.
    """

    def __init__(
        self, config: TextConfig, num_slots: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (num_slots, config.num_key_value_heads, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.empty(shape, device=device, dtype=dtype) for _ in layers]
        self.values = [torch.empty(shape, device=device, dtype=dtype) for _ in layers]

    @staticmethod
    def bytes_per_token(config: TextConfig, dtype: torch.dtype) -> int:
        """Return the bytes one cached token takes in all layers."""
        width = config.num_key_value_heads * config.head_dim
        return 2 * config.num_hidden_layers * width * dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


@dataclass(frozen=True, slots=True)
class _Group:
    start: int
    stop: int
    num_spans: int
    slots: Tensor | slice | None
    mask: Tensor | None


class CachedAttention:
    """The ``attend`` function of one forward: writes new keys and values, then attends by group.

    Args:
        cache: The cache.
        groups: Groups of spans, in the order of the forward's tokens.
        device: Where the model runs.
    """

    def __init__(self, cache: KVCache, groups: list[list[Span]], device: torch.device) -> None:
        self._cache = cache
        slots = np.concatenate([span.slots for group in groups for span in group])
        self._write = torch.from_numpy(slots).to(device, non_blocking=True)
        self._groups: list[_Group] = []
        start = 0
        for spans in groups:
            stop = start + len(spans) * len(spans[0].ids)
            self._groups.append(_plan(spans, start, stop, device))
            start = stop

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in :data:`mdiff_core.models.sdar.Attend`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._write, k)
        values.index_copy_(0, self._write, v)
        parts = []
        for group in self._groups:
            rows = slice(group.start, group.stop)
            shape = (group.num_spans, -1)
            if group.slots is None:
                # The spans start at position 0: all their keys are in this very forward.
                group_k = k[rows].view(*shape, *k.shape[1:])
                group_v = v[rows].view(*shape, *v.shape[1:])
            elif isinstance(group.slots, slice):
                group_k, group_v = keys[group.slots][None], values[group.slots][None]
            else:
                group_k = keys.index_select(0, group.slots).view(*shape, *k.shape[1:])
                group_v = values.index_select(0, group.slots).view(*shape, *v.shape[1:])
            queries = q[rows].view(*shape, *q.shape[1:])
            parts.append(grouped_attention(queries, group_k, group_v, group.mask).flatten(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _plan(spans: list[Span], start: int, stop: int, device: torch.device) -> _Group:
    num_keys = max(span.num_keys for span in spans)
    limits = np.stack([span.limits for span in spans])
    mask = None
    if (limits != num_keys).any():
        if (limits == limits[0]).all():
            limits = limits[:1]
        visible = np.arange(num_keys) < limits[..., None]
        mask = torch.from_numpy(visible).to(device, non_blocking=True)
        mask = mask.expand(len(spans), -1, -1)
    if spans[0].start == 0 and len(spans[0].ids) == num_keys:
        return _Group(start, stop, len(spans), None, mask)
    if len(spans) == 1:
        table = spans[0].sequence.slots[:num_keys]
        if table[-1] - table[0] == num_keys - 1:
            return _Group(start, stop, 1, slice(int(table[0]), int(table[-1]) + 1), mask)
        return _Group(start, stop, 1, torch.from_numpy(table).to(device), mask)
    # Slots beyond a span's own keys repeat its first one; the mask hides them.
    table = np.empty((len(spans), num_keys), np.int64)
    for row, span in zip(table, spans, strict=True):
        row[: span.num_keys] = span.sequence.slots[: span.num_keys]
        row[span.num_keys :] = row[0]
    return _Group(start, stop, len(spans), torch.from_numpy(table.ravel()).to(device), mask)
