"""LangChain document loader and blob parsers on block-diffusion OCR.

Importing the package loads no framework, because the plugin host imports it to list it; the first
use of a class does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_mdiff.loader import MDiffLoader
    from langchain_mdiff.parsers import MDiffBlobParser, MDiffImageParser

__all__ = ["MDiffBlobParser", "MDiffImageParser", "MDiffLoader"]

_HOMES = {"MDiffLoader": "loader", "MDiffBlobParser": "parsers", "MDiffImageParser": "parsers"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
