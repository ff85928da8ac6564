"""A ready converter, for scripts and for loaders of other frameworks that take one."""

from __future__ import annotations

from typing import Any, Literal

from docling.backend.image_backend import ImageDocumentBackend
from docling.datamodel.base_models import InputFormat
from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption

from docling_mdiff.options import (
    MDiffLayoutOptions,
    MDiffOcrOptions,
    MDiffPdfPipelineOptions,
    MDiffTableOptions,
    MDiffVlmPipelineOptions,
)


def make_converter(
    engine: str | None = None,
    *,
    pipeline: Literal["pdf", "vlm"] = "pdf",
    engine_options: dict[str, Any] | None = None,
    **options: Any,
) -> DocumentConverter:
    """Return a converter for PDFs and images that runs on our engine and nothing else.

    Args:
        engine: Spec string of the engine; None takes ``MDIFF_DOCLING_ENGINE``, else ``tiny``.
        pipeline: ``pdf`` keeps the text of born-digital pages and reads the rest; ``vlm`` reads
            every page as an image.
        engine_options: Options of the engine, for example ``{"dtype": "bfloat16"}``.
        **options: Fields of :class:`~docling_mdiff.MDiffPdfPipelineOptions` or
            :class:`~docling_mdiff.MDiffVlmPipelineOptions`.

    Returns:
        The converter. Nothing is loaded before its first document.

    Raises:
        ValueError: If ``pipeline`` or an option is unknown, or out of its range.
    """
    common: dict[str, Any] = {}
    if engine is not None:
        common["engine"] = engine
    if engine_options is not None:
        common["engine_options"] = engine_options
    pipeline_options: MDiffPdfPipelineOptions | MDiffVlmPipelineOptions
    if pipeline == "vlm":
        from docling_mdiff.vlm_pipeline import MDiffVlmPipeline as pipeline_cls

        pipeline_options = MDiffVlmPipelineOptions(**common, **options)
    elif pipeline == "pdf":
        from docling_mdiff.pdf_pipeline import MDiffPdfPipeline as pipeline_cls

        stages = {
            "ocr_options": MDiffOcrOptions(**common),
            "layout_options": MDiffLayoutOptions(**common),
            "table_structure_options": MDiffTableOptions(**common),
        }
        pipeline_options = MDiffPdfPipelineOptions(**{**stages, **options})
    else:
        raise ValueError(f"pipeline = {pipeline!r} is unknown (allowed: 'pdf', 'vlm')")
    settings: dict[str, Any] = {
        "pipeline_cls": pipeline_cls,
        "pipeline_options": pipeline_options,
    }
    return DocumentConverter(
        allowed_formats=[InputFormat.PDF, InputFormat.IMAGE],
        format_options={
            InputFormat.PDF: PdfFormatOption(**settings),
            InputFormat.IMAGE: ImageFormatOption(**settings, backend=ImageDocumentBackend),
        },
    )
