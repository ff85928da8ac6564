"""docling's PDF pipeline, with what no plugin hook can deliver: formulas and the model's order.

docling's reading-order stage empties the text of every formula on purpose, for an enrichment stage
that has no hook, and orders the elements by geometry. This subclass adds one enrichment step and
replaces the order; everything else is docling's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from docling.datamodel.base_models import Page
from docling.datamodel.document import ConversionResult
from docling.datamodel.pipeline_options import ThreadedPdfPipelineOptions
from docling.models.base_model import GenericEnrichmentModel
from docling.models.stages.reading_order.readingorder_model import ReadingOrderModel
from docling.pipeline.standard_pdf_pipeline import StandardPdfPipeline
from docling_core.types.doc import BoundingBox, DocItemLabel, DoclingDocument, NodeItem, TextItem
from PIL import Image

from docling_mdiff.engine import ask, deadline_s, decode_config, open_stage_engine, record_error
from docling_mdiff.notes import page_notes
from docling_mdiff.options import EngineOptions, MDiffPdfPipelineOptions
from docling_mdiff.pages import document_origin
from docling_mdiff.reading_order import MDiffReadingOrderModel
from mdiff_adapters.engines import Engine, Request
from mdiff_adapters.formulas import strip_delimiters, tidy_spacing
from mdiff_adapters.text import strip_special_tokens


@dataclass(slots=True)
class FormulaElement:
    """A formula of the document on its way through the enrichment.

    Attributes:
        item: The document's item.
        conv_res: The conversion, for errors.
        page_no: 1-based page.
        latex: What the OCR engine read; None where it read nothing.
        image: Crop of the formula, where it is to be read now.
    """

    item: TextItem
    conv_res: ConversionResult
    page_no: int
    latex: str | None = None
    image: Image.Image | None = None


class FormulaDeliveryModel(GenericEnrichmentModel[FormulaElement]):
    """Puts LaTeX into the formula items: what OCR read, else read now from the page.

    Args:
        engine: Reads formulas that no stage has read, such as those of born-digital pages; None
            leaves them as they are.
        options: Decoding settings.
    """

    images_scale = 3.0

    def __init__(self, engine: Engine | None, options: EngineOptions) -> None:
        self._engine = engine if engine and "formula" in engine.capabilities.tasks else None
        self._decode = decode_config(options)

    def is_processable(self, doc: DoclingDocument, element: NodeItem) -> bool:
        """Return whether ``element`` is a formula without text."""
        return (
            isinstance(element, TextItem)
            and element.label == DocItemLabel.FORMULA
            and not element.text
            and bool(element.prov)
        )

    def prepare_element(
        self, conv_res: ConversionResult, element: NodeItem
    ) -> FormulaElement | None:
        """Look up what the OCR engine read, or cut the formula out of its page."""
        if not self.is_processable(conv_res.document, element):
            return None
        assert isinstance(element, TextItem)  # noqa: S101  is_processable has checked it
        place = element.prov[0]
        page = next((p for p in conv_res.pages if p.page_no == place.page_no), None)
        if page is None:
            return None
        found = FormulaElement(element, conv_res, page.page_no, _noted_latex(page, place.bbox))
        if found.latex is None and self._engine is not None:
            found.image = page.get_image(scale=self.images_scale, cropbox=place.bbox)
        return found

    def __call__(
        self, doc: DoclingDocument, element_batch: Iterable[FormulaElement]
    ) -> Iterator[NodeItem]:
        """Write the LaTeX of a batch of formulas."""
        elements = list(element_batch)
        self._read([element for element in elements if element.image is not None])
        for element in elements:
            if element.latex:
                element.item.text = tidy_spacing(element.latex)
                element.item.orig = element.item.orig or element.latex
            yield element.item

    def _read(self, elements: list[FormulaElement]) -> None:
        if self._engine is None or not elements:
            return
        requests = [
            Request(
                id=str(i),
                image=e.image.convert("RGB"),
                task="formula",
                decode=self._decode,
                origin={**document_origin(e.conv_res), "page": e.page_no - 1},
            )
            for i, e in enumerate(elements)
            if e.image is not None
        ]
        answers = ask(self._engine, requests, deadline=deadline_s(elements[0].conv_res))
        for i, element in enumerate(elements):
            answer = answers[str(i)]
            if answer.error is not None:
                message = f"formula could not be read: {answer.error}"
                record_error(element.conv_res, "mdiff_formula", element.page_no, message,
                             timeout=answer.finish_reason == "timeout")  # fmt: skip
            else:
                element.latex = strip_delimiters(strip_special_tokens(answer.text).text)


def _noted_latex(page: Page, bbox: BoundingBox) -> str | None:
    """Return the LaTeX that was read in the cluster of which docling made the item in ``bbox``."""
    if page.assembled is None or page.size is None:
        return None
    regions = page_notes(page).regions
    for element in page.assembled.elements:
        box = element.cluster.bbox.to_bottom_left_origin(page.size.height)
        region = regions.get(element.cluster.id)
        if region is not None and region.latex and box.as_tuple() == bbox.as_tuple():
            return region.latex
    return None


class MDiffPdfPipeline(StandardPdfPipeline):
    """docling's standard PDF pipeline with formulas and the model's reading order.

    Use it as ``PdfFormatOption(pipeline_cls=MDiffPdfPipeline)``; without options it runs on our
    three engines. With ``do_formula_enrichment`` the formulas that no OCR has read, those of
    born-digital pages, are read by our engine in place of docling's own model.

    Args:
        pipeline_options: Options of the pipeline.
    """

    pipeline_options: ThreadedPdfPipelineOptions
    reading_order_model: ReadingOrderModel
    enrichment_pipe: list[GenericEnrichmentModel[Any]]
    keep_backend: bool

    def _init_models(self) -> None:
        wanted = self.pipeline_options
        # docling would load a model of its own for the formulas that we deliver.
        self.pipeline_options = wanted.model_copy(update={"do_formula_enrichment": False})
        try:
            super()._init_models()
        finally:
            self.pipeline_options = wanted
        self.reading_order_model = MDiffReadingOrderModel(self.reading_order_model.options)
        self.enrichment_pipe = [self._make_formula_model(), *self.enrichment_pipe]
        self.keep_backend = self.keep_backend or wanted.do_formula_enrichment

    def _make_formula_model(self) -> FormulaDeliveryModel:
        wanted = self.pipeline_options
        stages = (wanted.ocr_options, wanted.layout_options, wanted.table_structure_options)
        ours = [options for options in stages if isinstance(options, EngineOptions)]
        options = ours[0] if ours else EngineOptions()
        engine = None
        if wanted.do_formula_enrichment:
            engine = open_stage_engine(
                options,
                wanted.accelerator_options,
                self.artifacts_path,
                remote_services=wanted.enable_remote_services,
            )
        return FormulaDeliveryModel(engine, options)

    @classmethod
    def get_default_options(cls) -> MDiffPdfPipelineOptions:
        """Return options with our engine in every stage."""
        return MDiffPdfPipelineOptions()
