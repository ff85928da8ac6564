"""One live engine a process and spec."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mdiff_adapters.engines import EngineSpec, close_engines, open_engine
from mdiff_adapters.engines.registry import EngineRegistry
from mdiff_adapters.errors import ConfigError, EngineUnavailableError
from mdiff_adapters.testing import ScriptedEngine


@pytest.fixture(autouse=True)
def fresh_registry():
    close_engines()
    yield
    close_engines()


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        ("tiny", "checkpoint", "tiny"),
        ("org/name", "checkpoint", "org/name"),
        ("http://host:1/v1", "http", "http://host:1/v1"),
        ("https://host", "http", "https://host"),
        ("replay:some/folder", "replay", "some/folder"),
        ("reference:model", "reference", "model"),
        ("echo:", "echo", ""),
        ("C:\\models\\v1", "checkpoint", "C:\\models\\v1"),
    ],
)
def test_a_spec_says_kind_and_target(text: str, kind: str, target: str) -> None:
    spec = EngineSpec.parse(text)
    assert (spec.kind, spec.target) == (kind, target)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_local_folders_become_absolute_so_that_workers_find_them(tmp_path, monkeypatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert EngineSpec.parse("model").spec == str(tmp_path / "model")
    assert EngineSpec.parse(Path("model")).spec == str(tmp_path / "model")
    assert EngineSpec.parse("replay:model").spec == f"replay:{tmp_path / 'model'}"
    assert EngineSpec.parse("tiny").spec == "tiny"


def test_spelling_out_a_default_is_the_same_engine() -> None:
    assert EngineSpec.parse("tiny", device="auto", dtype=None) == EngineSpec.parse("tiny")
    a = EngineSpec.parse("tiny", dtype="float32", device="cpu")
    assert a == EngineSpec.parse(EngineSpec.parse("tiny", device="cpu"), dtype="float32")
    assert len({a, EngineSpec.parse("tiny")}) == 2


def test_bad_specs_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="empty"):
        EngineSpec.parse("  ")
    with pytest.raises(ConfigError, match="hashable"):
        EngineSpec.parse("tiny", tasks={"text": 1})
    with pytest.raises(ConfigError, match="neither a spec string nor an engine"):
        open_engine(3)  # type: ignore[arg-type]


def test_one_engine_a_spec_also_with_eight_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        engines = list(pool.map(lambda _: open_engine("scripted:"), range(64)))
    assert len({id(engine) for engine in engines}) == 1
    assert open_engine("scripted:", delay_s=0.5) is not engines[0]


def test_an_engine_object_passes_unchanged_and_takes_no_options() -> None:
    engine = ScriptedEngine()
    assert open_engine(engine) is engine
    assert open_engine(engine, device="auto", dtype=None) is engine
    with pytest.raises(ConfigError, match="device were given with an engine"):
        open_engine(engine, device="cuda")


def test_a_closed_engine_is_replaced() -> None:
    with open_engine("scripted:") as engine:
        assert open_engine("scripted:") is engine
    assert engine.closed  # type: ignore[attr-defined]
    assert open_engine("scripted:") is not engine


def test_close_engines_closes_and_forgets() -> None:
    engine = open_engine("scripted:")
    close_engines()
    assert engine.closed  # type: ignore[attr-defined]
    assert open_engine("scripted:") is not engine


def test_building_one_engine_does_not_hold_up_another(monkeypatch) -> None:
    started, release = threading.Event(), threading.Event()

    def slow(spec: EngineSpec) -> ScriptedEngine:
        started.set()
        assert release.wait(10)
        return ScriptedEngine(name=spec.spec)

    factories = {"slow": slow, "fast": lambda spec: ScriptedEngine(name=spec.spec)}
    monkeypatch.setattr("mdiff_adapters.host.engine_factory", factories.__getitem__)
    registry = EngineRegistry()
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(registry.open, EngineSpec("slow:"))
        assert started.wait(10)
        assert registry.open(EngineSpec("fast:")).name == "fast:"
        release.set()
        assert building.result(10).name == "slow:"


def test_a_failing_factory_is_an_engine_error_and_is_tried_again(monkeypatch) -> None:
    attempts = []

    def factory(spec: EngineSpec) -> ScriptedEngine:
        attempts.append(spec)
        if len(attempts) == 1:
            raise KeyError("weights")
        return ScriptedEngine()

    monkeypatch.setattr("mdiff_adapters.host.engine_factory", lambda kind: factory)
    registry = EngineRegistry()
    with pytest.raises(EngineUnavailableError, match="KeyError: 'weights'"):
        registry.open(EngineSpec("xx:"))
    assert isinstance(registry.open(EngineSpec("xx:")), ScriptedEngine)


def test_a_factory_that_returns_something_else_is_named(monkeypatch) -> None:
    monkeypatch.setattr("mdiff_adapters.host.engine_factory", lambda kind: lambda spec: "engine")
    with pytest.raises(Exception, match="factory of engine kind 'xx' returned str"):
        EngineRegistry().open(EngineSpec("xx:"))


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(EngineUnavailableError, match=r"no engine kind 'nope'.*replay:"):
        open_engine("nope:x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_builds_its_own_engine_even_if_a_lock_was_held() -> None:
    # In a fresh interpreter: forking pytest with its threads would test something else.
    code = """
import os, sys
from mdiff_adapters.engines import open_engine, registry
engine = open_engine("scripted:")
registry._registry._lock.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if open_engine("scripted:") is not engine else 3)
_, status = os.waitpid(child, 0)
registry._registry._lock.release()
assert os.waitstatus_to_exitcode(status) == 0
assert open_engine("scripted:") is engine and not engine.closed
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=240)


def test_engines_are_closed_at_exit_without_noise() -> None:
    code = """
from mdiff_adapters.engines import open_engine
engine = open_engine("scripted:")
import atexit
atexit._run_exitfuncs()
print(engine.closed)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=240, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")


def test_importing_the_package_loads_no_torch_and_no_framework() -> None:
    code = """
import sys
import mdiff_adapters, mdiff_adapters.engines, mdiff_adapters.host, mdiff_adapters.testing
from mdiff_adapters.host import list_plugins
list_plugins()
heavy = {"torch", "transformers", "langchain_core", "docling", "onnxruntime", "cv2", "httpx"}
heavy |= {"llama_index.core"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=240, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
