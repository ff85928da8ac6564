"""A ready converter, for scripts and for loaders of other frameworks that take one."""

from __future__ import annotations

from typing import Any, Literal

from docling.backend.image_backend import ImageDocumentBackend
from docling.datamodel.base_models import InputFormat
from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption

from docling_mdiff.options import (
    EngineOptions,
    MDiffLayoutOptions,
    MDiffOcrOptions,
    MDiffPdfPipelineOptions,
    MDiffTableOptions,
    MDiffVlmPipelineOptions,
)
from mdiff_core.config import suggest

_STAGES: dict[str, type[EngineOptions]] = {
    "ocr_options": MDiffOcrOptions,
    "layout_options": MDiffLayoutOptions,
    "table_structure_options": MDiffTableOptions,
}


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
            :class:`~docling_mdiff.MDiffVlmPipelineOptions`. Fields of the three stages, such as
            ``threshold`` and ``header_rows``, go to every stage of ``pdf`` that has them, except
            one whose options are given whole (``ocr_options=…``).

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

        pipeline_options = _pdf_options(common, options)
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


def _pdf_options(common: dict[str, Any], options: dict[str, Any]) -> MDiffPdfPipelineOptions:
    """Hand each option to the pipeline or to the stages that have it; refuse what nobody takes."""
    own = set(MDiffPdfPipelineOptions.model_fields)
    built = {name: stage for name, stage in _STAGES.items() if name not in options}
    for name in options:
        having = [stage for stage, kind in _STAGES.items() if name in kind.model_fields]
        if name not in own and not having:
            known = sorted(own.union(*(kind.model_fields for kind in _STAGES.values())))
            raise ValueError(f"pipeline 'pdf' has no option {name!r} ({suggest(name, known)})")
        if having and not set(having) & set(built):
            raise ValueError(f"{name} would have no effect: set it in {' and '.join(having)}")
    stages = {
        stage: kind(**common, **{k: v for k, v in options.items() if k in kind.model_fields})
        for stage, kind in built.items()
    }
    return MDiffPdfPipelineOptions(**stages, **{k: v for k, v in options.items() if k in own})
