"""The SDAR decoder: Qwen3 blocks over flat tokens, with attention left to the caller.

The same module serves the cached engine, the plain oracle and training: they differ only in the
``attend`` function they pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdiff_core.models.config import TextConfig
from mdiff_core.models.vision import rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q (N, H, D), k (N, K, D), v (N, K, D)) -> (N, H, D)``."""


class RMSNorm(nn.Module):
    """Root mean square norm: fp32 inside, the weight applied after the cast back."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """One pre-norm block; query, key and value share a product, as do gate and up."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        hidden, q_size, kv_size = (
            config.hidden_size,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
        )
        self.input_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.qkv = nn.Linear(hidden, q_size + 2 * kv_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(q_size, hidden, bias=False)
        self.post_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.gate_up = nn.Linear(hidden, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)

    def forward(
        self,
        layer: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Run the block on (N, hidden) tokens; ``cos`` and ``sin`` are (N, 1, D).

        With ``rows`` (R,) only those are returned, (R, hidden): the others are keys and values.
        """
        heads = self.qkv(self.input_norm(x)).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q = rotate(self.q_norm(q), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        attended = attend(layer, q, k, v).flatten(1)
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
        x = x + self.o_proj(attended)
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down_proj(F.silu(gate) * up)
        return out


class Decoder(nn.Module):
    """Token embedding, layers, final norm and head."""

    def __init__(self, config: TextConfig, *, tied: bool) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin (N, 1, D) of (N,) integer positions; angles are fp32."""
        dim = self.config.head_dim
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
        angles = positions[:, None].float() * (1.0 / self.config.rope_theta**exponent)
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self, embeds: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Run all layers.

        Args:
            embeds: (N, hidden) embeddings of flat tokens, of one or many sequences.
            positions: (N,) integer positions.
            attend: Attention over whatever keys the caller keeps.
            rows: (R,) tokens whose final states are wanted; None wants all. What is behind the last
                layer's attention runs on them alone: nobody looks at the other tokens there.

        Returns:
            (N, hidden), or (R, hidden) with ``rows``, after the final norm; :attr:`lm_head` is the
            caller's, on the rows it needs.
        """
        cos, sin = self.rotary(positions, embeds.dtype)
        x, last = embeds, len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(index, x, cos, sin, attend, rows if index == last else None)
        out: Tensor = self.norm(x)
        return out
