"""Unmask rules: what each confirms, and the contract they share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mdiff_core import unmasking
from mdiff_core.errors import ConfigError
from mdiff_core.schedule import num_required
from mdiff_core.unmasking import StepState, get_rule, register_rule

RULES = ("dynamic", "static", "sequential", "entropy-bounded", "factor")


def state(
    confidence: list[float],
    masked: list[int] | None = None,
    required: int = 1,
    threshold: float = 0.95,
    factor: float = 1.0,
    bound: float = 0.1,
    entropy: list[float] | None = None,
) -> StepState:
    values = torch.tensor([confidence])
    return StepState(
        confidence=values,
        entropy=torch.tensor([entropy]) if entropy else -values.clamp_min(1e-6).log(),
        masked=torch.tensor([masked]).bool() if masked else torch.ones_like(values).bool(),
        num_required=torch.tensor([[required]]),
        threshold=torch.tensor([[threshold]]),
        factor=torch.tensor([[factor]]),
        entropy_bound=torch.tensor([[bound]]),
    )


def chosen(name: str, value: StepState) -> list[int]:
    result: Tensor = get_rule(name)[0](value)
    return result[0].nonzero()[:, 0].tolist()


def test_dynamic_confirms_all_above_the_threshold() -> None:
    assert chosen("dynamic", state([0.99, 0.5, 0.96, 0.95])) == [0, 2]


def test_dynamic_falls_back_to_the_most_confident() -> None:
    assert chosen("dynamic", state([0.2, 0.5, 0.4], required=2)) == [1, 2]


def test_dynamic_tops_up_to_the_schedule() -> None:
    assert chosen("dynamic", state([0.99, 0.5, 0.4, 0.6], required=2)) == [0, 3]


def test_threshold_one_never_passes_and_zero_always() -> None:
    assert chosen("dynamic", state([1.0, 1.0, 0.5], threshold=1.0)) == [0]
    assert chosen("dynamic", state([0.1, 0.2, 0.3], threshold=0.0)) == [0, 1, 2]


def test_ties_go_to_the_left() -> None:
    assert chosen("static", state([0.5, 0.5, 0.5], required=2)) == [0, 1]


def test_sequential_goes_from_the_left_over_gaps() -> None:
    value = state([0.1, 0.9, 0.2, 0.9], masked=[0, 1, 1, 1], required=2)
    assert chosen("sequential", value) == [1, 2]


def test_entropy_bounded_sums_all_but_the_largest() -> None:
    value = state([0.9] * 4, entropy=[0.05, 0.04, 0.3, 2.0], bound=0.1)
    # Sums of the smaller ones: 0, 0.04, 0.09, 0.39.
    assert chosen("entropy-bounded", value) == [0, 1, 2]


def test_factor_takes_the_largest_count_that_passes() -> None:
    # (n + 1)(1 - c_n): 0.02, 0.15, 0.8, 2.5 against 1.
    assert chosen("factor", state([0.99, 0.95, 0.8, 0.5])) == [0, 1, 2]
    assert chosen("factor", state([0.99, 0.95, 0.8, 0.5], factor=0.1)) == [0]


def test_schedule_of_six_steps_sums_to_the_block() -> None:
    assert [num_required(step, 32, 6) for step in range(6)] == [6, 6, 5, 5, 5, 5]
    assert sum(num_required(step, 32, 32) for step in range(32)) == 32
    # More steps than positions: one a step, until none is left.
    assert [num_required(step, 4, 32) for step in range(5)] == [1, 1, 1, 1, 1]


@settings(max_examples=60)
@given(
    name=st.sampled_from(RULES),
    rows=st.lists(
        st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=8, max_size=8),
        min_size=1,
        max_size=4,
    ),
    required=st.integers(1, 8),
    threshold=st.floats(0, 1, width=32),
)
def test_contract(
    name: str, rows: list[list[tuple[float, bool]]], required: int, threshold: float
) -> None:
    """Only masked positions; at least the required number; rows do not influence each other."""
    confidence = torch.tensor([[c for c, _ in row] for row in rows])
    masked = torch.tensor([[m for _, m in row] for row in rows])

    def column(value: float, count: int) -> Tensor:
        return torch.full((count, 1), value)

    def run(pick: slice) -> Tensor:
        count = confidence[pick].shape[0]
        return get_rule(name)[0](
            StepState(
                confidence=confidence[pick],
                entropy=1 - confidence[pick],
                masked=masked[pick],
                num_required=column(required, count).long(),
                threshold=column(threshold, count),
                factor=column(1.0, count),
                entropy_bound=column(0.1, count),
            )
        )

    result = run(slice(None))
    assert not (result & ~masked).any()
    least = masked.sum(-1).clamp_max(required)
    assert (result.sum(-1) >= least).all()
    for i in range(len(rows)):
        assert (run(slice(i, i + 1)) == result[i]).all()


def test_a_new_rule_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmasking, "_RULES", dict(unmasking._RULES))
    register_rule("rightmost", lambda s: s.masked & (s.masked.flip(-1).cumsum(-1).flip(-1) <= 1))
    assert chosen("rightmost", state([0.1, 0.2, 0.3])) == [2]
    with pytest.raises(ConfigError, match="already"):
        register_rule("dynamic", unmasking.dynamic)
