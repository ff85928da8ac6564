"""Every built-in engine keeps the contract."""

from __future__ import annotations

import httpx
import numpy as np
from PIL import Image

from mdiff_adapters.engines import EngineSpec, Request
from mdiff_adapters.engines.http import HttpEngine, HttpOptions
from mdiff_adapters.engines.local import LocalEngine
from mdiff_adapters.testing import EngineContract, ScriptedEngine
from mdiff_core.segments import prepare_line


class TestScriptedEngine(EngineContract):
    def make_engine(self) -> ScriptedEngine:
        return ScriptedEngine()


class TestLocalEngine(EngineContract):
    def make_engine(self) -> LocalEngine:
        return LocalEngine.from_spec(EngineSpec.parse("tiny", dtype="fp32"))

    def make_request(self, request_id: str) -> Request:
        line = np.full((28, 60), 255, np.uint8)
        line[8:20, 10:14] = 0
        [(image, _)] = prepare_line(line, segment_px=(896, 28), stretch=2.4)
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
