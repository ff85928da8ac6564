"""Every built-in engine keeps the contract."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from mdiff_adapters.builtin import mdiff_register_engines
from mdiff_adapters.engines import EngineSpec, Request, open_engine
from mdiff_adapters.engines.http import HttpEngine, HttpOptions
from mdiff_adapters.engines.local import LocalEngine
from mdiff_adapters.engines.reference import ReferenceEngine
from mdiff_adapters.engines.replay import ReplayEngine
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.testing import EngineContract, ScriptedEngine
from mdiff_core import Engine as CoreEngine
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.models.config import ModelConfig
from mdiff_core.segments import prepare_line


def keywords(*callables: Any) -> set[str]:
    return {
        p.name
        for callable_ in callables
        for p in inspect.signature(callable_).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        # The name of an engine is its spec's, not an option.
        ("tiny", keywords(CoreEngine.load, CoreEngine) - {"name"}),
        ("modelscope:a/b", keywords(CoreEngine.load, CoreEngine) - {"name"}),
        ("http://host:1", {field.name for field in dataclasses.fields(HttpOptions)}),
        ("replay:pages", keywords(ReplayEngine)),
        ("reference:folder", keywords(ReferenceEngine) - {"spec"}),
    ],
)
def test_known_options_are_those_that_an_engine_has(spec: str, options: set[str]) -> None:
    """They are written out, so that checking a name imports no engine."""
    assert set(EngineSpec(spec).known_options or ()) == options


@pytest.mark.parametrize("spec", ["tiny", "replay:pages", "reference:folder", "scripted:"])
def test_an_unknown_option_is_refused_before_anything_is_opened(spec: str) -> None:
    with pytest.raises(ConfigError, match=f"engine '{spec}' has no option 'treshold'.*known: "):
        open_engine(spec, treshold=0.5)
    with pytest.raises(ConfigError, match=r"no option 'tabels'.*did you mean 'tables'"):
        open_engine("replay:pages", tabels="otsl")


def test_every_built_in_kind_says_its_options_and_no_other() -> None:
    kinds = {info.name for info in mdiff_register_engines()}
    specs = {kind: "tiny" if kind == "checkpoint" else f"{kind}:x" for kind in kinds}
    assert all(EngineSpec(spec).known_options is not None for spec in specs.values())
    assert EngineSpec("theirs:x").known_options is None


class TestScriptedEngine(EngineContract):
    def make_engine(self) -> ScriptedEngine:
        return ScriptedEngine()


class TestLocalEngine(EngineContract):
    def make_engine(self) -> LocalEngine:
        return LocalEngine.from_spec(EngineSpec.parse("tiny", dtype="fp32"))

    def make_request(self, request_id: str) -> Request:
        line = np.full((28, 60), 255, np.uint8)
        line[8:20, 10:14] = 0
        tiny = ModelConfig.from_folder(resolve_checkpoint("tiny")).capabilities
        [(image, _)] = prepare_line(line, tiny)
        return Request(id=request_id, image=image)


class TestHttpEngine(EngineContract):
    def make_engine(self) -> HttpEngine:
        def serve(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/models"):
                return httpx.Response(200, json={"data": [{"id": "m"}]})
            choice = {"message": {"content": "text"}, "finish_reason": "stop"}
            return httpx.Response(200, json={"choices": [choice]})

        return HttpEngine(
            "http://server", HttpOptions(concurrency=4), transport=httpx.MockTransport(serve)
        )

    def make_request(self, request_id: str) -> Request:
        return Request(id=request_id, image=Image.new("RGB", (40, 40)))
