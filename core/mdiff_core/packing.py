"""CPU linears with weights laid out once for oneDNN, instead of on every call.

Uses operators that torch's own compiler uses; where they are missing or the CPU cannot run a type,
the plain linears stay. Measured effect: ``docs/results.md``.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """A linear layer for inference whose weight exists only in packed form."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias
        self.out_features = linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to (N, in) rows."""
        if not x.shape[0]:
            return x.new_empty(0, self.out_features)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def bf16_is_fast_on_cpu() -> bool:
    """Return whether this CPU multiplies bf16 natively."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in probes)


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether packed linears of ``dtype`` work on this machine, by trying one."""
    if not torch._C._has_mkldnn:
        return False
    probe = nn.Linear(8, 8, dtype=dtype)
    x = torch.randn(4, 8, dtype=dtype)
    try:
        with torch.inference_mode():
            close = torch.allclose(PackedLinear(probe)(x), probe(x), atol=0.05, rtol=0.05)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        logger.debug("no packed linears for %s: %s", dtype, error)
        return False
    return close


def pack_linears(module: nn.Module) -> int:
    """Replace every ``nn.Linear`` below ``module`` by a packed one, in place.

    Args:
        module: A network on the CPU, used for inference only afterwards.

    Returns:
        How many were replaced.
    """
    count = 0
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child))
            count += 1
        else:
            count += pack_linears(child)
    return count
