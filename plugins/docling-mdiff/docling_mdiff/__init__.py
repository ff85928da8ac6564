"""Docling engines and pipelines on block-diffusion OCR.

Importing this package loads neither docling nor torch; each name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "MDiffCluster": "convert",
    "MDiffLayoutModel": "layout",
    "MDiffLayoutOptions": "options",
    "MDiffOcrModel": "ocr",
    "MDiffOcrOptions": "options",
    "MDiffPdfPipeline": "pdf_pipeline",
    "MDiffPdfPipelineOptions": "options",
    "MDiffTableModel": "table",
    "MDiffTableOptions": "options",
    "MDiffVlmPipeline": "vlm_pipeline",
    "MDiffVlmPipelineOptions": "options",
    "make_converter": "converter",
    "server_vlm_options": "presets",
}

__all__ = [*sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"docling_mdiff.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
