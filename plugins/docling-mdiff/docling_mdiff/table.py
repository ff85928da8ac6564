"""docling's table stage on our engine: structure and text of a table in one answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from docling.datamodel.accelerator_options import AcceleratorOptions
from docling.datamodel.base_models import Cluster, Page, TableStructurePrediction
from docling.datamodel.document import ConversionResult
from docling.models.base_table_model import BaseTableStructureModel
from docling.utils.profiling import TimeRecorder

from docling_mdiff.convert import TABLE_LABELS, to_table_element, with_header_rows
from docling_mdiff.engine import deadline_s, decode_config, open_stage_engine, record_error
from docling_mdiff.notes import page_notes
from docling_mdiff.ocr import is_lost_table
from docling_mdiff.options import MDiffTableOptions
from docling_mdiff.pages import Shot, is_ready, render
from docling_mdiff.reading import read_clusters, region_problem
from mdiff_adapters.document import Region
from mdiff_adapters.tables import Table

logger = logging.getLogger(__name__)

STAGE = "mdiff_table"


class MDiffTableModel(BaseTableStructureModel):
    """The table engine ``mdiff_table``.

    A table that the OCR engine ``mdiff_ocr`` has read already is taken over, not read twice.

    Args:
        enabled: Whether table structure is wanted; nothing is loaded otherwise.
        artifacts_path: docling's folder of models.
        options: Options of the stage.
        accelerator_options: docling's device.
        enable_remote_services: docling's switch for servers.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        artifacts_path: Path | None,
        options: MDiffTableOptions,
        accelerator_options: AcceleratorOptions,
        enable_remote_services: bool = False,
    ) -> None:
        self.enabled = enabled
        self.options = options
        if not enabled:
            return
        self._engine = open_stage_engine(
            options, accelerator_options, artifacts_path, remote_services=enable_remote_services
        )
        self._decode = decode_config(options)

    @classmethod
    def get_options_type(cls) -> type[MDiffTableOptions]:
        """Return the options class that docling selects this engine by."""
        return MDiffTableOptions

    def predict_tables(
        self, conv_res: ConversionResult, pages: Sequence[Page]
    ) -> list[TableStructurePrediction]:
        """Return the tables of each page; what fails becomes an error of its page.

        A table without structure stays out: docling then keeps the text that it has in the region.
        Where it has none, the text becomes a table of one column.
        """
        with TimeRecorder(conv_res, "table_structure"):
            try:
                self._read_missing(conv_res, pages)
                return [self._predict(conv_res, page) for page in pages]
            except Exception as error:
                logger.exception("tables of %s failed", conv_res.input.file.name)
                for page in pages:
                    record_error(conv_res, STAGE, page.page_no, f"tables not read: {error}")
                return [TableStructurePrediction() for _ in pages]

    def _read_missing(self, conv_res: ConversionResult, pages: Sequence[Page]) -> None:
        """Read the tables that no other stage has read, all pages in one call."""
        if "table" not in self._engine.capabilities.tasks:
            return
        jobs: list[tuple[Page, Shot, list[Cluster]]] = []
        for page in pages:
            regions = page_notes(page).regions
            clusters = [c for c in _table_clusters(page) if c.id not in regions]
            try:
                if clusters and is_ready(page):
                    shot = render(
                        conv_res,
                        page,
                        scale=self.options.scale,
                        max_pixels=self.options.max_pixels,
                    )
                    jobs.append((page, shot, clusters))
            except Exception as error:  # noqa: BLE001  one page must not lose its batch
                record_error(conv_res, STAGE, page.page_no, f"not rendered: {error}")
        deadline = deadline_s(conv_res)
        found = read_clusters(
            [(shot, clusters) for _, shot, clusters in jobs],
            self._engine,
            self._decode,
            deadline=deadline,
        )
        again = []
        for (page, shot, clusters), regions in zip(jobs, found, strict=True):
            page_notes(page).regions |= regions
            for cluster in clusters:
                self._report(conv_res, page, cluster, regions[cluster.id])
            lost = [c for c in clusters if is_lost_table(regions[c.id]) and not c.cells]
            again.append((page, shot, lost))
        texts = read_clusters(
            [(shot, lost) for _, shot, lost in again],
            self._engine,
            self._decode,
            deadline=deadline,
            as_text=True,
        )
        for (page, _, lost), regions in zip(again, texts, strict=True):
            page_notes(page).regions |= regions
            for cluster in lost:
                self._report(conv_res, page, cluster, regions[cluster.id])

    def _report(
        self, conv_res: ConversionResult, page: Page, cluster: Cluster, region: Region
    ) -> None:
        problem = region_problem(region)
        if problem is not None:
            message, late = problem
            text = f"{cluster.label.value} {cluster.id}: {message}"
            record_error(conv_res, STAGE, page.page_no, text, timeout=late)

    def _predict(self, conv_res: ConversionResult, page: Page) -> TableStructurePrediction:
        prediction = TableStructurePrediction()
        scores = []
        for cluster in _table_clusters(page):
            region = page_notes(page).regions.get(cluster.id)
            if region is None:
                continue
            table = region.table
            if table is not None:
                table = with_header_rows(table, self.options.header_rows)
            elif region.text and not cluster.cells:
                table = Table.from_rows([[line] for line in region.text.split("\n") if line])
            if table is None:
                continue
            prediction.table_map[cluster.id] = to_table_element(table, cluster, page.page_no)
            if region.confidence is not None:
                scores.append(region.confidence)
        if scores:
            conv_res.confidence.pages[page.page_no].table_score = float(np.mean(scores))
        return prediction


def _table_clusters(page: Page) -> list[Cluster]:
    layout = page.predictions.layout
    return [c for c in layout.clusters if c.label in TABLE_LABELS] if layout is not None else []
