"""One forward of the network over the scheduler's spans, and the unmask decision on its rows.

Pure with respect to the requests: nothing here changes a sequence, so a forward that ran out of
memory can simply be run again in smaller parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdiff_core.cache import CachedAttention, KVCache
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.sampling import entropy, greedy, sample
from mdiff_core.scheduler import Sequence, Span, group_spans
from mdiff_core.unmasking import StepState, get_rule

KEY_ROUNDING = 64
HEAD_CHUNK_ELEMENTS = 2**27
"""Logits computed at a time: 512 MiB in fp32."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one denoising span proposes: (L,) tokens, confidences and the positions to confirm."""

    span: Span
    tokens: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]
    chosen: npt.NDArray[np.bool_]


class Runner:
    """Runs spans eagerly: any mix of prompt chunks, commits and denoising blocks.

    Args:
        model: The network.
        cache: Its cache.
    """

    def __init__(self, model: MinerUDiffusion, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self.num_head_rows = 0

    @torch.inference_mode()
    def run(self, spans: list[Span]) -> list[Outcome]:
        """Run one forward.

        Args:
            spans: From :meth:`mdiff_core.scheduler.Scheduler.plan`.

        Returns:
            One outcome for each span that denoises.

        Cost: one forward; the head on masked rows only; one device-to-host copy.
        """
        groups = group_spans(spans, KEY_ROUNDING)
        ordered = [span for group in groups for span in group]
        denoising = [span for span in ordered if span.denoises]
        # Row of each sequence's first block position in the flat hidden states.
        ends = np.cumsum([len(span.ids) for span in ordered])
        firsts = [
            int(end) - span.sequence.block_length
            for span, end in zip(ordered, ends, strict=True)
            if span.denoises
        ]
        masked = [np.flatnonzero(span.sequence.masked) for span in denoising]
        rows = [first + m for first, m in zip(firsts, masked, strict=True)]
        hidden = self._forward(groups, ordered, np.concatenate([np.empty(0, np.int64), *rows]))
        if not denoising:
            return []
        counts = [len(m) for m in masked]
        sequences = [span.sequence for span in denoising]
        tokens, confidence, spread = self._propose(hidden, counts, sequences)
        return self._decide(denoising, masked, counts, tokens, confidence, spread)

    def encode(self, sequences: list[Sequence], max_patches: int) -> None:
        """Turn the prepared images of new sequences into embeddings, in packed calls.

        Args:
            sequences: Their ``features`` hold :class:`~mdiff_core.imaging.Patches`.
            max_patches: Patches of one call; a larger image runs alone.
        """
        batch: list[Sequence] = []
        size = 0
        for sequence in [*sequences, None]:
            patches = 0 if sequence is None else sequence.features.rows * sequence.features.cols
            if batch and (sequence is None or size + patches > max_patches):
                with torch.inference_mode():
                    encoded = self.model.encode_images([s.features for s in batch])
                for done, features in zip(batch, encoded, strict=True):
                    done.features = features
                batch, size = [], 0
            if sequence is not None:
                batch.append(sequence)
                size += patches

    def _forward(
        self, groups: list[list[Span]], ordered: list[Span], rows: npt.NDArray[np.int64]
    ) -> Tensor:
        device = self.model.device
        ids = np.concatenate([span.ids for span in ordered])
        positions = np.concatenate([np.arange(s.start, s.start + len(s.ids)) for s in ordered])
        ids_d, positions_d, rows_d = (
            torch.from_numpy(x).to(device, non_blocking=True) for x in (ids, positions, rows)
        )
        features, in_prompt = self._features(ordered), None
        if features is not None:
            flags = [np.arange(len(span.ids)) < span.num_prompt for span in ordered]
            in_prompt = torch.from_numpy(np.concatenate(flags)).to(device, non_blocking=True)
        embeds = self.model.embed(ids_d, features, in_prompt)
        attend = CachedAttention(self.cache, groups, device)
        hidden: Tensor = self.model.decoder(embeds, positions_d, attend, rows_d)
        return hidden

    def _features(self, ordered: list[Span]) -> Tensor | None:
        image_id = self.model.config.image_token_id
        parts = []
        for span in ordered:
            if not span.num_prompt:
                continue
            # A chunk of a long prompt takes its own part of the image.
            before = int((span.sequence.prompt[: span.start] == image_id).sum())
            count = int((span.ids[: span.num_prompt] == image_id).sum())
            if count:
                parts.append(span.sequence.features[before : before + count])
        return torch.cat(parts) if parts else None

    def _propose(
        self, hidden: Tensor, counts: list[int], sequences: list[Sequence]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return token, confidence and (if a rule asks) entropy of each masked row."""
        mask_id = self.model.config.mask_token_id
        vocabulary = self.model.config.text.vocab_size
        wants_entropy = any(get_rule(s.config.rule)[1] for s in sequences)
        sampled = any(s.config.temperature > 0 for s in sequences)
        self.num_head_rows += hidden.shape[0]
        chunk = max(1, HEAD_CHUNK_ELEMENTS // vocabulary)
        parts: list[tuple[Tensor, ...]] = []
        # With sampling in the batch the chunks are the requests, each with its own stream.
        sizes = counts if sampled else [chunk] * (hidden.shape[0] // chunk)
        if not sampled and hidden.shape[0] % chunk:
            sizes = [*sizes, hidden.shape[0] % chunk]
        for i, rows in enumerate(torch.split(hidden, sizes)):
            logits = self.model.decoder.lm_head(rows)
            config = sequences[i].config if sampled else None
            if config is not None and config.temperature > 0:
                tokens, confidence = sample(
                    logits,
                    mask_id,
                    temperature=config.temperature,
                    top_k=config.top_k,
                    top_p=config.top_p,
                    generator=sequences[i].generator,
                )
            else:
                tokens, confidence = greedy(logits, mask_id)
            parts.append(
                (tokens, confidence, entropy(logits)) if wants_entropy else (tokens, confidence)
            )
        joined = [torch.cat(column) for column in zip(*parts, strict=True)]
        return joined[0], joined[1], joined[2] if wants_entropy else None

    def _decide(
        self,
        spans: list[Span],
        masked: list[npt.NDArray[np.int64]],
        counts: list[int],
        tokens: Tensor,
        confidence: Tensor,
        spread: Tensor | None,
    ) -> list[Outcome]:
        """Apply each request's rule to its rows; rows of one rule and length are one call."""
        starts = np.cumsum([0, *counts])
        kinds: dict[tuple[str, int], list[int]] = {}
        for i, span in enumerate(spans):
            kind = (span.sequence.config.rule, span.sequence.block_length)
            kinds.setdefault(kind, []).append(i)
        outcomes: list[Tensor] = []
        for (name, length), members in kinds.items():
            grid = np.zeros((len(members), length), np.bool_)
            for row, i in zip(grid, members, strict=True):
                row[masked[i]] = True
            where = torch.from_numpy(grid).to(tokens.device)
            flat = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in members])
            rows = torch.from_numpy(flat).to(tokens.device)
            state = _state(
                [spans[i].sequence for i in members],
                where,
                _on_grid(confidence, rows, where),
                None if spread is None else _on_grid(spread, rows, where),
            )
            chosen = get_rule(name)[0](state)
            found = (_on_grid(tokens, rows, where), state.confidence, chosen)
            # Token ids are exact in fp32 up to 2^24, so that everything is one copy to the host.
            outcomes.append(torch.stack([part.float() for part in found]).flatten())
        packed = torch.cat(outcomes).cpu().numpy()
        results = []
        at = 0
        for (_, length), members in kinds.items():
            size = 3 * len(members) * length
            part = packed[at : at + size].reshape(3, len(members), length)
            at += size
            for place, i in enumerate(members):
                ids, confident, confirmed = part[:, place]
                results.append(
                    Outcome(
                        spans[i],
                        ids.astype(np.int64),
                        confident.astype(np.float32),
                        confirmed > 0,
                    )
                )
        return results


def _on_grid(values: Tensor, rows: Tensor, where: Tensor) -> Tensor:
    """Place chosen flat values on the masked positions of an (R, L) grid, zeros elsewhere."""
    grid = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
    grid[where] = values.index_select(0, rows)
    return grid


def _state(
    sequences: list[Sequence], masked: Tensor, confidence: Tensor, spread: Tensor | None
) -> StepState:
    settings = [
        (s.num_required, s.config.threshold, s.config.factor, s.config.entropy_bound)
        for s in sequences
    ]
    columns = torch.tensor(settings, dtype=torch.float32).to(masked.device)[:, :, None].unbind(1)
    return StepState(
        confidence=confidence,
        entropy=spread,
        masked=masked,
        num_required=columns[0].long(),
        threshold=columns[1],
        factor=columns[2],
        entropy_bound=columns[3],
    )
