"""docling's layout stage on our engine: raw clusters with the model's types, angles and order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docling.datamodel.accelerator_options import AcceleratorOptions
from docling.datamodel.base_models import LayoutPrediction, Page
from docling.datamodel.document import ConversionResult
from docling.models.base_layout_model import BaseLayoutModel
from docling.utils.profiling import TimeRecorder
from docling_core.types.doc import DocItemLabel

from docling_mdiff.convert import MDiffCluster, to_cluster
from docling_mdiff.engine import deadline_s, decode_config, open_stage_engine, record_error
from docling_mdiff.notes import page_notes
from docling_mdiff.options import MDiffLayoutOptions
from docling_mdiff.pages import Shot, is_ready, page_box, render
from docling_mdiff.reading import read_pages, segmenter_name
from docling_mdiff.text_layer import text_layer_clusters
from mdiff_adapters.document import ParsedPage, Region

STAGE = "mdiff_layout"


class MDiffLayoutModel(BaseLayoutModel):
    """The layout engine ``mdiff_layout``.

    With a checkpoint that knows the layout task, only that is asked here. The line segmenter
    needs the text to tell paragraphs and titles apart: it reads the page here, and the OCR engine
    ``mdiff_ocr`` takes over what was read. Born-digital pages are grouped by their own text then.

    Args:
        options: Options of the stage.
        artifacts_path: docling's folder of models.
        accelerator_options: docling's device.
        enable_remote_services: docling's switch for servers.
    """

    requires_layout_postprocessing = True

    def __init__(
        self,
        *,
        options: MDiffLayoutOptions,
        artifacts_path: Path | None,
        accelerator_options: AcceleratorOptions,
        enable_remote_services: bool = False,
    ) -> None:
        self.options = options
        self._engine = open_stage_engine(
            options, accelerator_options, artifacts_path, remote_services=enable_remote_services
        )
        self._decode = decode_config(options)
        self._segmenter = segmenter_name(self._engine, options.segmenter)

    @classmethod
    def get_options_type(cls) -> type[MDiffLayoutOptions]:
        """Return the options class that docling selects this engine by."""
        return MDiffLayoutOptions

    def predict_layout(
        self, conv_res: ConversionResult, pages: Sequence[Page]
    ) -> list[LayoutPrediction]:
        """Return the clusters of each page; what fails becomes an error of its page."""
        with TimeRecorder(conv_res, "layout"):
            shots: dict[int, Shot] = {}
            predictions = [LayoutPrediction() for _ in pages]
            for position, page in enumerate(pages):
                try:
                    clusters = text_layer_clusters(page) if self._segmenter == "lines" else None
                    if clusters is not None:
                        predictions[position].clusters = clusters
                    elif is_ready(page):
                        shots[position] = render(
                            conv_res,
                            page,
                            scale=self.options.scale,
                            max_pixels=self.options.max_pixels,
                        )
                except Exception as error:  # noqa: BLE001  one page must not lose its batch
                    record_error(conv_res, STAGE, page.page_no, f"no layout: {error}")
            found = read_pages(
                list(shots.values()),
                self._engine,
                self._decode,
                segmenter=self._segmenter,
                deadline=deadline_s(conv_res),
                outline=self._segmenter == "model",
            )
            for position, parsed in zip(shots, found, strict=True):
                page = pages[position]
                report_page(conv_res, STAGE, page.page_no, parsed)
                try:
                    predictions[position].clusters = page_clusters(page, parsed)
                except Exception as error:  # noqa: BLE001  one page must not lose its batch
                    record_error(conv_res, STAGE, page.page_no, f"no layout: {error}")
        return predictions


def page_clusters(page: Page, parsed: ParsedPage, first_id: int = 0) -> list[MDiffCluster]:
    """Turn the regions of a page into clusters, and note what was read in them.

    Args:
        page: docling's page.
        parsed: What the segmenter says about it.
        first_id: Number of the first cluster.

    Returns:
        Raw clusters. Regions that another one tells are left out: lists told by their items, and
        what lies inside of a table.
    """
    notes = page_notes(page)
    notes.layout_seen = parsed.status != "failed"
    lists = {region.id for region in parsed.regions if region.type == "list"}
    clusters: list[MDiffCluster] = []
    for region in parsed.regions:
        if _is_told_elsewhere(region) or region.bbox.area <= 0:
            continue
        is_item = region.parent in lists and region.type == "text"
        cluster_id = first_id + len(clusters)
        label = DocItemLabel.LIST_ITEM if is_item else None
        clusters.append(to_cluster(region, cluster_id, page_box(page), label))
        if region.raw or region.error is not None:
            notes.regions[cluster_id] = region
    return clusters


def _is_told_elsewhere(region: Region) -> bool:
    return any(flag == "told_by_items" or flag.startswith("inside_") for flag in region.flags)


def report_page(conv_res: ConversionResult, stage: str, page_no: int, parsed: ParsedPage) -> None:
    """Turn what went wrong with a page as a whole into docling's errors."""
    if parsed.status == "failed" and parsed.error is not None:
        record_error(conv_res, stage, page_no, f"page could not be read: {parsed.error.message}")
        return
    broken = parsed.status == "layout_failed"
    for warning in parsed.warnings:
        if warning.stage == "layout" and (broken or warning.severity != "info"):
            record_error(conv_res, stage, page_no, warning.message)
