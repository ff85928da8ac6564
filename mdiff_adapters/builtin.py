"""What the house brings along, registered through the hooks that plugins use."""

from __future__ import annotations

from typing import Any

from mdiff_adapters.adapter import EngineInfo, SegmenterInfo
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.hookspecs import hookimpl


@hookimpl
def mdiff_register_engines() -> list[EngineInfo]:
    """Return the engine kinds of :mod:`mdiff_adapters.engines`."""
    return [
        EngineInfo(
            name="checkpoint",
            factory="mdiff_adapters.engines.local:LocalEngine.from_spec",
            summary="a model in this process: 'tiny', a folder, or a hub name",
        ),
        EngineInfo(
            name="modelscope",
            factory="mdiff_adapters.engines.local:LocalEngine.from_spec",
            summary="a checkpoint from ModelScope, modelscope:org/name",
        ),
        EngineInfo(
            name="http",
            factory="mdiff_adapters.engines.http:HttpEngine.from_spec",
            summary="an OpenAI-compatible server",
        ),
        EngineInfo(
            name="replay",
            factory="mdiff_adapters.builtin:open_replay",
            summary="recorded answers, replay:/folder",
        ),
        EngineInfo(
            name="reference",
            factory="mdiff_adapters.engines.reference:ReferenceEngine.from_spec",
            summary="upstream's own code through transformers, reference:/path",
        ),
        EngineInfo(
            name="scripted",
            factory="mdiff_adapters.testing.engine:ScriptedEngine.from_spec",
            summary="fixed answers without a model, for tests",
        ),
    ]


@hookimpl
def mdiff_register_segmenters() -> list[SegmenterInfo]:
    """Return the segmenters of :mod:`mdiff_adapters.segmenters`."""
    return [
        SegmenterInfo(
            name="lines",
            factory="mdiff_adapters.segmenters.lines:LineSegmenter",
            summary="text lines found by a detector, for checkpoints that read pieces of lines",
        ),
        SegmenterInfo(
            name="model",
            factory="mdiff_adapters.segmenters.model:ModelSegmenter",
            summary="the model's own layout task",
        ),
    ]


def open_replay(spec: EngineSpec) -> Any:
    """Return the engine of ``replay:/folder``."""
    from mdiff_adapters.engines.replay import ReplayEngine

    options: dict[str, Any] = dict(spec.options)
    return ReplayEngine(spec.target, **options)
