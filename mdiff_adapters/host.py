"""The plugin host: finds plugins, isolates each, and keeps the reason of those that fail.

Discovery never raises (unless asked to be strict) and imports only the plugin modules themselves,
which name their targets as strings. There is no manager at module level: :func:`load_plugins`
builds one, and tests hand it their own entry points.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, Literal, TypeVar

import pluggy
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from mdiff_adapters import builtin, hookspecs
from mdiff_adapters.adapter import (
    API_VERSION,
    AdapterInfo,
    EngineInfo,
    Registration,
    SegmenterInfo,
)
from mdiff_adapters.config import HostSettings
from mdiff_adapters.errors import (
    DuplicateAdapterError,
    EngineUnavailableError,
    PluginError,
)

logger = logging.getLogger(__name__)

PluginStatus = Literal[
    "ok", "disabled", "missing-dependency", "incompatible", "failed", "duplicate"
]

R = TypeVar("R", bound=Registration)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One plugin and what became of it.

    Attributes:
        name: Name of its entry point.
        target: Value of its entry point.
        distribution: Distribution that brings it; empty where unknown.
        version: Version of that distribution.
        status: ``ok``; ``disabled`` (by allow or deny list, not imported); ``missing-dependency``
            and ``incompatible`` (a required distribution is absent, or of another version);
            ``failed`` (raised, or broke the hook contract); ``duplicate`` (a name was taken).
        reason: Why, and what to do; empty when ok.
        error: The exception, where one was raised.
        adapters: Usable adapters.
        engines: Usable engine kinds.
        segmenters: Usable segmenters.
    """

    name: str
    target: str
    distribution: str = ""
    version: str = ""
    status: PluginStatus = "ok"
    reason: str = ""
    error: BaseException | None = None
    adapters: tuple[AdapterInfo, ...] = ()
    engines: tuple[EngineInfo, ...] = ()
    segmenters: tuple[SegmenterInfo, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, for ``mdiff-adapters plugins --json``."""
        return {
            "name": self.name,
            "target": self.target,
            "distribution": self.distribution,
            "version": self.version,
            "status": self.status,
            "reason": self.reason,
            "error": None if self.error is None else _describe(self.error),
            "adapters": [info.to_dict() for info in self.adapters],
            "engines": [info.to_dict() for info in self.engines],
            "segmenters": [info.to_dict() for info in self.segmenters],
        }


class PluginHost:
    """The plugins of one discovery; build it with :func:`load_plugins`.

    Attributes:
        records: All plugins in the order they were found, the built-in one first.
        adapters: Usable adapters by name.
        engines: Usable engine kinds by name.
        segmenters: Usable segmenters by name.
    """

    def __init__(
        self, entry_points: Iterable[EntryPoint | PluginRecord], settings: HostSettings
    ) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._settings = settings
        self.adapters: dict[str, AdapterInfo] = {}
        self.engines: dict[str, EngineInfo] = {}
        self.segmenters: dict[str, SegmenterInfo] = {}
        self._owners: dict[tuple[type[Registration], str], str] = {}
        self._origins: dict[str, str] = {}
        own = EntryPoint("builtin", builtin.__name__, hookspecs.PROJECT)
        self.records: tuple[PluginRecord, ...] = tuple(
            self._report(found) if isinstance(found, PluginRecord) else self._load(found)
            for found in (own, *entry_points)
        )

    def _load(self, entry_point: EntryPoint) -> PluginRecord:
        dist = entry_point.dist
        record = PluginRecord(
            name=entry_point.name,
            target=entry_point.value,
            distribution=_text(dist.name) if dist else "",
            version=_text(dist.version) if dist else "",
        )
        try:
            self._check_allowed(record.name)
            if record.name in self._origins:
                raise _Refused(
                    "duplicate",
                    f"the name is taken by {self._origins[record.name]}; uninstall one of them, "
                    "or block both with MDIFF_DISABLE_PLUGINS",
                )
            self._origins[record.name] = record.distribution or record.target
            found = self._collect(entry_point)
        except _Refused as refusal:
            return self._report(replace(record, status=refusal.status, reason=str(refusal)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  a plugin that calls sys.exit() stops nobody
            return self._report(
                replace(record, status="failed", reason=_describe(error), error=error)
            )
        usable: list[Registration] = []
        refused: list[_Refused] = []
        for info in found:
            try:
                self._claim(info, record.name)
            except _Refused as refusal:
                refused.append(refusal)
            else:
                usable.append(info)
        record = replace(
            record,
            status=refused[0].status if refused else "ok",
            reason="; ".join(str(refusal) for refusal in refused),
            adapters=_of_type(AdapterInfo, usable),
            engines=_of_type(EngineInfo, usable),
            segmenters=_of_type(SegmenterInfo, usable),
        )
        self.adapters.update({info.name: info for info in record.adapters})
        self.engines.update({info.name: info for info in record.engines})
        self.segmenters.update({info.name: info for info in record.segmenters})
        return self._report(record)

    def _check_allowed(self, name: str) -> None:
        settings = self._settings
        if name == "builtin" and not self._origins:
            return
        if name in settings.disable:
            raise _Refused("disabled", "named in MDIFF_DISABLE_PLUGINS")
        if settings.load is not None and name not in settings.load:
            raise _Refused("disabled", "not named in MDIFF_LOAD_PLUGINS")

    def _collect(self, entry_point: EntryPoint) -> list[Registration]:
        """Import one plugin and call its hooks, and only its hooks."""
        plugin = entry_point.load()
        manager = self._manager
        manager.register(plugin, entry_point.name)
        try:
            manager.check_pending()  # a misspelt hook is otherwise accepted in silence
            others = [other for other in manager.get_plugins() if other is not plugin]
            found: list[Registration] = []
            for hook, kind in _HOOKS.items():
                for records in manager.subset_hook_caller(hook, others)():
                    found.extend(_checked(hook, kind, records))
        except BaseException:
            manager.unregister(plugin)
            raise
        return found

    def _claim(self, info: Registration, plugin: str) -> None:
        """Check one record and take its name, or say why it cannot be used."""
        if info.api_version != API_VERSION:
            raise _Refused(
                "incompatible",
                f"{info.name} is written for hook version {info.api_version}, this "
                f"mdiff-adapters has {API_VERSION}",
            )
        for distribution, specifier in info.requires.items():
            _check_requirement(info.name, distribution, specifier)
        key = (type(info), info.name)
        if key in self._owners:
            raise _Refused(
                "duplicate",
                f"{type(info).__name__} {info.name!r} is already registered by plugin "
                f"{self._owners[key]!r}; the first one stays",
            )
        self._owners[key] = plugin

    def _report(self, record: PluginRecord) -> PluginRecord:
        if record.status in ("ok", "disabled"):
            return record
        if self._settings.strict:
            kind = DuplicateAdapterError if record.status == "duplicate" else PluginError
            raise kind(
                f"{record.status}: {record.reason}",
                adapter=record.name,
                hint="unset MDIFF_STRICT_PLUGINS to go on without it",
            ) from record.error
        logger.info("plugin %s is not usable: %s", record.name, record.reason)
        return record

    def explain(self) -> str:
        """Return one line on the plugins that are not usable; empty if all are."""
        bad = [record for record in self.records if record.status != "ok"]
        return "; ".join(f"plugin {r.name}: {r.status}, {r.reason}" for r in bad)


_HOOKS: dict[str, type[Registration]] = {
    "mdiff_register_adapters": AdapterInfo,
    "mdiff_register_engines": EngineInfo,
    "mdiff_register_segmenters": SegmenterInfo,
}


class _Refused(Exception):
    def __init__(self, status: PluginStatus, reason: str) -> None:
        super().__init__(reason)
        self.status: PluginStatus = status


def _checked(hook: str, kind: type[R], records: Any) -> Iterator[R]:
    for info in [records] if isinstance(records, Registration) else records:
        if not isinstance(info, kind):
            raise PluginError(f"{hook} returned {type(info).__name__}, expected {kind.__name__}")
        yield info


def _of_type(kind: type[R], infos: Iterable[Registration]) -> tuple[R, ...]:
    return tuple(info for info in infos if isinstance(info, kind))


def _check_requirement(owner: str, distribution: str, specifier: str) -> None:
    fix = f'pip install -U "{distribution}{specifier}"'
    try:
        wanted = SpecifierSet(specifier, prereleases=True)
    except InvalidSpecifier as error:
        raise _Refused("failed", f"{owner} requires {distribution}: {error}") from error
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise _Refused(
            "missing-dependency", f"{owner} needs {distribution}, which is not installed - {fix}"
        ) from error
    if version not in wanted:
        raise _Refused(
            "incompatible",
            f"{distribution} {version} is installed, {owner} needs {specifier} - {fix}",
        )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _text(value: Any) -> str:
    # Absent from damaged metadata.
    return value if isinstance(value, str) else ""


def _installed_entry_points() -> Iterator[EntryPoint | PluginRecord]:
    """Yield the entry points of our group, and a failed record for one that cannot be read.

    ``importlib.metadata.entry_points()`` raises for all when one distribution's file is malformed.
    """
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            if f"[{hookspecs.PROJECT}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            # A distribution may be found twice on the path; the first one is what is imported.
            name = canonicalize_name(distribution.metadata["Name"])
            if name not in seen:
                seen.add(name)
                yield from distribution.entry_points.select(group=hookspecs.PROJECT)
        except Exception as error:  # noqa: BLE001  damaged metadata of one must not hide the others
            yield PluginRecord(
                name=getattr(getattr(distribution, "_path", None), "name", "unknown"),
                target="",
                status="failed",
                reason=f"its metadata cannot be read: {_describe(error)}; reinstall it",
                error=error,
            )


def load_plugins(
    entry_points: Iterable[EntryPoint] | None = None, settings: HostSettings | None = None
) -> PluginHost:
    """Discover the plugins of this environment.

    Args:
        entry_points: Entry points in place of the installed ones.
        settings: Allow list, deny list, strictness; by default from the environment.

    Returns:
        The host with its records.

    Raises:
        PluginError: If ``settings.strict`` and a plugin is not usable.
    """
    found = _installed_entry_points() if entry_points is None else entry_points
    return PluginHost(found, settings or HostSettings.from_env())


def list_plugins(entry_points: Iterable[EntryPoint] | None = None) -> tuple[PluginRecord, ...]:
    """Return every plugin with its status; never raises for one, it is the recovery tool.

    Args:
        entry_points: Entry points in place of the installed ones.
    """
    settings = HostSettings.from_env()
    lenient = HostSettings(load=settings.load, disable=settings.disable)
    return load_plugins(entry_points, lenient).records


def resolve(target: str) -> Any:
    """Import ``module:attribute`` and return what it names.

    Raises:
        PluginError: If there is no such module or attribute. An ``ImportError`` for another
            package that the module needs passes unchanged, because it names that package.
    """
    module_name, _, attributes = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise PluginError(f"target {target!r}: there is no module {error.name!r}") from error
        raise
    except AttributeError as error:
        raise PluginError(f"target {target!r}: {error}") from error
    return found


@functools.lru_cache(maxsize=4)
def _installed(settings: HostSettings) -> PluginHost:
    # Looked up for every parser that is built; what is installed does not change under a process.
    return load_plugins(settings=settings)


def engine_factory(kind: str) -> Callable[[Any], Any]:
    """Return the callable that builds engines of ``kind`` from an ``EngineSpec``.

    The built-in kinds are looked up without loading a plugin, so that none can delay or break them.

    Raises:
        EngineUnavailableError: If no usable plugin registers ``kind``.
    """
    host = PluginHost((), HostSettings())
    if kind not in host.engines:
        host = _installed(HostSettings.from_env())
    if kind not in host.engines:
        known = [f"{name}:" for name in host.engines if name not in ("checkpoint", "http")]
        raise EngineUnavailableError(
            f"no engine kind {kind!r}",
            hint="; ".join(
                filter(
                    None,
                    (f"known: tiny, a folder, org/name, http://, {', '.join(known)}",
                     host.explain()),
                )
            ),
        )  # fmt: skip
    factory: Callable[[Any], Any] = resolve(host.engines[kind].factory)
    return factory


def segmenter_factories() -> dict[str, str]:
    """Return the usable segmenters: name to ``module:attribute`` of a factory without arguments."""
    host = _installed(HostSettings.from_env())
    return {name: info.factory for name, info in host.segmenters.items()}
