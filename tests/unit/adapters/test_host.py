"""The plugin host: isolated loading with reasons."""

from __future__ import annotations

import json
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mdiff_adapters import host as host_module
from mdiff_adapters.adapter import AdapterInfo, EngineInfo
from mdiff_adapters.config import HostSettings
from mdiff_adapters.engines import EngineSpec, open_engine
from mdiff_adapters.errors import (
    ConfigError,
    DuplicateAdapterError,
    EngineUnavailableError,
    PluginError,
)
from mdiff_adapters.hookspecs import PROJECT
from mdiff_adapters.host import PluginHost, list_plugins, load_plugins, resolve

HEAD = """
from mdiff_adapters.adapter import AdapterInfo, EngineInfo, SegmenterInfo
from mdiff_adapters.hookspecs import hookimpl
"""
GOOD = (
    HEAD
    + """
@hookimpl
def mdiff_register_adapters():
    return [AdapterInfo(name="good", framework="none", factory="json:dumps")]
"""
)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a plugin module and return its entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name: str, source: str, entry_name: str | None = None) -> EntryPoint:
        module = f"plugin_under_test_{name}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        made.append(module)
        return EntryPoint(entry_name or name, module, PROJECT)

    yield make
    for module in made:
        sys.modules.pop(module, None)


def load(*entry_points: EntryPoint, **settings) -> PluginHost:
    return load_plugins(entry_points, HostSettings(**settings))


def by_name(host: PluginHost) -> dict:
    return {record.name: record for record in host.records}


