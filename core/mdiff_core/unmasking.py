"""Unmask rules: which masked positions of a block are confirmed in this step.

A rule is a function of tensors without a host synchronisation; ``register_rule`` adds one.
The common contract: only masked positions are chosen, and at least ``num_required`` of them (all
when fewer are left), so that a block always ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mdiff_core.config import suggest
from mdiff_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepState:
    """What a rule sees: R rows of L positions, on one device.

    Attributes:
        confidence: (R, L) fp32, probability of the chosen token.
        entropy: (R, L) fp32 in nats; None unless a rule of ``needs_entropy`` asked for it.
        masked: (R, L) bool.
        num_required: (R, 1) int64, the schedule's minimum for this step.
        threshold: (R, 1) fp32.
        factor: (R, 1) fp32.
        entropy_bound: (R, 1) fp32.
    """

    confidence: Tensor
    entropy: Tensor | None
    masked: Tensor
    num_required: Tensor
    threshold: Tensor
    factor: Tensor
    entropy_bound: Tensor


Rule = Callable[[StepState], Tensor]
"""``rule(state) -> (R, L) bool``."""


def _order(key: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorting indices (best first, unmasked last) and each position's rank."""
    order = torch.where(masked, key, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(key.shape[-1], device=key.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(-1, order, places)


def dynamic(state: StepState) -> Tensor:
    """Confirm every position above the threshold, and the most confident where too few pass.

    Source: MinerU-Diffusion's and SDAR's low-confidence dynamic rule.
    """
    _, rank = _order(state.confidence, state.masked)
    above = state.confidence > state.threshold
    return state.masked & (above | (rank < state.num_required))


def static(state: StepState) -> Tensor:
    """Confirm exactly the scheduled number, most confident first."""
    _, rank = _order(state.confidence, state.masked)
    return state.masked & (rank < state.num_required)


def sequential(state: StepState) -> Tensor:
    """Confirm exactly the scheduled number, from the left."""
    return state.masked & (state.masked.cumsum(-1) <= state.num_required)


def entropy_bounded(state: StepState) -> Tensor:
    """Confirm the largest set, lowest entropy first, whose sum less its maximum is bounded.

    Source: entropy-bounded sampling, arXiv 2505.24857.
    """
    if state.entropy is None:
        raise ValueError("the entropy-bounded rule needs the entropy of each position")
    order, rank = _order(-state.entropy, state.masked)
    sorted_entropy = torch.where(state.masked, state.entropy, 0).gather(-1, order)
    # In ascending order the maximum of a prefix is its last element.
    before = sorted_entropy.cumsum(-1) - sorted_entropy
    allowed = (before <= state.entropy_bound).gather(-1, rank)
    return state.masked & (allowed | (rank < state.num_required))


def factor(state: StepState) -> Tensor:
    """Confirm the n most confident, with the largest n such that (n + 1)(1 - c_n) < f.

    Source: Fast-dLLM's factor rule, arXiv 2505.22618.
    """
    order, rank = _order(state.confidence, state.masked)
    ranked = torch.where(state.masked, state.confidence, 0).gather(-1, order)
    count = torch.arange(1, ranked.shape[-1] + 1, device=ranked.device)
    passes = (count + 1) * (1 - ranked) < state.factor
    # The largest n counts, also when a smaller one fails.
    largest = torch.where(passes, count, 0).amax(-1, keepdim=True)
    return state.masked & ((rank < largest) | (rank < state.num_required))


_RULES: dict[str, tuple[Rule, bool]] = {
    "dynamic": (dynamic, False),
    "static": (static, False),
    "sequential": (sequential, False),
    "entropy-bounded": (entropy_bounded, True),
    "factor": (factor, False),
}


def register_rule(name: str, rule: Rule, *, needs_entropy: bool = False) -> None:
    """Make a rule known under a name, for ``DecodeConfig(rule=name)``.

    Raises:
        ConfigError: If the name is taken.
    """
    if name in _RULES:
        raise ConfigError(f"there is an unmask rule {name!r} already")
    _RULES[name] = (rule, needs_entropy)


def get_rule(name: str) -> tuple[Rule, bool]:
    """Return the rule and whether it needs the entropy; an unknown name is a ``ConfigError``."""
    if name not in _RULES:
        raise ConfigError(f"there is no unmask rule {name!r}", hint=suggest(name, list(_RULES)))
    return _RULES[name]
