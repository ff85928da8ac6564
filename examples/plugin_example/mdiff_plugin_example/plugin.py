"""What the plugin host imports: names and targets, nothing heavy."""

from mdiff_adapters.adapter import EngineInfo, SegmenterInfo
from mdiff_adapters.hookspecs import hookimpl


@hookimpl
def mdiff_register_engines() -> list[EngineInfo]:
    """``redact:SPEC`` answers like ``SPEC``, with every digit hidden."""
    return [
        EngineInfo(
            name="redact",
            factory="mdiff_plugin_example.engine:RedactingEngine.from_spec",
            summary="another engine, with every digit of its answers hidden",
        )
    ]


@hookimpl
def mdiff_register_segmenters() -> list[SegmenterInfo]:
    """``whole-page`` asks for a page as one text."""
    return [
        SegmenterInfo(
            name="whole-page",
            factory="mdiff_plugin_example.segmenter:WholePage",
            summary="one text request a page, no layout",
        )
    ]
