"""The hooks of the plugin host.

A plugin is a module named by an entry point in the group ``mdiff_adapters``. It imports nothing
heavy: its hooks return records that name their targets as ``module:attribute``. Hooks may grow
arguments, never lose them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from mdiff_adapters.adapter import AdapterInfo, EngineInfo, SegmenterInfo

PROJECT = "mdiff_adapters"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def mdiff_register_adapters() -> Iterable[AdapterInfo]:  # type: ignore[empty-body]
    """Return the framework adapters of this plugin.

    Example::

        @hookimpl
        def mdiff_register_adapters():
            return [AdapterInfo(name="langchain", framework="langchain",
                                factory="langchain_mdiff:MDiffLoader",
                                requires={"langchain-core": ">=1.0,<2"})]
    """


@hookspec
def mdiff_register_engines() -> Iterable[EngineInfo]:  # type: ignore[empty-body]
    """Return the engine kinds of this plugin; ``open_engine("<name>:rest")`` finds them.

    Example::

        @hookimpl
        def mdiff_register_engines():
            return [EngineInfo(name="echo", factory="mdiff_echo.engine:open_echo")]
    """


@hookspec
def mdiff_register_segmenters() -> Iterable[SegmenterInfo]:  # type: ignore[empty-body]
    """Return the segmenters of this plugin; ``DocumentParser(segmenter="<name>")`` finds them.

    Example::

        @hookimpl
        def mdiff_register_segmenters():
            return [SegmenterInfo(name="whole-page", factory="mdiff_echo.page:WholePage")]
    """
