"""LlamaIndex reader on block-diffusion OCR.

Importing the package loads no framework, because the plugin host imports it to list it; the first
use of the class does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index.readers.mdiff.base import MDiffReader

__all__ = ["MDiffReader"]


def __getattr__(name: str) -> Any:
    if name == "MDiffReader":
        from llama_index.readers.mdiff.base import MDiffReader

        return MDiffReader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
