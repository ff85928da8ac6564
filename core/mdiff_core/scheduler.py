"""Which tokens run in the next forward. Plain Python and numpy: no torch, no network.

A request becomes a :class:`Sequence`. Its work in one forward is a :class:`Span`: a run of tokens
with consecutive positions, each with the number of cached keys it may see. Prompt chunks, commits
of finished blocks and denoising blocks are all such rows, so the exact shortcuts are only a matter
of which rows stand side by side:

* the last prompt chunk carries the first block's first denoising step;
* the commit of a finished block rides with the first denoising step of the next one;
* the last block is never committed;
* a block is left as soon as an end token is confirmed and everything before it.

A text of B blocks with n steps each therefore costs exactly B * n forwards (the reference:
1 + B * (n + 1)), where a forward has room for the prompt with a block, and for two blocks; commits
and prompts that have no room beside a block take forwards of their own. Source: checked on the
reference, which gives the same tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mdiff_core.config import DecodeConfig
from mdiff_core.errors import CapacityError
from mdiff_core.schedule import num_required
from mdiff_core.types import FinishReason

Ints = npt.NDArray[np.int64]


class PagePool:
    """Free pages of the cache; hands out neighbours where it can.

    Args:
        num_pages: Pages in the cache.
        page_size: Tokens a page.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self._free = list(range(num_pages))

    @property
    def num_free(self) -> int:
        """Pages not in use."""
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Return the pages that ``num_tokens`` need."""
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int] | None:
        """Return ``count`` pages, neighbours if there is such a run; None if too few are free."""
        if count > len(self._free):
            return None
        at = 0
        # The free list is sorted, so a run of neighbours is a run of equal page - index.
        for i in range(len(self._free) - count + 1):
            if self._free[i + count - 1] - self._free[i] == count - 1:
                at = i
                break
        pages = self._free[at : at + count]
        del self._free[at : at + count]
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Return pages."""
        for page in pages:
            self._free.insert(bisect_left(self._free, page), page)


