"""Segmenters: how a page is cut into requests. Built-in ones are ``lines`` and ``model``."""

from __future__ import annotations

from typing import Any

from mdiff_adapters.engines.base import Capabilities
from mdiff_adapters.errors import ConfigError, PluginError
from mdiff_adapters.segmenters.base import PageImage, Segmenter, SegmenterOptions
from mdiff_core.config import suggest

__all__ = ["PageImage", "Segmenter", "SegmenterOptions", "choose_segmenter", "get_segmenter"]


def choose_segmenter(capabilities: Capabilities) -> str:
    """Return the segmenter that fits an engine.

    Args:
        capabilities: What the engine can be asked.

    Returns:
        ``model`` where it knows the layout task, ``lines`` where it only reads text.
    """
    return "model" if "layout" in capabilities.tasks else "lines"


def get_segmenter(name: str) -> Segmenter:
    """Return a new segmenter by its registered name.

    Args:
        name: ``lines``, ``model`` or a name that a plugin registers.

    Returns:
        The segmenter.

    Raises:
        ConfigError: If no plugin registers the name; the nearest known one is given.
        PluginError: If its factory does not return a segmenter.
    """
    from mdiff_adapters.host import resolve, segmenter_factories

    factories = segmenter_factories()
    if name not in factories:
        raise ConfigError(
            f"there is no segmenter {name!r}", hint=suggest(name, ["auto", *sorted(factories)])
        )
    segmenter: Any = resolve(factories[name])()
    if not isinstance(segmenter, Segmenter):
        raise PluginError(
            f"the factory of segmenter {name!r} returned {type(segmenter).__name__}",
            hint="a segmenter has a name and a read() method",
            adapter=name,
        )
    return segmenter
