"""One live engine a process and spec: built on first use, shared by all threads, closed at exit."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from mdiff_adapters.engines.base import Engine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, EngineError, EngineUnavailableError, MDiffError
from mdiff_core.config import suggest


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    engine: Engine | None = None


class EngineRegistry:
    """The live engines of one process.

    A slot has a lock of its own, so that building one engine (seconds, gigabytes) does not hold up
    the others. A forked child starts empty: threads and devices do not survive a fork.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all engines without closing them; for a forked child, which does not own them."""
        self._lock = threading.Lock()
        self._slots: dict[EngineSpec, _Slot] = {}
        self._pid = os.getpid()

    def open(self, spec: EngineSpec) -> Engine:
        """Return the engine of ``spec``; build it when there is none, or the last one was closed.

        Args:
            spec: The engine's spec.

        Returns:
            The shared engine.

        Raises:
            EngineUnavailableError: If its kind is unknown, or it cannot be built.
            ConfigError: If its kind is one of ours and has no such option.
            MDiffError: What the engine itself says about its checkpoint or settings.
        """
        if self._pid != os.getpid():  # a fork that bypassed `os.register_at_fork`
            self.forget()
        with self._lock:
            slot = self._slots.setdefault(spec, _Slot())
        with slot.lock:
            if slot.engine is None or getattr(slot.engine, "closed", False):
                slot.engine = _build(spec)
            return slot.engine

    def close(self) -> None:
        """Close all engines; a later :meth:`open` builds new ones."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), {}
        for slot in slots:
            with slot.lock:
                if slot.engine is not None:
                    slot.engine.close()
                    slot.engine = None


def _build(spec: EngineSpec) -> Engine:
    from mdiff_adapters.host import engine_factory

    factory = engine_factory(spec.kind)
    spec.check_options()
    try:
        engine = factory(spec)
    except (MDiffError, ImportError):
        raise
    except Exception as error:
        raise EngineUnavailableError(
            f"engine {spec} could not be built: {type(error).__name__}: {error}",
            hint="`mdiff-adapters doctor` shows what is installed and what would run",
        ) from error
    if not isinstance(engine, Engine):
        raise EngineError(
            f"the factory of engine kind {spec.kind!r} returned {type(engine).__name__}",
            hint="an engine has name, capabilities, answer() and close()",
        )
    return engine


_registry = EngineRegistry()
# A fork while another thread holds the lock would leave it locked in the child for good.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.forget)
atexit.register(_registry.close)


def open_engine(
    spec: str | os.PathLike[str] | EngineSpec | Engine = "tiny", **options: Any
) -> Engine:
    """Return the engine that a string names; the same one for the same spec in a process.

    Args:
        spec: See :class:`EngineSpec`. An engine object is returned as it is.
        **options: Options of the engine (``device``, ``dtype``, ``model``, ``timeout_s``, …); None
            and ``"auto"`` stand for the engine's own default.

    Returns:
        A live, thread-safe engine. Closing it closes it for everybody who shares it; the next
        ``open_engine`` builds a new one.

    Raises:
        ConfigError: If options come with an engine object, or the spec is malformed.
        EngineUnavailableError: If the kind is unknown, or the engine cannot be built.
    """
    if isinstance(spec, (str, os.PathLike, EngineSpec)):
        return _registry.open(EngineSpec.parse(spec, **options))
    named = [name for name, value in options.items() if value not in (None, "auto")]
    if named:
        raise ConfigError(
            f"options {', '.join(named)} were given with an engine that is already built",
            hint="give them where the engine is built, or pass its spec string",
        )
    if not isinstance(cast("object", spec), Engine):
        raise ConfigError(
            f"engine = {spec!r} is neither a spec string nor an engine",
            hint="give for example 'tiny', a checkpoint folder, or an http:// address",
        )
    return spec


def setting_names(*owners: type[Any]) -> tuple[str, ...]:
    """Return the names of the settings that classes take, without what they only forward."""
    return tuple(
        parameter.name
        for owner in owners
        for parameter in inspect.signature(owner).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    )


def check_options(
    owner: str,
    settings: Sequence[str],
    engine: str | os.PathLike[str] | EngineSpec | Engine,
    options: Mapping[str, Any],
) -> None:
    """Refuse options that nobody will take, where an adapter is made and nothing is opened yet.

    Adapters forward what they do not know, to the parser and from there to the engine; without
    this a misspelt setting is found when the first page is read.

    Args:
        owner: Name of the adapter, for the message.
        settings: Names that the adapter and the parser have.
        engine: The engine that the others are meant for.
        options: What was given to the adapter.

    Raises:
        ConfigError: If neither has an option; the nearest known name is given. Engines of plugins
            check their options themselves, when they are built.
    """
    left = {name: value for name, value in options.items() if name not in settings}
    if isinstance(engine, (str, os.PathLike, EngineSpec)):
        EngineSpec.parse(engine, **left).check_options(owner, settings)
        return
    for name, value in left.items():
        if value not in (None, "auto"):
            raise ConfigError(
                f"{owner} has no option {name!r}, and the engine is already built without it",
                hint=suggest(name, tuple(settings)),
            )


def close_engines() -> None:
    """Close every engine that :func:`open_engine` built in this process and free its memory."""
    _registry.close()
