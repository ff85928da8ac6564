"""Image tower (Qwen2-VL ViT without its merger) and the projector to text embeddings.

Knows patches, not images: the order of patches is by merge window, see :mod:`mdiff_core.imaging`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdiff_core.attention import VarlenFn, packed_attention
from mdiff_core.models.config import ImageConfig, VisionConfig

NORM_EPS = 1e-6


def rotary_angles(rows: int, cols: int, head_dim: int, merge: int, device: torch.device) -> Tensor:
    """Return the 2-D rotary angles of one image's patches, fp32.

    Args:
        rows: Patch rows, a multiple of ``merge``.
        cols: Patch columns, a multiple of ``merge``.
        head_dim: Head size D; D/4 frequencies go to the row and as many to the column.
        merge: Side of a merge window, which patches are ordered by.
        device: Where to make the table.

    Returns:
        (rows * cols, head_dim): row angles, column angles, and both once more (rotate-half form).
    """
    half = head_dim // 2
    inv_freq = 10000.0 ** (-torch.arange(0, half, 2, dtype=torch.float32, device=device) / half)
    row = torch.arange(rows, device=device)[:, None].expand(rows, cols)
    col = torch.arange(cols, device=device)[None, :].expand(rows, cols)
    ids = torch.stack([row, col], dim=-1).view(rows // merge, merge, cols // merge, merge, 2)
    ids = ids.transpose(1, 2).reshape(rows * cols, 2)
    angles = (ids[:, :, None].float() * inv_freq).flatten(1)
    return torch.cat([angles, angles], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding in rotate-half form; ``cos`` and ``sin`` broadcast against ``x``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class VisionBlock(nn.Module):
    """One pre-norm transformer block of the image tower."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        dim, hidden = config.embed_dim, int(config.embed_dim * config.mlp_ratio)
        self.num_heads = config.num_heads
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        lengths: Sequence[int],
        varlen: VarlenFn | None,
    ) -> Tensor:
        """Run the block on packed patches.

        Args:
            x: (P, E) patches of all images.
            cos: (P, 1, D) fp32.
            sin: (P, 1, D) fp32.
            lengths: Patches of each image.
            varlen: Attention kernel, see :func:`mdiff_core.attention.packed_attention`.

        Returns:
            (P, E).
        """
        q, k, v = self.qkv(self.norm1(x)).view(x.shape[0], 3, self.num_heads, -1).unbind(1)
        # fp32 for the rotation, as in the reference.
        q = rotate(q.float(), cos, sin).to(x.dtype)
        k = rotate(k.float(), cos, sin).to(x.dtype)
        x = x + self.proj(packed_attention(q, k, v, lengths, varlen).flatten(1))
        hidden = self.fc1(self.norm2(x))
        out: Tensor = x + self.fc2(hidden * torch.sigmoid(1.702 * hidden))
        return out


class VisionTower(nn.Module):
    """Patches of any number of images in, one feature a patch out; images do not see each other."""

    def __init__(self, config: VisionConfig, image: ImageConfig) -> None:
        super().__init__()
        self.config = config
        size = config.patch_size
        # A still image is its frame twice, so the temporal kernel is summed on use.
        self.patch_weight = nn.Parameter(
            torch.empty(
                config.embed_dim, config.in_channels, config.temporal_patch_size, size, size
            )
        )
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.varlen: VarlenFn | None = None
        self._mean, self._std = image.mean, image.std
        self._angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def normalize(self, pixels: Tensor) -> Tensor:
        """Turn uint8 patches (P, C * p * p) into normalised fp32 values of the same shape."""
        area = self.config.patch_size**2
        mean = torch.tensor(self._mean, device=pixels.device).repeat_interleave(area)
        std = torch.tensor(self._std, device=pixels.device).repeat_interleave(area)
        return (pixels.float() / 255 - mean) / std

    def forward(self, pixels: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        """Encode patches.

        Args:
            pixels: (P, C * p * p) uint8, on the model's device; patches of all images, packed.
            grids: (rows, cols) in patches of each image; their products sum to P.

        Returns:
            (P, E) features in the model's dtype.
        """
        weight = self.patch_weight.sum(2).flatten(1)
        x = F.linear(self.normalize(pixels).to(weight.dtype), weight)
        tables = [self._table(grid, x.device) for grid in grids]
        cos = torch.cat([table[0] for table in tables])[:, None]
        sin = torch.cat([table[1] for table in tables])[:, None]
        lengths = [rows * cols for rows, cols in grids]
        for block in self.blocks:
            x = block(x, cos, sin, lengths, self.varlen)
        return x

    def _table(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        # Page crops repeat few sizes; a bounded store saves the recomputation.
        found = self._angles.get(grid)
        if found is None or found[0].device != device:
            head_dim = self.config.embed_dim // self.config.num_heads
            angles = rotary_angles(*grid, head_dim, self.config.spatial_merge_size, device)
            found = (angles.cos(), angles.sin())
            if len(self._angles) >= 64:
                self._angles.clear()
            self._angles[grid] = found
        return found


class Projector(nn.Module):
    """Merge each window of 4 patches into one text embedding (``patch_merger2x``)."""

    def __init__(self, embed_dim: int, merge: int, hidden_size: int) -> None:
        super().__init__()
        self.window = merge * merge
        self.ln_q = nn.LayerNorm(embed_dim, eps=NORM_EPS)
        self.fc1 = nn.Linear(self.window * embed_dim, self.window * embed_dim)
        self.fc2 = nn.Linear(self.window * embed_dim, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        """Project (P, E) features, ordered by window, to (P / 4, hidden) embeddings."""
        merged = self.ln_q(features).view(features.shape[0] // self.window, -1)
        out: Tensor = self.fc2(F.gelu(self.fc1(merged)))
        return out
