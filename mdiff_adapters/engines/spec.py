"""The name of an engine: one string and its options. Loads no torch and opens nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mdiff_adapters.errors import ConfigError
from mdiff_core.config import suggest

# Two letters at least: `C:\model` is a Windows path, not a kind.
_KIND = re.compile(r"^([A-Za-z][A-Za-z0-9_-]+):(.*)$", re.DOTALL)

_CHECKPOINT_OPTIONS = (
    "device", "dtype", "cache_bytes", "max_batch_tokens", "max_sequences", "max_batch_patches",
    "attention", "cuda_graphs",
)  # fmt: skip
# Written out, because asking the engines themselves would import torch where a name is checked.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "checkpoint": _CHECKPOINT_OPTIONS,
    "modelscope": _CHECKPOINT_OPTIONS,
    "http": (
        "model", "api_key", "timeout_s", "concurrency", "retries", "backoff_s", "tasks",
    ),
    "replay": ("tables",),
    "reference": ("device", "dtype"),
    "scripted": ("delay_s",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class EngineSpec:
    """Which engine is meant. Frozen, hashable and picklable, so it may travel to worker processes.

    Attributes:
        spec: ``tiny``, a checkpoint (``/path`` or ``org/name``), ``http(s)://…``,
            ``replay:/folder``, ``reference:/path``, or ``kind:rest`` of a plugin.
        options: Options of that engine, sorted by name; build it with :meth:`parse`.
    """

    spec: str = "tiny"
    options: tuple[tuple[str, object], ...] = ()

    @classmethod
    def parse(cls, spec: str | os.PathLike[str] | EngineSpec, **options: Any) -> EngineSpec:
        """Return the spec of a string, with options.

        Local folders become absolute, because a worker process may have another working directory.
        Options that are None or ``"auto"`` mean the engine's own default and are left out, so that
        spelling out a default does not build a second engine.

        Args:
            spec: The string, a checkpoint folder, or a spec whose options are extended.
            **options: Options of the engine, for example ``device`` and ``dtype``.

        Returns:
            The spec.

        Raises:
            ConfigError: If the string is empty, or an option's value cannot be hashed.
        """
        if isinstance(spec, EngineSpec):
            text, options = spec.spec, {**dict(spec.options), **options}
        else:
            text = os.fspath(spec).strip()
        if not text:
            raise ConfigError("the engine is an empty string", hint="the default is 'tiny'")
        # JSON gives lists where a setting was a tuple.
        kept = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(options.items())
            if value is not None and value != "auto"
        )
        try:
            hash(kept)
        except TypeError as error:
            raise ConfigError(
                f"options of engine {text!r} must be hashable: {error}",
                hint="give numbers, strings or tuples",
            ) from error
        match = _KIND.match(text)
        if match is None:
            text = _absolute(text)
        elif match[1] not in ("http", "https"):
            text = f"{match[1]}:{_absolute(match[2])}"
        return cls(text, kept)

    @property
    def kind(self) -> str:
        """``checkpoint``, ``http``, or what stands before the colon."""
        match = _KIND.match(self.spec)
        if match is None:
            return "checkpoint"
        return "http" if match[1] == "https" else match[1]

    @property
    def target(self) -> str:
        """What the engine opens: the checkpoint, the URL, or what stands after the colon."""
        match = _KIND.match(self.spec)
        return self.spec if match is None or self.kind == "http" else match[2]

    @property
    def known_options(self) -> tuple[str, ...] | None:
        """Names of the options of its kind; None for kinds of plugins, which check their own."""
        return _OPTIONS.get(self.kind)

    def check_options(self, owner: str = "", settings: Sequence[str] = ()) -> None:
        """Refuse options that its kind of engine does not have; opens nothing.

        Args:
            owner: Who took the options together with its own settings, for the message.
            settings: Those settings; a misspelt one of them ends up among the options.

        Raises:
            ConfigError: If an option is unknown; the nearest known name is given.
        """
        known = self.known_options
        if known is None:
            return
        for name, _ in self.options:
            if name not in known:
                engine = f"engine {self.spec!r}"
                raise ConfigError(
                    f"{owner or engine} has no option {name!r}"
                    + (f", and neither has {engine}" if owner else ""),
                    hint=suggest(name, (*settings, *known)),
                )

    def __str__(self) -> str:
        if not self.options:
            return self.spec
        shown = mask_keys(dict(self.options))
        return f"{self.spec} ({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def __repr__(self) -> str:
        return f"EngineSpec({str(self)!r})"


def is_key(name: str) -> bool:
    """Whether an option of this name holds a key of a server."""
    return "key" in name


def mask_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for logs and messages: keys of servers hidden."""
    return {name: "***" if is_key(name) else value for name, value in options.items()}


def _absolute(text: str) -> str:
    """Return an existing local path as an absolute one; anything else unchanged."""
    path = os.path.expanduser(text)
    # `tiny` is the embedded checkpoint, even beside a folder of that name.
    if text and text != "tiny" and os.path.exists(path):
        return os.path.abspath(path)
    return text