def test_a_good_plugin_is_usable_and_nothing_it_names_is_imported(plugin) -> None:
    source = GOOD.replace("json:dumps", "a_module_that_is_not_there:Loader")
    host = load(plugin("good", source))
    record = by_name(host)["good"]
    assert (record.status, record.reason, record.error) == ("ok", "", None)
    assert host.adapters["good"].factory == "a_module_that_is_not_there:Loader"
    with pytest.raises(PluginError, match="no module 'a_module_that_is_not_there'"):
        resolve(host.adapters["good"].factory)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError: No module named 'a_package"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def (", "SyntaxError"),
        (HEAD + "@hookimpl\ndef mdiff_register_adapters(): raise KeyError('x')", "KeyError: 'x'"),
        (HEAD + "@hookimpl\ndef mdiff_register_adapter(): return []", "unknown hook"),
        (HEAD + "@hookimpl\ndef mdiff_register_engines(spec): return []", "Argument(s) {'spec'}"),
        (HEAD + "@hookimpl\ndef mdiff_register_engines(): return ['x']",
         "mdiff_register_engines returned str, expected EngineInfo"),
        (HEAD + "@hookimpl\ndef mdiff_register_adapters():\n"
         "    return [EngineInfo(name='e', factory='a:b')]", "expected AdapterInfo"),
        (HEAD + "@hookimpl\ndef mdiff_register_engines():\n"
         "    return [EngineInfo(name='e', factory='not a target')]", "is not a target"),
        (HEAD + "@hookimpl\ndef mdiff_register_engines():\n"
         "    return [EngineInfo(name='', factory='a:b')]", "name is empty"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_listed_with_its_reason_and_stops_nobody(
    plugin, source: str, reason: str
) -> None:
    host = load(plugin("bad", source), plugin("good", GOOD))
    records = by_name(host)
    assert records["bad"].status == "failed"
    assert reason in records["bad"].reason
    assert records["bad"].error is not None
    assert records["good"].status == "ok"
    assert "good" in host.adapters


def test_ctrl_c_is_not_swallowed(plugin) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(plugin("interrupted", "raise KeyboardInterrupt"))


def test_one_raising_hook_spares_the_hooks_of_others_that_loaded_before(plugin) -> None:
    raising = HEAD + "@hookimpl\ndef mdiff_register_adapters(): raise RuntimeError('late')"
    host = load(plugin("good", GOOD), plugin("raising", raising), plugin(
        "other", GOOD.replace('"good"', '"other"'),
    ))  # fmt: skip
    assert set(host.adapters) == {"good", "other"}


def test_a_requirement_is_checked_without_importing_it(plugin) -> None:
    def requiring(**requires: str) -> str:
        text = repr({name.replace("_", "-"): spec for name, spec in requires.items()})
        return GOOD.replace('json:dumps"', f'json:dumps", requires={text}')

    host = load(
        plugin("absent", requiring(no_such_distribution=">=1")),
        plugin("old", requiring(pluggy=">=99")),
        plugin("nonsense", requiring(pluggy="about 3")),
        plugin("fine", requiring(pluggy=">=1,<99")),
    )
    records = by_name(host)
    assert records["absent"].status == "missing-dependency"
    assert 'pip install -U "no-such-distribution>=1"' in records["absent"].reason
    assert records["old"].status == "incompatible"
    assert "is installed, good needs >=99" in records["old"].reason
    assert records["nonsense"].status == "failed"
    assert records["fine"].status == "ok"


def test_another_hook_version_is_incompatible(plugin) -> None:
    source = GOOD.replace('json:dumps"', 'json:dumps", api_version=99')
    assert by_name(load(plugin("future", source)))["future"].status == "incompatible"


def test_duplicates_are_reported_and_the_first_stays(plugin) -> None:
    first, second = plugin("first", GOOD), plugin("second", GOOD)
    same_name = plugin("third", GOOD.replace('"good"', '"third"'), entry_name="first")
    twice = plugin("twice", GOOD.replace("return [", "return [AdapterInfo(name='good2', "
                   "framework='x', factory='a:b'), AdapterInfo(name='good2', framework='x', "
                   "factory='c:d')] or ["))  # fmt: skip
    host = load(first, second, same_name, twice)
    statuses = [record.status for record in host.records[1:]]
    assert statuses == ["ok", "duplicate", "duplicate", "duplicate"]
    assert "already registered by plugin 'first'" in host.records[2].reason
    assert "the name is taken by plugin_under_test_first" in host.records[3].reason
    assert "third" not in host.adapters
    assert host.adapters["good2"].factory == "a:b"


def test_a_plugin_cannot_take_a_builtin_kind(plugin) -> None:
    source = (
        HEAD
        + """
@hookimpl
def mdiff_register_engines():
    return [EngineInfo(name="http", factory="evil:Engine"),
            EngineInfo(name="echo", factory="echo:Engine")]
"""
    )
    host = load(plugin("greedy", source))
    assert by_name(host)["greedy"].status == "duplicate"
    assert host.engines["http"].factory.startswith("mdiff_adapters.")
    assert host.engines["echo"].factory == "echo:Engine"


def test_allow_and_deny_lists_prevent_the_import(plugin, monkeypatch) -> None:
    entry_points = [plugin("one", GOOD), plugin("two", "raise AssertionError('imported')")]
    host = load(*entry_points, load=("one",))
    assert by_name(host)["two"].status == "disabled"
    assert by_name(host)["two"].reason == "not named in MDIFF_LOAD_PLUGINS"
    host = load(*entry_points, disable=("two", "one"), load=("one", "two"))
    assert [record.status for record in host.records] == ["ok", "disabled", "disabled"]
    assert load(*entry_points, load=()).adapters == {}

    monkeypatch.setenv("MDIFF_LOAD_PLUGINS", "")
    assert [r.status for r in load_plugins(entry_points).records] == ["ok", "disabled", "disabled"]
    monkeypatch.setenv("MDIFF_LOAD_PLUGINS", " one , other")
    monkeypatch.setenv("MDIFF_DISABLE_PLUGINS", "two")
    assert [r.status for r in load_plugins(entry_points).records] == ["ok", "ok", "disabled"]


def test_strict_raises_and_listing_still_does_not(plugin, monkeypatch) -> None:
    bad = plugin("bad", "import a_package_that_is_not_there")
    with pytest.raises(PluginError, match=r"adapter bad: failed: ModuleNotFoundError") as raised:
        load(bad, strict=True)
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    with pytest.raises(DuplicateAdapterError):
        load(plugin("a", GOOD), plugin("b", GOOD), strict=True)
    monkeypatch.setenv("MDIFF_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError):
        load_plugins([bad])
    assert [record.status for record in list_plugins([bad])] == ["ok", "failed"]


def test_damaged_metadata_of_one_distribution_hides_nobody(tmp_path: Path, monkeypatch) -> None:
    """importlib.metadata.entry_points() raises for all of them."""
    cases = {
        "malformed": ("Name: malformed\nVersion: 1\n", "[mdiff_adapters]\nno equals sign\n"),
        "nameless": ("", "[mdiff_adapters]\nx = y.z\n"),
        "unrelated": ("Name: unrelated\nVersion: 1\n", "[console_scripts]\nno equals sign\n"),
    }
    for name, (metadata, entry_points) in cases.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}")
        (folder / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    records = {record.name: record for record in list_plugins()}
    for name in ("malformed", "nameless"):
        assert records[f"{name}-1.dist-info"].status == "failed"
        assert "metadata cannot be read" in records[f"{name}-1.dist-info"].reason
    assert records["langchain"].status == "ok"
    assert not any("unrelated" in name for name in records)


def test_the_listing_is_json(plugin) -> None:
    records = list_plugins([plugin("bad", "raise ValueError('x')"), plugin("good", GOOD)])
    listed = json.loads(json.dumps([record.to_dict() for record in records]))
    assert [entry["status"] for entry in listed] == ["ok", "failed", "ok"]
    assert listed[1]["error"] == "ValueError: x"
    assert listed[2]["adapters"][0]["factory"] == "json:dumps"
    assert {engine["name"] for engine in listed[0]["engines"]} >= {"checkpoint", "http", "replay"}


def test_every_builtin_target_exists() -> None:
    host = load()
    for info in (*host.engines.values(), *host.segmenters.values()):
        assert callable(resolve(info.factory)), info


def test_the_installed_plugins_are_usable() -> None:
    records = {record.name: record for record in list_plugins()}
    for name in ("langchain", "llama-index", "docling"):
        assert records[name].status == "ok", records[name].reason
        assert records[name].version


def test_an_engine_kind_of_a_plugin_opens_and_a_failed_plugin_is_named(plugin, monkeypatch) -> None:
    source = (
        HEAD
        + """
from mdiff_adapters.testing import ScriptedEngine

@hookimpl
def mdiff_register_engines():
    return [EngineInfo(name="mine", factory=__name__ + ":build")]

def build(spec):
    return ScriptedEngine(lambda request: spec.target, name=spec.spec)
"""
    )
    host = load(plugin("mine", source), plugin("bad", "raise ValueError('broken')"))
    monkeypatch.setattr(host_module, "_installed", lambda settings: host)
    with open_engine("mine:hello") as engine:
        assert engine.name == "mine:hello"
    with pytest.raises(EngineUnavailableError, match=r"known: .*mine:.*plugin bad: failed"):
        open_engine("bad:hello")


def test_builtin_kinds_open_without_looking_at_plugins(monkeypatch) -> None:
    def fail(settings: HostSettings) -> PluginHost:
        raise AssertionError("plugins were loaded")

    monkeypatch.setattr(host_module, "_installed", fail)
    assert host_module.engine_factory("scripted")(EngineSpec("scripted:")).name == "scripted:"


def test_resolve_passes_on_the_missing_package_of_a_target(plugin) -> None:
    entry_point = plugin("needy", "import a_package_that_is_not_there\nx = 1")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        resolve(f"{entry_point.value}:x")
    with pytest.raises(PluginError, match="no attribute 'nope'"):
        resolve("json:nope")


def test_records_are_checked_when_they_are_made() -> None:
    with pytest.raises(ConfigError, match="module:attribute"):
        AdapterInfo(name="x", framework="y", factory="no_colon")
    assert EngineInfo(name="x", factory="a.b:C.d").to_dict() == {
        "name": "x", "factory": "a.b:C.d", "summary": "", "requires": {}, "api_version": 1,
    }  # fmt: skip


def test_every_hook_and_every_setting_is_documented() -> None:
    from mdiff_adapters import config, hookspecs

    text = (Path(__file__).resolve().parents[3] / "docs" / "plugins.md").read_text("utf-8")
    hooks = [name for name in vars(hookspecs) if name.startswith("mdiff_")]
    assert len(hooks) == 3
    for name in hooks:
        assert f"### `{name}() -> " in text
        assert "Example::" in getattr(hookspecs, name).__doc__
    for name in ("MDIFF_LOAD_PLUGINS", "MDIFF_DISABLE_PLUGINS", "MDIFF_STRICT_PLUGINS"):
        assert f"`{name}`" in text and name in (config.__doc__ or "")
