"""Settings of the decoding core, and the one place where it reads environment variables.

Knows no tensors: importing this module loads no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from mdiff_core.errors import ConfigError

Task = Literal["layout", "text", "table", "formula"]
TASKS: tuple[Task, ...] = ("layout", "text", "table", "formula")

T = TypeVar("T")


def strict_from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a dataclass from a mapping and refuse unknown names.

    Args:
        kind: A dataclass type.
        values: Field values by name.

    Returns:
        The instance; its own ``__post_init__`` has checked the values.

    Raises:
        ConfigError: If a name is not a field of ``kind``; the nearest known name is given.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # T is a dataclass
    for name in values:
        if name not in known:
            raise ConfigError(
                f"{kind.__name__} has no setting {name!r}", hint=suggest(str(name), known)
            )
    return kind(**values)


def suggest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ``did you mean ...`` for the nearest known name, else the list of known names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _check(owner: str, name: str, value: Any, ok: bool, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{owner}.{name} = {value!r} is out of range", hint=f"allowed: {allowed}")


def check_count(owner: str, name: str, value: Any) -> None:
    """Refuse what is no count.

    Args:
        owner: What has the setting, for the message.
        name: The setting.
        value: Its value.

    Raises:
        ConfigError: If it is not an integer of at least 1; names setting, value and range.
    """
    _check(owner, name, value, _is_int(value) and value >= 1, "integer >= 1")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        # An integer beyond the range of floats would fail in the first calculation.
        return abs(value) <= sys.float_info.max
    return isinstance(value, float) and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """How one request is decoded.

    Attributes:
        threshold: Confidence in [0, 1] above which a token is confirmed. With 1 only the
            scheduled number is confirmed a step; with 0 a block is confirmed at once.
        block_length: Tokens denoised together, in [1, 1024]. V1 was trained with 32.
        denoising_steps: Upper bound of steps a block takes, in [1, 1024]; the scheduled minimum of
            confirmations a step is ``block_length // denoising_steps`` (and one more in the first
            ``block_length % denoising_steps`` steps), at least one.
        max_tokens: Limit of generated tokens, at least 1. ``None`` takes the checkpoint's limit
            for the task (reference: 2048 for layout and table, 1024 for text and formula).
        rule: Unmask rule: ``dynamic``, ``static``, ``sequential``, ``entropy-bounded``, ``factor``
            or one registered with :func:`mdiff_core.unmasking.register_rule`.
        temperature: 0 is greedy (argmax); above, tokens are sampled at this temperature.
        top_k: Keep the k most likely tokens when sampling; 0 keeps all.
        top_p: Keep the smallest set with this probability mass when sampling, in (0, 1].
        seed: Seed of this request's own random stream, in [-2**63, 2**64 - 1] as torch takes it;
            ``None`` is 0, so that a request is reproducible whatever its neighbours are. Has no
            effect at temperature 0.
        ignore_end: Generate ``max_tokens`` tokens and do not stop at an end token.
        factor: Parameter f of the ``factor`` rule (Fast-dLLM, arXiv 2505.22618).
        entropy_bound: Bound in nats of the ``entropy-bounded`` rule (arXiv 2505.24857).
    """

    threshold: float = 0.95
    block_length: int = 32
    denoising_steps: int = 32
    max_tokens: int | None = None
    rule: str = "dynamic"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_end: bool = False
    factor: float = 1.0
    entropy_bound: float = 0.1

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, allowed: str) -> None:
            _check("DecodeConfig", name, getattr(self, name), ok, allowed)

        check("threshold", _is_number(self.threshold) and 0 <= self.threshold <= 1, "[0, 1]")
        for name in ("block_length", "denoising_steps"):
            value = getattr(self, name)
            check(name, _is_int(value) and 1 <= value <= 1024, "integer in [1, 1024]")
        limit = self.max_tokens
        check(
            "max_tokens", limit is None or (_is_int(limit) and limit >= 1), "None or integer >= 1"
        )
        rule: object = self.rule
        check("rule", isinstance(rule, str) and bool(rule), "name of an unmask rule")
        check("temperature", _is_number(self.temperature) and self.temperature >= 0, ">= 0")
        check("top_k", _is_int(self.top_k) and self.top_k >= 0, "integer >= 0")
        check("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "(0, 1]")
        seed = self.seed
        check(
            "seed",
            seed is None or (_is_int(seed) and -(2**63) <= seed < 2**64),
            "None or integer in [-2**63, 2**64 - 1]",
        )
        check("ignore_end", isinstance(self.ignore_end, bool), "True or False")
        check("factor", _is_number(self.factor) and self.factor > 0, "> 0")
        check("entropy_bound", _is_number(self.entropy_bound) and self.entropy_bound >= 0, ">= 0")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecodeConfig:
        """Build from a mapping; unknown names raise :class:`ConfigError`."""
        return strict_from_dict(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a checkpoint can be asked, from ``"mdiff"`` in its ``config.json``.

    Attributes:
        tasks: Tasks it was trained for.
        text_unit: ``region``: any upright crop of a page; ``segment``: a piece of one text line on
            a fixed canvas.
        segment_px: Width and height in px of that canvas; only with ``segment``.
        stretch: Horizontal stretch of a piece relative to its height; only with ``segment``.
        line_air: Air kept above and below the ink of a line before it is scaled, as a share of the
            ink's height; only with ``segment``. None takes crops as they are.
        max_tokens: Limit of tokens by task where it differs from the reference's.
    """

    tasks: tuple[Task, ...] = TASKS
    text_unit: Literal["region", "segment"] = "region"
    segment_px: tuple[int, int] | None = None
    stretch: float = 1.0
    line_air: float | None = None
    max_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, allowed: str) -> None:
            _check("config.json mdiff", name, getattr(self, name), ok, allowed)

        # JSON has lists, the fields are tuples; and it may have anything else.
        tasks: object = self.tasks
        check(
            "tasks",
            isinstance(tasks, list | tuple) and all(task in TASKS for task in tasks),
            f"a list of {', '.join(TASKS)}",
        )
        object.__setattr__(self, "tasks", tuple(self.tasks))
        check("text_unit", self.text_unit in ("region", "segment"), "region or segment")
        check("stretch", _is_number(self.stretch) and self.stretch > 0, "> 0")
        check(
            "line_air",
            self.line_air is None or (_is_number(self.line_air) and self.line_air >= 0),
            "None or >= 0",
        )
        if self.segment_px is not None:
            sides: object = self.segment_px
            check(
                "segment_px",
                isinstance(sides, list | tuple)
                and len(sides) == 2
                and all(_is_int(side) and side > 0 for side in sides),
                "[width, height] in px, two integers >= 1",
            )
            object.__setattr__(self, "segment_px", tuple(self.segment_px))
        check(
            "segment_px",
            (self.segment_px is not None) == (self.text_unit == "segment"),
            "given exactly with text_unit segment",
        )
        limits: object = self.max_tokens
        check(
            "max_tokens",
            isinstance(limits, Mapping)
            and all(k in TASKS and _is_int(v) and v >= 1 for k, v in limits.items()),
            "{task: integer >= 1}",
        )

    def limit(self, task: Task) -> int:
        """Return the limit of generated tokens for ``task``."""
        default = 2048 if task in ("layout", "table") else 1024
        return self.max_tokens.get(task, default)
