"""Attention over packed sequences and over the cache; one backend per engine, chosen once.

Backends: ``sdpa`` (always there) and, on CUDA, ``varlen`` (``torch.nn.attention.varlen``) or
``flash`` (the flash-attn package, an optional extra that is imported only when asked for).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mdiff_core.config import suggest
from mdiff_core.errors import ConfigError

logger = logging.getLogger(__name__)

VarlenFn = Callable[..., Any]
ATTENTION = ("auto", "sdpa", "varlen", "flash")


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], varlen: VarlenFn | None = None
) -> Tensor:
    """Full attention inside each of several packed sequences; nothing crosses their borders.

    Args:
        q: (N, H, D) queries, any device.
        k: (N, H, D) keys.
        v: (N, H, D) values.
        lengths: Length of each sequence; their sum is N.
        varlen: Variable-length kernel from :func:`choose_varlen`, or None for SDPA.

    Returns:
        (N, H, D).

    Cost: linear in the number of sequences; sequences of equal length that stand side by side
    are one batched call.
    """
    if varlen is not None and q.is_cuda:
        bounds = torch.tensor([0, *lengths], dtype=torch.int32, device=q.device).cumsum(
            0, dtype=torch.int32
        )
        longest = max(lengths)
        out: Tensor = varlen(q, k, v, bounds, bounds, longest, longest)
        return out
    parts = []
    start = index = 0
    while index < len(lengths):
        length, count = lengths[index], 1
        while index + count < len(lengths) and lengths[index + count] == length:
            count += 1
        stop = start + count * length
        batch = [
            x[start:stop].reshape(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        ]
        attended = F.scaled_dot_product_attention(batch[0], batch[1], batch[2])
        parts.append(attended.transpose(1, 2).reshape(count * length, *q.shape[1:]))
        start, index = stop, index + count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with grouped key heads and without copying keys for each query head.

    The query heads that share a key head are laid side by side as further queries, so the plain
    kernel sees equal head counts.

    Args:
        q: (B, Q, H, D) queries.
        k: (B, S, K, D) keys, K divides H.
        v: (B, S, K, D) values.
        mask: (B, Q, S) bool, True where a query may look; None where all may.

    Returns:
        (B, Q, H, D).
    """
    b, n, heads, d = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    queries = q.view(b, n, kv_heads, group, d).permute(0, 2, 3, 1, 4).reshape(b, kv_heads, -1, d)
    if mask is not None:
        mask = mask[:, None, None].expand(b, 1, group, n, mask.shape[-1]).reshape(
            b, 1, group * n, mask.shape[-1]
        )  # fmt: skip
    out = F.scaled_dot_product_attention(
        queries, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
    )
    return out.view(b, kv_heads, group, n, d).permute(0, 3, 1, 2, 4).reshape(b, n, heads, d)


def choose_varlen(
    device: torch.device, dtype: torch.dtype, prefer: str = "auto"
) -> tuple[str, VarlenFn | None]:
    """Choose the variable-length attention kernel once per engine.

    Args:
        device: Where the model runs.
        dtype: Type it runs in; the kernels know fp16 and bf16, on Ampere and newer.
        prefer: ``auto``, ``sdpa``, ``varlen`` or ``flash``.

    Returns:
        ``(name, kernel)``; the kernel takes ``(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k)``, and is
        None for ``sdpa``.

    Raises:
        ConfigError: If there is no such kernel, whatever the device.
    """
    if prefer not in ATTENTION:
        raise ConfigError(f"attention {prefer!r} is unknown", hint=suggest(str(prefer), ATTENTION))
    if device.type != "cuda" or prefer == "sdpa":
        return "sdpa", None
    if dtype not in (torch.float16, torch.bfloat16):
        if prefer != "auto":
            logger.warning("attention=%r does not know %s; sdpa is used", prefer, dtype)
        return "sdpa", None
    if torch.cuda.get_device_capability(device) < (8, 0):
        if prefer != "auto":
            logger.warning("attention=%r needs an Ampere GPU; sdpa is used", prefer)
        return "sdpa", None
    if prefer in ("auto", "varlen"):
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            logger.debug("torch %s has no variable-length attention", torch.__version__)
        else:
            return "varlen", varlen_attn
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        if prefer == "flash":
            _warn_flash("it is not installed")
    except Exception as error:  # noqa: BLE001  # a broken build raises OSError, RuntimeError, ...
        _warn_flash(repr(error))
    else:
        return "flash", flash_attn_varlen_func
    return "sdpa", None


def _warn_flash(reason: str) -> None:
    warnings.warn(
        f"flash-attn cannot be used ({reason}); attention runs on torch's own kernels",
        RuntimeWarning,
        stacklevel=3,
    )
