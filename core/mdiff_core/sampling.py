"""From logits to a token and its confidence a position: greedy, or sampled from a seeded stream."""

from __future__ import annotations

import torch
from torch import Tensor


def greedy(logits: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
    """Return the most likely token and its probability.

    Args:
        logits: (M, V) float; the mask token's column is overwritten with -inf.
        mask_token_id: Never produced.

    Returns:
        Tokens (M,) int64 and confidences (M,) fp32. A row with NaN gives NaN confidence.

    Cost: two passes over the logits, no softmax in memory, no synchronisation.
    """
    logits[:, mask_token_id] = -torch.inf
    best, tokens = logits.max(dim=-1)
    wide = logits if logits.dtype == torch.float32 else logits.float()
    return tokens, (best.float() - wide.logsumexp(dim=-1)).exp()


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each row of (M, V) logits, fp32."""
    log_p = logits.float().log_softmax(-1)
    # A banned token has probability 0 and log -inf; its term is 0, not NaN.
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1)


def sample(
    logits: Tensor,
    mask_token_id: int,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw a token a row; its confidence is its probability in the distribution drawn from.

    Args:
        logits: (M, V) float; the mask token's column is overwritten with -inf.
        mask_token_id: Never produced.
        temperature: Above 0.
        top_k: Keep the k most likely; 0 keeps all. With 1 every confidence is 1, as upstream.
        top_p: Keep the smallest set with this mass.
        generator: The request's own stream, on the logits' device.

    Returns:
        Tokens (M,) int64 and confidences (M,) fp32. A row with NaN gives NaN confidence.
    """
    logits[:, mask_token_id] = -torch.inf
    # In fp32 a colder or hotter distribution is none.
    scores = logits.float() / min(max(temperature, 1e-6), 1e6)
    broken = ~torch.isfinite(scores.amax(-1))
    if 0 < top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k, -1).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, index = scores.softmax(-1).sort(-1, descending=True)
        # The token that crosses the mass stays, so one always remains.
        beyond = ordered.cumsum(-1) - ordered >= top_p
        drop = beyond.scatter(-1, index, beyond)
        scores = scores.masked_fill(drop, -torch.inf)
    # A row with NaN cannot be drawn from; its confidence tells.
    probabilities = scores.softmax(-1).masked_fill(broken[:, None], 1.0)
    tokens = torch.multinomial(probabilities, 1, generator=generator)
    confidence = probabilities.gather(-1, tokens)[:, 0]
    return tokens[:, 0], confidence.masked_fill(broken, torch.nan)