@dataclass(slots=True, eq=False)
class Sequence:
    """The decoding state of one request.

    Attributes:
        key: Chosen by the caller.
        prompt: (P,) prompt ids with image placeholders.
        config: Decoding settings.
        max_tokens: Limit of answer tokens.
        end_ids: Ids that end the answer.
        mask_id: Id of an unconfirmed position.
        features: Image embeddings, kept until the prompt has run; opaque to the scheduler.
        generator: Random stream of a sampled request; opaque to the scheduler.
    """

    key: int
    prompt: Ints
    config: DecodeConfig
    max_tokens: int
    end_ids: tuple[int, ...]
    mask_id: int
    features: Any = None
    generator: Any = None
    pages: list[int] = field(default_factory=list)
    slots: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    num_prefilled: int = 0
    block: int = 0
    step_in_block: int = 0
    num_steps: int = 0
    num_forwards: int = 0
    tokens: Ints = field(init=False)
    masked: npt.NDArray[np.bool_] = field(init=False)
    uncommitted: Ints | None = None
    block_confidence: npt.NDArray[np.float32] = field(init=False)
    block_steps: Ints = field(init=False)
    answer: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    step_map: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self._open_block()

    @property
    def block_length(self) -> int:
        """Positions of a block."""
        return self.config.block_length

    @property
    def capacity(self) -> int:
        """Cached tokens this request can need at most."""
        num_blocks = -(-self.max_tokens // self.block_length)
        return len(self.prompt) + num_blocks * self.block_length

    @property
    def num_required(self) -> int:
        """The schedule's minimum of confirmations in the coming step."""
        return num_required(self.step_in_block, self.block_length, self.config.denoising_steps)

    def _open_block(self) -> None:
        length = self.block_length
        self.tokens = np.full(length, self.mask_id, np.int64)
        self.masked = np.ones(length, np.bool_)
        self.block_confidence = np.zeros(length, np.float32)
        self.block_steps = np.zeros(length, np.int64)
        self.step_in_block = 0

    def confirm(
        self,
        tokens: Ints,
        confidence: npt.NDArray[np.float32],
        chosen: npt.NDArray[np.bool_],
    ) -> bool:
        """Take the outcome of one denoising step.

        Args:
            tokens: (L,) proposed tokens.
            confidence: (L,) their probabilities.
            chosen: (L,) positions to confirm.

        Returns:
            Whether the request has finished.
        """
        self.num_steps += 1
        self.step_in_block += 1
        new = chosen & self.masked
        self.tokens[new] = tokens[new]
        self.block_confidence[new] = confidence[new]
        self.block_steps[new] = self.num_steps
        self.masked &= ~new
        # Everything left of the first open position is final, whatever comes later.
        settled = int(self.masked.argmax()) if self.masked.any() else self.block_length
        room = self.max_tokens - len(self.answer)
        if not self.config.ignore_end:
            ends = np.isin(self.tokens[:settled], self.end_ids)
            end = int(ends.argmax()) if ends.any() else settled
            if end < min(settled, room):
                self._keep(end)
                self.finish_reason = "stop" if self.answer else "empty"
                return True
        if settled >= room:
            self._keep(room)
            self.finish_reason = "length"
            return True
        if settled == self.block_length:
            self._keep(settled)
            self.uncommitted = self.tokens
            self.block += 1
            self._open_block()
        return False

    def _keep(self, count: int) -> None:
        self.answer += self.tokens[:count].tolist()
        self.confidences += self.block_confidence[:count].tolist()
        self.step_map += self.block_steps[:count].tolist()


@dataclass(slots=True, eq=False)
class Span:
    """The tokens of one sequence in one forward.

    Attributes:
        sequence: Whose tokens.
        start: Position of the first token.
        ids: (n,) token ids.
        limits: (n,) keys each token may see: the end of its block.
        num_prompt: Prompt tokens among them, at the front.
        denoises: Whether the last ``block_length`` tokens are a denoising block.
    """

    sequence: Sequence
    start: int
    ids: Ints
    limits: Ints
    num_prompt: int
    denoises: bool

    @property
    def num_keys(self) -> int:
        """Keys the last token sees."""
        return int(self.limits[-1])

    @property
    def slots(self) -> Ints:
        """(n,) cache slots the tokens' keys and values go to."""
        return self.sequence.slots[self.start : self.start + len(self.ids)]


class Scheduler:
    """Chooses the work of each forward: first come, first served, bounded by cache and batch size.

    Args:
        pool: Cache pages.
        max_batch_tokens: Tokens of one forward; a single larger prompt runs in chunks.
        max_sequences: Requests decoded at the same time.
    """

    def __init__(self, pool: PagePool, *, max_batch_tokens: int, max_sequences: int) -> None:
        self.pool = pool
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    def check(self, sequence: Sequence) -> None:
        """Refuse a request that could not run even alone.

        Raises:
            CapacityError: With the numbers.
        """
        pages = self.pool.pages_for(sequence.capacity)
        if pages > self.pool.num_pages:
            raise CapacityError(
                f"the request needs {sequence.capacity} cached tokens ({len(sequence.prompt)} of "
                f"prompt, {sequence.max_tokens} of answer), the cache holds "
                f"{self.pool.num_pages * self.pool.page_size}",
                hint="raise cache_bytes, lower max_tokens, or shrink the image",
            )
        if sequence.block_length > self.max_batch_tokens:
            raise CapacityError(
                f"block_length {sequence.block_length} exceeds max_batch_tokens "
                f"{self.max_batch_tokens}",
                hint="raise max_batch_tokens, or lower block_length",
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a request; it joins at a coming forward.

        Raises:
            CapacityError: If it could not run even alone.
        """
        self.check(sequence)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or cancelled request out and free its pages at once."""
        queue = self.running if sequence in self.running else self.waiting
        if sequence in queue:
            queue.remove(sequence)
        self.pool.give(sequence.pages)
        sequence.pages = []
        sequence.features = None

    def plan(self) -> list[Span]:
        """Return the spans of the next forward; empty when idle.

        Running requests come before new ones, those that ran longest ago first, so that no one
        starves when they do not all fit.
        """
        budget = self.max_batch_tokens
        spans: list[Span] = []
        for _ in range(len(self.running)):
            span = self._span(self.running[0], budget)
            if span is None:
                break
            budget -= len(span.ids)
            spans.append(span)
            self.running.rotate(-1)
        while self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            span = self._span(sequence, budget)
            if span is None:
                break
            pages = self.pool.take(self.pool.pages_for(sequence.capacity))
            if pages is None:
                break
            self.waiting.popleft()
            sequence.pages = pages
            offsets = np.arange(self.pool.page_size)
            sequence.slots = (
                np.array(pages)[:, None] * self.pool.page_size + offsets
            ).ravel()[: sequence.capacity]  # fmt: skip
            self.running.append(sequence)
            budget -= len(span.ids)
            spans.append(span)
        return spans

    def ran(self, spans: Iterable[Span]) -> None:
        """Note that spans have run: prompt tokens are cached, finished blocks committed."""
        for span in spans:
            sequence = span.sequence
            sequence.num_forwards += 1
            sequence.num_prefilled += span.num_prompt
            sequence.uncommitted = None
            if sequence.num_prefilled == len(sequence.prompt):
                sequence.features = None

    def _span(self, sequence: Sequence, budget: int) -> Span | None:
        """Return the sequence's next work, or None if it does not fit ``budget`` tokens."""
        length, prompt_length = sequence.block_length, len(sequence.prompt)
        left = prompt_length - sequence.num_prefilled
        if left:
            return self._prompt_span(sequence, left, budget)
        committed = 0 if sequence.uncommitted is None else length
        end = prompt_length + sequence.block * length
        if sequence.uncommitted is not None and 2 * length > self.max_batch_tokens:
            # The two blocks never fit one forward, so the commit runs without the next block.
            if length > budget:
                return None
            return Span(
                sequence=sequence,
                start=end - length,
                ids=sequence.uncommitted,
                limits=np.full(length, end),
                num_prompt=0,
                denoises=False,
            )
        if committed + length > budget:
            return None
        limits = np.repeat([end, end + length], [committed, length])
        parts = [sequence.tokens] if not committed else [sequence.uncommitted, sequence.tokens]
        return Span(
            sequence=sequence,
            start=end - committed,
            ids=np.concatenate(parts),  # type: ignore[arg-type]  # committed says it is not None
            limits=limits,
            num_prompt=0,
            denoises=True,
        )

    def _prompt_span(self, sequence: Sequence, left: int, budget: int) -> Span | None:
        length, prompt_length = sequence.block_length, len(sequence.prompt)
        done = sequence.num_prefilled
        if left + length <= budget:
            take, tail = left, [sequence.tokens]
        elif budget == self.max_batch_tokens:
            # Larger than any forward: run it in chunks that end where a prompt block ends.
            take, tail = min(left, budget), []
            take -= (done + take - prompt_length) % length
            if take <= 0:
                return None
        else:
            return None
        positions = np.arange(done, done + take + length * len(tail))
        blocks = np.floor_divide(positions - prompt_length, length) + 1
        return Span(
            sequence=sequence,
            start=done,
            ids=np.concatenate([sequence.prompt[done : done + take], *tail]),
            limits=prompt_length + blocks * length,
            num_prompt=take,
            denoises=bool(tail),
        )


def group_spans(spans: list[Span], round_to: int) -> list[list[Span]]:
    """Return spans grouped so that one attention call serves each group.

    Spans of one group have as many tokens as each other and about as many keys.

    Args:
        spans: Spans of one forward.
        round_to: Spans whose key counts fall into the same multiple share a group.

    Returns:
        The groups; their concatenation is the order of tokens in the forward.
    """

    def key(span: Span) -> tuple[int, bool, int]:
        return (len(span.ids), span.start == 0, -(-span.num_keys // round_to))

    ordered = sorted(spans, key=key)
    return [list(group) for _, group in itertools.groupby(ordered, key=key)]
