"""The entry-point module of both plugin systems; it imports neither docling nor torch.

Group ``mdiff_adapters``: the records below. Group ``docling``: the three callables, which docling
calls when it builds the list of engines of a stage and which import the classes only then.
"""

from __future__ import annotations

from typing import Any

from mdiff_adapters.adapter import AdapterInfo
from mdiff_adapters.hookspecs import hookimpl

_REQUIRES = {"docling-slim": ">=2.130"}


@hookimpl
def mdiff_register_adapters() -> list[AdapterInfo]:
    """Return the engines and pipelines that this plugin brings to docling."""

    def info(name: str, target: str, summary: str) -> AdapterInfo:
        return AdapterInfo(
            name=name,
            framework="docling",
            factory=f"docling_mdiff:{target}",
            summary=summary,
            requires=_REQUIRES,
        )

    return [
        info("docling-ocr", "MDiffOcrModel", "docling OCR engine 'mdiff_ocr'"),
        info("docling-layout", "MDiffLayoutModel", "docling layout engine 'mdiff_layout'"),
        info("docling-table", "MDiffTableModel", "docling table engine 'mdiff_table'"),
        info("docling-pdf", "MDiffPdfPipeline", "docling pipeline with formulas and model order"),
        info("docling-vlm", "MDiffVlmPipeline", "docling pipeline that reads whole pages"),
    ]


def ocr_engines() -> dict[str, list[type[Any]]]:
    """Return the OCR engine, and make the preset for a server known to docling.

    docling has no hook for presets. It builds the list of OCR engines before it looks up
    ``--vlm-model``, which is why the preset is registered here.
    """
    from docling_mdiff.ocr import MDiffOcrModel
    from docling_mdiff.presets import register_preset

    register_preset()
    return {"ocr_engines": [MDiffOcrModel]}


def layout_engines() -> dict[str, list[type[Any]]]:
    """Return the layout engine."""
    from docling_mdiff.layout import MDiffLayoutModel

    return {"layout_engines": [MDiffLayoutModel]}


def table_structure_engines() -> dict[str, list[type[Any]]]:
    """Return the table engine."""
    from docling_mdiff.table import MDiffTableModel

    return {"table_structure_engines": [MDiffTableModel]}
