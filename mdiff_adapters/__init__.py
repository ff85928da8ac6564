"""Document layer and plugin host of mdiff: documents in, ordered typed regions out.

``DocumentParser().parse("scan.pdf").to_markdown()`` needs neither network nor GPU. Importing this
package loads neither torch nor a framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mdiff_adapters.document import BBox, ErrorRecord, ParsedDocument, ParsedPage, Region, TextLine
from mdiff_adapters.engines import DecodeConfig, EngineSpec, close_engines, open_engine
from mdiff_adapters.errors import MDiffError
from mdiff_adapters.tables import Table

if TYPE_CHECKING:
    from mdiff_adapters.parser import DocumentParser

__version__ = "0.1.0"

__all__ = [
    "BBox",
    "DecodeConfig",
    "DocumentParser",
    "EngineSpec",
    "ErrorRecord",
    "MDiffError",
    "ParsedDocument",
    "ParsedPage",
    "Region",
    "Table",
    "TextLine",
    "close_engines",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    if name == "DocumentParser":
        return import_module("mdiff_adapters.parser").DocumentParser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
