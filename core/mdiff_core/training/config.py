"""Settings of a training run, read from a TOML file. Loads no torch.

Every table of the file is one dataclass here; an unknown name is an error that suggests the nearest
known one. Relative paths are relative to the file.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mdiff_core.checkpoint import EMBEDDED
from mdiff_core.config import strict_from_dict
from mdiff_core.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "LaunchSettings",
    "LoraConfig",
    "MineConfig",
    "ModelSettings",
    "ObjectiveConfig",
    "OptimConfig",
    "RunConfig",
    "SourceConfig",
    "TrainConfig",
    "ValidationConfig",
    "check_types",
    "load_config",
    "require",
]


def require(owner: str, name: str, value: Any, ok: bool, allowed: str) -> None:
    """Raise a :class:`ConfigError` that names table, setting and allowed values unless ``ok``."""
    if not ok:
        raise ConfigError(
            f"[{owner}] {name} = {value!r} is out of range", hint=f"allowed: {allowed}"
        )


def check_types(owner: str, settings: Any) -> None:
    """Refuse values that are not of the type that their setting is declared with.

    A file may hold anything, and Python would often go on with it: a text is a list of letters, a
    text is true, 1e4 is not the number of a step.

    Args:
        owner: Table of the settings, for the message.
        settings: A dataclass of settings. Lists pass for tuples, integers for floats, texts for
            paths; floats must be finite.

    Raises:
        ConfigError: If a value is of another type; names table, setting and type.
    """
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if not _is_of(kind, value):
            raise ConfigError(
                f"[{owner}] {name} = {value!r} cannot be used", hint=f"give {_in_words(kind)}"
            )


def _is_of(kind: Any, value: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is_of(arg, value) for arg in args)
    if origin is Literal:
        return value in args
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _is_of(args[0], key) and _is_of(args[1], item) for key, item in value.items()
        )
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            return False
        kinds = args if origin is tuple and Ellipsis not in args else args[:1] * len(value)
        return len(value) == len(kinds) and all(map(_is_of, kinds, value))
    if kind in (int, float):
        # To Python, true is a 1.
        if isinstance(value, float):
            return kind is float and math.isfinite(value)
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    return isinstance(value, kind)


def _in_words(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_in_words(arg) for arg in args)
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin is Mapping:
        return "a table"
    if origin in (tuple, Sequence):
        if origin is tuple and Ellipsis not in args:
            return f"[{', '.join(map(_in_words, args))}]"
        return f"a list, each {_in_words(args[0])}"
    words = {int: "an integer", float: "a number", bool: "true or false", type(None): "nothing"}
    return words.get(kind, "a text")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How ``torchrun`` started this process.

    Attributes:
        num_processes: Processes of the run; 1 without ``torchrun``.
        local_rank: Number of this process on its machine.
    """

    num_processes: int = 1
    local_rank: int = 0

    @classmethod
    def from_env(cls) -> LaunchSettings:
        """Read what ``torchrun`` sets: ``WORLD_SIZE`` and ``LOCAL_RANK``."""
        return cls(
            num_processes=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Table ``[run]``: how long, where, and with what.

    Attributes:
        out: Folder of the run: its log, its state and the exported checkpoint.
        steps: Optimiser steps of the whole run, at least 1.
        seed: Seed of the data, the masks and the initial weights.
        device: ``auto``, ``cpu``, ``cuda``, or a torch device. Under ``torchrun`` each process
            takes its own CUDA device.
        dtype: Type the network computes in: ``auto`` (bf16 where the device multiplies it
            natively, else fp32), ``bf16`` or ``fp32``. Master weights, gradients of a step and the
            optimiser are fp32 always.
        batch_size: Samples of one step, over all processes and micro-batches.
        micro_batch: Samples that go through the network at once in one process.
        workers: Processes that draw samples; 0 draws in the training process.
        save_every: Steps between two saved states; the last step is always saved.
        keep: Saved states that are kept.
        log_every: Steps between two lines of the log.
        max_minutes: Stop (saved, to be resumed) after this time; 0 is no limit.
        threads: CPU threads of torch; 0 leaves its default.
        export_dtype: Type of the exported weights: ``bf16`` as the released ones, or ``fp32``.
        recompute: Recompute each decoder layer in the backward pass instead of keeping its
            activations: less memory, about a third more time.
    """

    out: Path
    steps: int
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 24
    micro_batch: int = 24
    workers: int = 1
    save_every: int = 500
    keep: int = 2
    log_every: int = 10
    max_minutes: float = 0.0
    threads: int = 0
    export_dtype: str = "bf16"
    recompute: bool = False

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, allowed: str) -> None:
            require("run", name, getattr(self, name), ok, allowed)

        check_types("run", self)
        object.__setattr__(self, "out", Path(self.out))
        check("seed", 0 <= self.seed < 2**63, "integer in [0, 2**63)")
        check("dtype", self.dtype in ("auto", "bf16", "fp32"), "auto, bf16 or fp32")
        check("export_dtype", self.export_dtype in ("bf16", "fp32"), "bf16 or fp32")
        for name in ("steps", "batch_size", "micro_batch", "save_every", "keep", "log_every"):
            check(name, getattr(self, name) >= 1, ">= 1")
        for name in ("workers", "max_minutes", "threads"):
            check(name, getattr(self, name) >= 0, ">= 0")
        check(
            "batch_size",
            self.batch_size % self.micro_batch == 0,
            f"a multiple of micro_batch = {self.micro_batch}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Table ``[model]``: what the run starts from.

    Attributes:
        base: Checkpoint that gives tokenizer, chat template, image preparation and shapes:
            ``tiny``, a folder, ``org/name`` or ``modelscope:org/name``.
        init: ``base`` starts from its weights, ``scratch`` from random ones.
        text: Decoder shapes that differ from the base's; only with ``scratch``.
        vision: Image tower shapes that differ from the base's; only with ``scratch``.
        mdiff: Capabilities that differ from the base's (tasks, text_unit, ...).
        freeze: Parts that are not trained: ``vision``, ``projector``, ``decoder``.
    """

    base: str = "tiny"
    init: Literal["base", "scratch"] = "base"
    text: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any] = field(default_factory=dict)
    mdiff: Mapping[str, Any] = field(default_factory=dict)
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types("model", self)
        object.__setattr__(self, "freeze", tuple(self.freeze))
        parts = {"vision", "projector", "decoder"}
        require("model", "freeze", self.freeze, set(self.freeze) < parts, "two of the three parts")
        if self.init == "base" and (self.text or self.vision):
            raise ConfigError(
                "[model.text] and [model.vision] change shapes; the base's weights would not fit",
                hint='set init = "scratch", or leave the shapes out',
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """Table ``[objective]``: what is masked and what is counted.

    Attributes:
        form: ``drawn``: one block of each answer, drawn at random, behind its clean predecessors;
            ``all``: every block at once, with a clean and a noisy copy of the answer.
        block_length: Tokens denoised together, as in decoding. 1 is an autoregressive model.
        full_mask: Share of samples that are masked completely; decoding starts there.
        mask_runs: Share of the other samples whose masked positions stand together in runs, as
            they do in decoding, rather than singly.
        copies: Noisy copies of what is denoised, each with masks of its own, that share the image
            and the clean context: more to learn from for little more work.
        beta: Weight of hard samples: their loss counts 1 + beta * (1 - C), C their consistency.
        image_answer: Weight at the first and at the last step of the loss that makes the output
            head name, on each image token, the character that is drawn there.
        guide: Weight at the first and at the last step of the loss that points the guided heads
            at the image token of each position's character.
        guide_heads: Guided heads as (layer, head) pairs, counted from 0.
    """

    form: Literal["drawn", "all"] = "drawn"
    block_length: int = 32
    full_mask: float = 0.3
    mask_runs: float = 0.0
    copies: int = 1
    beta: float = 0.0
    image_answer: tuple[float, float] = (0.0, 0.0)
    guide: tuple[float, float] = (0.0, 0.0)
    guide_heads: tuple[tuple[int, int], ...] = ((1, 0), (2, 0))

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, allowed: str) -> None:
            require("objective", name, getattr(self, name), ok, allowed)

        check_types("objective", self)
        check("block_length", 1 <= self.block_length <= 1024, "integer in [1, 1024]")
        for name in ("full_mask", "mask_runs"):
            check(name, 0 <= getattr(self, name) <= 1, "[0, 1]")
        check("copies", 1 <= self.copies <= 16, "integer in [1, 16]")
        check("beta", self.beta >= 0, ">= 0")
        for name in ("image_answer", "guide"):
            pair = tuple(getattr(self, name))
            object.__setattr__(self, name, pair)
            check(name, min(pair) >= 0, "[first, last], both >= 0")
        heads = tuple((layer, head) for layer, head in self.guide_heads)
        object.__setattr__(self, "guide_heads", heads)
        check("guide_heads", all(min(pair) >= 0 for pair in heads), "[layer, head], both >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Table ``[optim]``: AdamW with warm-up and cosine decay.

    Attributes:
        lr: Peak learning rate.
        vision_lr: Factor on the learning rate of the image tower.
        betas: Decay of AdamW's two moments.
        eps: AdamW's epsilon.
        weight_decay: Applied to matrices only, not to norms, biases and embeddings.
        warmup_steps: Steps of linear warm-up.
        final_lr: Share of the peak that is left at the last step.
        clip: Largest norm of the gradient; 0 does not clip.
        ema: Decay of the averaged weights, which are what is exported; 0 exports the last ones.
            The average starts faster, with (1 + step) / (10 + step), where that is smaller.
    """

    lr: float = 1.2e-3
    vision_lr: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 200
    final_lr: float = 0.02
    clip: float = 1.0
    ema: float = 0.999

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, allowed: str) -> None:
            require("optim", name, getattr(self, name), ok, allowed)

        check_types("optim", self)
        object.__setattr__(self, "betas", tuple(self.betas))
        check("lr", self.lr > 0, "> 0")
        check("betas", min(self.betas) >= 0 and max(self.betas) < 1, "two in [0, 1)")
        for name in ("vision_lr", "eps", "weight_decay", "warmup_steps", "clip"):
            check(name, getattr(self, name) >= 0, ">= 0")
        check("final_lr", 0 <= self.final_lr <= 1, "[0, 1]")
        check("ema", 0 <= self.ema < 1, "[0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Table ``[lora]``: low-rank adapters (arXiv 2106.09685) through the peft library.

    Attributes:
        rank: Rank of the updates; 0 trains all weights.
        alpha: Scale of the updates, divided by the rank.
        dropout: Dropout in front of an update.
        targets: Names of the linear layers that get one. In the decoder: ``qkv`` (query, key and
            value as one product), ``o_proj``, ``gate_up``, ``down_proj``; in the image tower also
            ``proj``, ``fc1``, ``fc2``.
        vision: Whether layers of the image tower and the projector get one too.
    """

    rank: int = 0
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("qkv", "o_proj", "gate_up", "down_proj")
    vision: bool = False

    def __post_init__(self) -> None:
        check_types("lora", self)
        object.__setattr__(self, "targets", tuple(self.targets))
        require("lora", "rank", self.rank, self.rank >= 0, ">= 0")
        require("lora", "alpha", self.alpha, self.alpha > 0, "> 0")
        require("lora", "dropout", self.dropout, 0 <= self.dropout < 1, "[0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One entry of ``[[data]]``: a source of samples and its share of the stream.

    Attributes:
        kind: ``lines``, ``paragraphs``, ``tables``, ``formulas``, ``pages`` (drawn), ``folder``
            (images with labels) or ``mined`` (hard samples of the curriculum).
        weight: Share of micro-batches, relative to the other sources.
        options: Settings of the source's own kind; in the file they stand beside the two above.
    """

    kind: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types("data", self)
        require("data", "weight", self.weight, self.weight > 0, "> 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationConfig:
    """Table ``[validation]``: drawn or held-out samples, decoded with the averaged weights.

    Attributes:
        every: Steps between two validations; 0 does none but the one at the end.
        samples: Samples; the same ones each time. 0 validates never.
        threshold: Confidence threshold of the decoding.
        data: Sources; empty takes those of the training, with a seed of their own.
    """

    every: int = 0
    samples: int = 0
    threshold: float = 0.95
    data: tuple[SourceConfig, ...] = ()

    def __post_init__(self) -> None:
        check_types("validation", self)
        require("validation", "every", self.every, self.every >= 0, ">= 0")
        require("validation", "samples", self.samples, self.samples >= 0, ">= 0")
        require("validation", "threshold", self.threshold, 0 <= self.threshold <= 1, "[0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MineConfig:
    """Table ``[mine]``: which samples are hard (curriculum, stage 2).

    Attributes:
        samples: Samples that are looked at.
        runs: Stochastic runs of each, T, at least 2.
        temperature: Temperature of the runs; above 0.
        threshold: Confidence threshold of the runs.
        tau: A sample with consistency below it is hard (the paper's tau_train).
        seed: Seed of the runs, and of which drawn samples are looked at.
        data: Sources; empty takes those of the training.
    """

    samples: int = 1000
    runs: int = 4
    temperature: float = 1.0
    threshold: float = 0.95
    tau: float = 0.9
    seed: int = 1
    data: tuple[SourceConfig, ...] = ()

    def __post_init__(self) -> None:
        check_types("mine", self)
        allowed = "integer in [0, 2**63)"
        require("mine", "seed", self.seed, 0 <= self.seed < 2**63, allowed)
        require("mine", "samples", self.samples, self.samples >= 1, ">= 1")
        require("mine", "runs", self.runs, self.runs >= 2, ">= 2")
        require("mine", "temperature", self.temperature, self.temperature > 0, "> 0")
        require("mine", "threshold", self.threshold, 0 <= self.threshold <= 1, "[0, 1]")
        require("mine", "tau", self.tau, 0 <= self.tau <= 1, "[0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole training run."""

    run: RunConfig
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: tuple[SourceConfig, ...] = ()
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    mine: MineConfig = field(default_factory=MineConfig)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> TrainConfig:
        """Build from the tables of a file.

        Args:
            raw: Tables by name.

        Returns:
            The settings.

        Raises:
            ConfigError: If a table or a setting is unknown, missing or out of its range.
        """
        tables: dict[str, Any] = dict(raw)
        if "run" not in tables:
            raise ConfigError("there is no table [run]", hint="at least run.out and run.steps")
        for name, kind in _TABLES.items():
            if name in tables:
                tables[name] = _table(name, kind, tables[name])
        tables["data"] = _sources("data", raw.get("data", ()))
        if not tables["data"]:
            raise ConfigError("there is no [[data]] to train on", hint='for example kind = "lines"')
        return strict_from_dict(cls, tables)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for the log."""
        plain = dataclasses.asdict(self)
        plain["run"]["out"] = str(self.run.out)
        return plain


_TABLES: dict[str, Any] = {
    "run": RunConfig,
    "model": ModelSettings,
    "objective": ObjectiveConfig,
    "optim": OptimConfig,
    "lora": LoraConfig,
    "validation": ValidationConfig,
    "mine": MineConfig,
}


def _table(name: str, kind: Any, raw: Any) -> Any:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{name} is not a table", hint=f"write [{name}], once")
    values = dict(raw)
    if "data" in values:
        values["data"] = _sources(f"{name}.data", values["data"])
    try:
        return strict_from_dict(kind, values)
    except TypeError as error:
        # A required setting is missing.
        raise ConfigError(f"[{name}] cannot be used: {error}") from error


def _sources(name: str, raw: Any) -> tuple[SourceConfig, ...]:
    sources = []
    for item in raw if isinstance(raw, list | tuple) else [None]:
        if not isinstance(item, Mapping):
            raise ConfigError(f"{name} is no list of tables", hint=f"write [[{name}]]")
        values = dict(item)
        if not isinstance(values.get("kind"), str):
            raise ConfigError(f"an entry of [[{name}]] has no kind", hint='kind = "lines"')
        known = {key: values.pop(key) for key in ("kind", "weight") if key in values}
        sources.append(SourceConfig(**known, options=values))
    return tuple(sources)


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> TrainConfig:
    """Read a training file.

    Args:
        path: TOML file.
        overrides: Settings that replace the file's, by dotted name (``run.steps``).

    Returns:
        The settings, paths made absolute against the file's folder.

    Raises:
        ConfigError: If the file is missing, is no TOML, or holds a wrong setting.
    """
    try:
        # Some editors begin a file with a byte order mark.
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for name, value in (overrides or {}).items():
        *tables, last = name.split(".")
        target = raw
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {name}: {table} is not a table")
        target[last] = value
    _make_absolute(raw, path.parent)
    try:
        return TrainConfig.from_dict(raw)
    except ConfigError as error:
        error.source = str(path)
        raise


def _make_absolute(raw: Mapping[str, Any], folder: Path) -> None:
    """Resolve the paths of a file, in place. What is of a wrong type is left to be refused."""
    for run in _tables(raw.get("run")):
        if "out" in run:
            run["out"] = _resolve(folder, run["out"])
    for table in (raw, *_tables(raw.get("validation")), *_tables(raw.get("mine"))):
        for source in _tables(table.get("data")):
            for key in ("path", "corpus", "fonts"):
                if key in source:
                    source[key] = _resolve(folder, source[key])
    for model in _tables(raw.get("model")):
        base = model.get("base")
        if isinstance(base, str) and base and base not in EMBEDDED:
            resolved = _resolve(folder, base)
            model["base"] = resolved if Path(resolved).is_dir() else base


def _tables(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def _resolve(folder: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_resolve(folder, item) for item in value]
    return str((folder / Path(value).expanduser()).resolve()) if isinstance(value, str) else value
