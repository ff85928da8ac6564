"""Whole pages on our engine: docling's VLM pipeline with a segmenter in place of a VLM.

docling's own two-step path for this family of models loses failed regions without a word, puts
page numbers into the body and wraps formulas twice. Here the page is read by the same segmenters as
everywhere else, and every error of a region is in the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from docling.datamodel.base_models import ConversionStatus, Page
from docling.datamodel.document import ConversionResult
from docling.datamodel.pipeline_options_vlm_model import ResponseFormat
from docling.pipeline.base_pipeline import PaginatedPipeline
from docling.pipeline.vlm_pipeline import VlmPipeline
from docling.utils.profiling import TimeRecorder
from docling_core.types.doc import DoclingDocument, DocumentOrigin

from docling_mdiff.convert import with_header_rows
from docling_mdiff.engine import deadline_s, decode_config, open_stage_engine, record_error
from docling_mdiff.layout import report_page
from docling_mdiff.notes import page_notes
from docling_mdiff.options import MDiffVlmPipelineOptions
from docling_mdiff.pages import Shot, is_ready, render
from docling_mdiff.reading import read_pages, region_problem
from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.export import to_docling

STAGE = "mdiff_vlm"


class MDiffVlmPipeline(VlmPipeline):
    """Reads each page as a whole: layout, then all regions of a batch of pages at once.

    Use it as ``PdfFormatOption(pipeline_cls=MDiffVlmPipeline)``, with
    :class:`~docling_mdiff.MDiffVlmPipelineOptions`. The text layer of a PDF is not used.

    Args:
        pipeline_options: Options of the pipeline.

    Raises:
        MDiffError: If the engine cannot be built.
    """

    def __init__(self, pipeline_options: MDiffVlmPipelineOptions) -> None:
        # docling's VLM pipeline would look for one of its own models in the options.
        PaginatedPipeline.__init__(self, pipeline_options)
        self.pipeline_options: MDiffVlmPipelineOptions = pipeline_options
        self.force_backend_text = False
        self.keep_images = pipeline_options.generate_page_images
        self._engine = open_stage_engine(
            pipeline_options,
            pipeline_options.accelerator_options,
            self.artifacts_path,
            remote_services=pipeline_options.enable_remote_services,
        )
        self._decode = decode_config(pipeline_options)
        self.build_pipe = [self._read_batch]

    def _build_document(self, conv_res: ConversionResult) -> ConversionResult:
        timeout = self.pipeline_options.document_timeout
        if timeout is not None:
            # docling sets it in its PDF pipeline only; here it looks at the time between batches.
            conv_res._conversion_deadline = time.monotonic() + timeout
        return super()._build_document(conv_res)

    def _read_batch(self, conv_res: ConversionResult, page_batch: Iterable[Page]) -> Iterator[Page]:
        pages = list(page_batch)
        options = self.pipeline_options
        with TimeRecorder(conv_res, STAGE):
            ready: list[tuple[Page, Shot]] = []
            for page in pages:
                try:
                    if is_ready(page):
                        shot = render(
                            conv_res, page, scale=options.scale, max_pixels=options.max_pixels
                        )
                        ready.append((page, shot))
                except Exception as error:  # noqa: BLE001  one page must not lose its batch
                    record_error(conv_res, STAGE, page.page_no, f"not rendered: {error}")
            found = read_pages(
                [shot for _, shot in ready],
                self._engine,
                self._decode,
                segmenter=options.segmenter,
                deadline=deadline_s(conv_res),
            )
            for (page, _), parsed in zip(ready, found, strict=True):
                page_notes(page).parsed = parsed
                _report(conv_res, page.page_no, parsed)
        yield from pages

    def _response_format(self) -> ResponseFormat:
        # Asked when pages are joined; a format whose heading levels docling leaves alone.
        return ResponseFormat.DOCTAGS

    def _finalize_page_document(self, conv_res: ConversionResult, page: Page) -> DoclingDocument:
        parsed = page_notes(page).parsed
        if parsed is None:
            document = DoclingDocument(name=f"page_{page.page_no}")
        else:
            rows = self.pipeline_options.header_rows
            regions = tuple(
                replace(r, table=with_header_rows(r.table, rows)) if r.table else r
                for r in parsed.regions
            )
            marked = replace(parsed, regions=regions)
            name = Path(conv_res.input.file).name
            document = to_docling(ParsedDocument(source=name, pages=(marked,), num_pages=1))
        self._finalize_page_output(document, page)
        return document

    def _assemble_document(self, conv_res: ConversionResult) -> ConversionResult:
        path = Path(conv_res.input.file)
        conv_res.document.name = path.stem
        conv_res.document.origin = DocumentOrigin(
            mimetype="application/pdf", filename=path.name, binary_hash=conv_res.input.document_hash
        )
        scores = []
        for page in conv_res.pages:
            parsed = page_notes(page).parsed
            regions = parsed.regions if parsed is not None else ()
            read = [r.confidence for r in regions if r.confidence is not None]
            if read:
                scores.append(float(np.mean(read)))
                conv_res.confidence.pages[page.page_no].ocr_score = scores[-1]
        if scores:
            conv_res.confidence.ocr_score = float(np.mean(scores))
        return conv_res

    def _determine_status(self, conv_res: ConversionResult) -> ConversionStatus:
        parsed = [page_notes(page).parsed for page in conv_res.pages]
        if not any(page is not None and page.status != "failed" for page in parsed):
            return ConversionStatus.FAILURE
        return ConversionStatus.PARTIAL_SUCCESS if conv_res.errors else ConversionStatus.SUCCESS

    @classmethod
    def get_default_options(cls) -> MDiffVlmPipelineOptions:
        """Return options with the default engine."""
        return MDiffVlmPipelineOptions()


def _report(conv_res: ConversionResult, page_no: int, parsed: ParsedPage) -> None:
    """Turn what went wrong on a page into docling's errors, each message once."""
    report_page(conv_res, STAGE, page_no, parsed)
    if parsed.status == "failed":
        return
    problems: dict[tuple[str, bool], list[str]] = {}
    for region in parsed.regions:
        problem = region_problem(region)
        if problem is not None:
            problems.setdefault(problem, []).append(f"{region.type} {region.id}")
    for (message, late), names in problems.items():
        text = f"{', '.join(names)}: {message}"
        record_error(conv_res, STAGE, page_no, text, timeout=late)
