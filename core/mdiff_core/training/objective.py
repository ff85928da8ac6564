"""The masked objective: one forward of the network over a micro-batch, and its losses.

Source: block diffusion (arXiv 2503.09573) as SDAR and MinerU-Diffusion train it: predict the masked
tokens of a block from its unmasked ones, the clean blocks before it, and the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mdiff_core.attention import grouped_attention
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.training.batch import CONTEXT, IGNORE, NOISY, PAD, Batch


def training_mask(blocks: Tensor, kinds: Tensor) -> Tensor:
    """Return which key each query sees.

    A context position sees the context of its own and earlier blocks; a noisy one the context of
    earlier blocks and the noisy positions of its own block and copy; padding sees itself, so that
    no row is empty.

    Args:
        blocks: (B, S) block of each position.
        kinds: (B, S) ``PAD``, ``CONTEXT``, or ``NOISY`` and its copies.

    Returns:
        (B, S, S) bool, queries in rows.
    """
    earlier = blocks[:, None, :] < blocks[:, :, None]
    same = blocks[:, None, :] == blocks[:, :, None]
    context, noisy = kinds == CONTEXT, kinds >= NOISY
    same_copy = kinds[:, None, :] == kinds[:, :, None]
    sees_context = context[:, None, :] & (earlier | (same & context[:, :, None]))
    sees_noisy = noisy[:, None, :] & same_copy & same
    itself = torch.eye(blocks.shape[1], dtype=torch.bool, device=blocks.device)
    is_token = (kinds != PAD)[:, :, None]
    return (sees_context | sees_noisy) & is_token | itself


@dataclass(slots=True)
class Losses:
    """Sums over a micro-batch; the caller divides by the counts of the whole step.

    Attributes:
        masked: Weighted cross-entropy of the masked tokens.
        named: Cross-entropy of the characters named on image tokens.
        guided: Cross-entropy of the guided heads, summed over heads.
        correct: Masked tokens whose most likely id is the right one.
    """

    masked: Tensor
    named: Tensor
    guided: Tensor
    correct: Tensor


class TrainingAttention:
    """Attention of one micro-batch; also points guided heads at their image tokens.

    The network runs on the tokens without the padding; only here they are laid out as a batch.

    Args:
        batch: The micro-batch.
        image_token_id: Id of image placeholders.
        scale: 1 / sqrt(head size).
        guide_heads: (layer, head) pairs; empty guides none.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        image_token_id: int,
        scale: float,
        guide_heads: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._shape = batch.ids.shape
        self._mask = training_mask(batch.blocks, batch.kinds)
        self.tokens = (batch.kinds != PAD).flatten().nonzero()[:, 0]
        self._scale = scale
        self._heads: dict[int, list[int]] = {}
        self.guided: list[Tensor] = []
        if not guide_heads or not batch.num_guided:
            return
        for layer, head in guide_heads:
            self._heads.setdefault(layer, []).append(head)
        self._rows = (batch.guide >= 0).nonzero(as_tuple=True)
        self._targets = batch.guide[self._rows]
        # Image tokens stand together in each prompt, behind as many others.
        is_image = (batch.ids == image_token_id) & (batch.blocks < 0)
        counts = is_image.sum(1)
        first = is_image.int().argmax(1)
        steps = torch.arange(int(counts.max()), device=counts.device)
        self._keys = (first[:, None] + steps).clamp(max=self._shape[1] - 1)
        self._is_key = steps < counts[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: (N, heads, D) queries, keys and values of :attr:`tokens` in, the same out."""
        q, k, v = (self._batched(x) for x in (q, k, v))
        if layer in self._heads:
            self._guide(layer, q, k)
        out = grouped_attention(q, k, v, self._mask).flatten(0, 1)
        return out if self._is_full else out.index_select(0, self.tokens)

    @property
    def _is_full(self) -> bool:
        return self.tokens.shape[0] == self._shape.numel()

    def _batched(self, x: Tensor) -> Tensor:
        if not self._is_full:
            x = x.new_zeros(self._shape.numel(), *x.shape[1:]).index_copy(0, self.tokens, x)
        return x.view(*self._shape, *x.shape[1:])

    def _guide(self, layer: int, q: Tensor, k: Tensor) -> None:
        group = q.shape[2] // k.shape[2]
        sample, position = self._rows
        for head in self._heads[layer]:
            queries = q[sample, position, head]
            keys = k[:, :, head // group].gather(
                1, self._keys[:, :, None].expand(-1, -1, k.shape[-1])
            )[sample]
            scores = torch.einsum("nd,nkd->nk", queries.float(), keys.float()) * self._scale
            scores = scores.masked_fill(~self._is_key[sample], -torch.inf)
            self.guided.append(F.cross_entropy(scores, self._targets, reduction="sum"))


def attention_kernel(device: torch.device) -> AbstractContextManager[None]:
    """Return the context that chooses the attention kernels of training.

    On the CPU the fused kernel's backward pass is several times slower than two matrix products
    and a softmax at the sizes of a small model.
    """
    kernel: AbstractContextManager[None] = (
        sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    )
    return kernel


def forward(
    model: MinerUDiffusion,
    batch: Batch,
    *,
    guide_heads: Sequence[tuple[int, int]] = (),
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, TrainingAttention]:
    """Run the network on a micro-batch.

    Args:
        model: The network.
        batch: On the model's device.
        guide_heads: Guided heads.
        rows: (R,) positions of the flat batch, padding counted, whose final states are wanted;
            none of them padding. None wants all but the padding.

    Returns:
        (R, hidden) final states, (M, hidden) image features, and the attention with what it
        collected.
    """
    with attention_kernel(model.device):
        features = model.projector(model.vision(batch.pixels, batch.grids))
        attend = TrainingAttention(
            batch,
            image_token_id=model.config.image_token_id,
            scale=model.config.text.head_dim**-0.5,
            guide_heads=guide_heads,
        )
        tokens = attend.tokens
        in_prompt = (batch.blocks < 0).flatten()[tokens]
        embeds = model.embed(batch.ids.flatten()[tokens], features, in_prompt)
        wanted = None if rows is None else torch.searchsorted(tokens, rows)
        hidden: Tensor = model.decoder(embeds, batch.positions.flatten()[tokens], attend, wanted)
    return hidden, features, attend


def losses(
    model: MinerUDiffusion,
    batch: Batch,
    *,
    name_images: bool = False,
    guide_heads: Sequence[tuple[int, int]] = (),
) -> Losses:
    """Return the summed losses of a micro-batch.

    Args:
        model: The network.
        batch: On the model's device.
        name_images: Whether the loss of characters named on image tokens is wanted.
        guide_heads: Heads to guide; empty guides none.

    Returns:
        The sums, fp32.
    """
    targets = batch.targets.flatten()
    rows = (targets != IGNORE).nonzero()[:, 0]
    wanted = targets[rows]
    hidden, features, attend = forward(model, batch, guide_heads=guide_heads, rows=rows)
    logits = model.decoder.lm_head(hidden).float()
    # Decoding never produces it, so no probability is learned for it.
    logits[:, model.config.mask_token_id] = -torch.inf
    per_token = F.cross_entropy(logits, wanted, reduction="none")
    weights = batch.weights[rows // batch.ids.shape[1]]
    zero = per_token.new_zeros(())
    named = zero
    if name_images and batch.num_named:
        head = model.decoder.lm_head(model.decoder.norm(features)).float()
        named = F.cross_entropy(head, batch.image_targets, ignore_index=IGNORE, reduction="sum")
    return Losses(
        masked=(per_token * weights).sum(),
        named=named,
        guided=torch.stack(attend.guided).sum() if attend.guided else zero,
        correct=(logits.argmax(-1) == wanted).sum(),
    )
