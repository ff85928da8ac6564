"""docling's OCR stage on our engine: one request a layout cluster, all of a batch in one call.

docling's OCR rectangles join everything that lies within 20 points. They only decide which clusters
are read; what is cut out and what is asked follows each cluster. For a checkpoint that reads pieces
of text lines, the lines are looked for in the rectangles.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from docling.datamodel.accelerator_options import AcceleratorOptions
from docling.datamodel.base_models import Cluster, LayoutPrediction, Page
from docling.datamodel.document import ConversionResult
from docling.datamodel.pipeline_options import LayoutPostprocessorOptions
from docling.datamodel.settings import settings
from docling.models.base_ocr_model import BaseOcrModel
from docling.utils.layout_postprocessor import LayoutPostprocessor
from docling.utils.profiling import TimeRecorder
from docling_core.types.doc import BoundingBox, DocItemLabel
from docling_core.types.doc.page import TextCell

from docling_mdiff.convert import MDiffCluster, region_cells, slices, to_cell
from docling_mdiff.engine import deadline_s, decode_config, open_stage_engine, record_error
from docling_mdiff.layout import page_clusters, report_page
from docling_mdiff.notes import page_notes
from docling_mdiff.options import MDiffOcrOptions
from docling_mdiff.pages import Shot, is_ready, page_box, render, to_points
from docling_mdiff.reading import read_clusters, read_pages, region_problem
from mdiff_adapters.document import Region
from mdiff_adapters.text import split_list_items

logger = logging.getLogger(__name__)

STAGE = "mdiff_ocr"

_CONTAINERS = frozenset({DocItemLabel.FORM, DocItemLabel.KEY_VALUE_REGION})
IN_RECT_SHARE = 0.9
"""Share of a cluster that must lie in an OCR rectangle for it to be read."""
FULL_PAGE_SHARE = 0.9
"""Share of the page from which on docling drops a picture; its text is then read without it."""


@dataclass(slots=True, eq=False)
class _Job:
    """A page of a batch: what is to be read on it, and what was read."""

    page: Page
    rects: list[BoundingBox]
    clusters: list[Cluster] = field(default_factory=list)
    # None where nothing is left to read: our layout engine has read it.
    shot: Shot | None = None
    cells: list[TextCell] = field(default_factory=list)
    has_confidence: bool = False
    # Regions by what went wrong with them, so that a dead engine is one error a page.
    problems: dict[tuple[str, bool], list[str]] = field(default_factory=dict)

    def is_in_rect(self, box: BoundingBox) -> bool:
        return any(box.intersection_over_self(rect) > IN_RECT_SHARE for rect in self.rects)

    def note(self, region: Region, name: str) -> None:
        problem = region_problem(region)
        if problem is not None:
            self.problems.setdefault(problem, []).append(name)

    def add(self, cells: list[TextCell], confidence: float | None) -> None:
        self.cells += cells
        self.has_confidence |= bool(cells) and confidence is not None


class MDiffOcrModel(BaseOcrModel):
    """The OCR engine ``mdiff_ocr``.

    Args:
        enabled: Whether OCR is wanted; nothing is loaded otherwise.
        artifacts_path: docling's folder of models.
        options: Options of the stage.
        accelerator_options: docling's device.
        enable_remote_services: docling's switch for servers, which it does not pass to OCR plugins
            today.
    """

    multiple_languages: ClassVar[bool] = True

    def __init__(
        self,
        *,
        enabled: bool,
        artifacts_path: Path | None,
        options: MDiffOcrOptions,
        accelerator_options: AcceleratorOptions,
        enable_remote_services: bool = False,
    ) -> None:
        super().__init__(
            enabled=enabled,
            artifacts_path=artifacts_path,
            options=options,
            accelerator_options=accelerator_options,
        )
        self.options: MDiffOcrOptions = options
        if not enabled:
            return
        self._engine = open_stage_engine(
            options, accelerator_options, artifacts_path, remote_services=enable_remote_services
        )
        self._decode = decode_config(options)
        if options.lang:
            logger.info(
                "OCR languages %s are not needed: the checkpoint reads what it was trained on",
                ", ".join(options.lang),
            )

    @classmethod
    def get_options_type(cls) -> type[MDiffOcrOptions]:
        """Return the options class that docling selects this engine by."""
        return MDiffOcrOptions

    def __call__(self, conv_res: ConversionResult, page_batch: Iterable[Page]) -> Iterator[Page]:
        """Read a batch of pages; what fails becomes an error of its page and never raises."""
        pages = list(page_batch)
        if self.enabled:
            with TimeRecorder(conv_res, "ocr"):
                self._read_batch(conv_res, [page for page in pages if is_ready(page)])
        yield from pages

    def _read_batch(self, conv_res: ConversionResult, pages: list[Page]) -> None:
        jobs = []
        for page in pages:
            try:
                job = self._plan(conv_res, page)
                if job is not None:
                    jobs.append(job)
            except Exception as error:  # noqa: BLE001  one page must not lose its batch
                record_error(conv_res, STAGE, page.page_no, f"not prepared: {error}")
        try:
            self._find_missing_layouts(conv_res, [job for job in jobs if not job.clusters])
            if self._engine.capabilities.text_unit == "region":
                self._read_regions(conv_res, jobs)
            else:
                self._read_lines(conv_res, jobs)
        except Exception as error:
            logger.exception("OCR of %s failed", conv_res.input.file.name)
            for job in jobs:
                record_error(conv_res, STAGE, job.page.page_no, f"not read: {error}")
        for job in jobs:
            self._deliver(conv_res, job)

    def _plan(self, conv_res: ConversionResult, page: Page) -> _Job | None:
        """Choose what is read on a page; None if nothing is."""
        rects = self.get_ocr_rects(page)
        clusters = self._readable(page)
        needs_layout = not clusters and not page_notes(page).layout_seen and not page.cells
        job = _Job(page, [page_box(page)] if needs_layout else rects)
        job.clusters = [cluster for cluster in clusters if job.is_in_rect(cluster.bbox)]
        if needs_layout or _unread(job):
            job.shot = render(
                conv_res, page, scale=self.options.scale, max_pixels=self.options.max_pixels
            )
        return job if job.clusters or needs_layout else None

    def _readable(self, page: Page) -> list[Cluster]:
        """Return the clusters whose text is of interest, without docling's overlapping guesses."""
        if page.predictions.layout is None:
            page.predictions.layout = LayoutPrediction()
        raw = page.predictions.layout.clusters
        chosen = {cluster.id for cluster in raw}
        if not all(isinstance(cluster, MDiffCluster) for cluster in raw):
            chosen = {cluster.id for cluster in _resolve(page, raw)}
        return [
            cluster
            for cluster in raw
            if cluster.id in chosen
            and cluster.label not in _CONTAINERS
            and (cluster.label != DocItemLabel.PICTURE or self.options.read_pictures)
        ]

    def _find_missing_layouts(self, conv_res: ConversionResult, jobs: list[_Job]) -> None:
        """Read pages as a whole on which docling's layout found nothing to read."""
        shots = [job.shot for job in jobs if job.shot is not None]
        pages = read_pages(shots, self._engine, self._decode, deadline=deadline_s(conv_res))
        for job, parsed in zip(jobs, pages, strict=True):
            report_page(conv_res, STAGE, job.page.page_no, parsed)
            layout = job.page.predictions.layout
            assert layout is not None  # noqa: S101  _readable has set it
            first_id = max((cluster.id for cluster in layout.clusters), default=-1) + 1
            found = page_clusters(job.page, parsed, first_id)
            layout.clusters = [*layout.clusters, *found]
            job.clusters = [c for c in found if c.label != DocItemLabel.PICTURE]

    def _read_regions(self, conv_res: ConversionResult, jobs: list[_Job]) -> None:
        """Read clusters whole, each by its type; a table without structure again as text."""
        deadline = deadline_s(conv_res)
        open_jobs = [(job, job.shot, _unread(job)) for job in jobs if job.shot is not None]
        found = read_clusters(
            [(shot, clusters) for _, shot, clusters in open_jobs],
            self._engine,
            self._decode,
            deadline=deadline,
        )
        again = []
        for (job, shot, clusters), regions in zip(open_jobs, found, strict=True):
            page_notes(job.page).regions |= regions
            lost = [c for c in clusters if is_lost_table(regions[c.id])]
            for cluster in lost:
                job.note(regions[cluster.id], _name(cluster))
            again.append((job, shot, lost))
        texts = read_clusters(
            [(shot, lost) for _, shot, lost in again],
            self._engine,
            self._decode,
            deadline=deadline,
            as_text=True,
        )
        for (job, _, _), regions in zip(again, texts, strict=True):
            page_notes(job.page).regions |= regions
        for job in jobs:
            for cluster in job.clusters:
                _take(job, cluster)

    def _read_lines(self, conv_res: ConversionResult, jobs: list[_Job]) -> None:
        """Read the text lines in the rectangles; where our layout has read them, take its text."""
        open_jobs = [(job, job.shot) for job in jobs if job.shot is not None and _unread(job)]
        for job in jobs:
            if not _unread(job):
                for cluster in job.clusters:
                    _take(job, cluster)
        pages = read_pages(
            [shot.only(job.rects) for job, shot in open_jobs],
            self._engine,
            self._decode,
            deadline=deadline_s(conv_res),
        )
        for (job, shot), parsed in zip(open_jobs, pages, strict=True):
            report_page(conv_res, STAGE, job.page.page_no, parsed)
            for region in parsed.regions:
                job.note(region, f"lines {region.id}")
                cells = region_cells(region, to_points(region.bbox, shot.box), shot.box)
                job.add(
                    [cell for cell in cells if not self._is_lettering(job.page, cell)],
                    region.confidence,
                )

    def _is_lettering(self, page: Page, cell: TextCell) -> bool:
        """Return whether a line belongs to a picture that is not to be read."""
        if self.options.read_pictures or page.predictions.layout is None or page.size is None:
            return False
        largest = FULL_PAGE_SHARE * page.size.width * page.size.height
        box = cell.rect.to_bounding_box()
        return any(
            cluster.label == DocItemLabel.PICTURE
            and cluster.bbox.area() <= largest
            and box.intersection_over_self(cluster.bbox) > 0.5
            for cluster in page.predictions.layout.clusters
        )

    def _deliver(self, conv_res: ConversionResult, job: _Job) -> None:
        page = job.page
        for (message, late), names in job.problems.items():
            text = f"{', '.join(names)}: {message}"
            record_error(conv_res, STAGE, page.page_no, text, timeout=late)
        try:
            self.post_process_cells(job.cells, page, conv_res)
            if job.cells and not job.has_confidence:
                # docling would report the best grade for an engine that says nothing.
                conv_res.confidence.pages[page.page_no].ocr_score = math.nan
            if settings.debug.visualize_ocr:
                self.draw_ocr_rects_and_cells(conv_res, page, job.rects)
        except Exception as error:  # noqa: BLE001  one page must not lose its batch
            record_error(conv_res, STAGE, page.page_no, f"text could not be placed: {error}")


def is_lost_table(region: Region) -> bool:
    """Return whether a table was asked for and neither a table nor text came of it in time."""
    return (
        region.type == "table"
        and region.table is None
        and not region.text
        and region.finish_reason != "timeout"
    )


def _unread(job: _Job) -> list[Cluster]:
    regions = page_notes(job.page).regions
    return [cluster for cluster in job.clusters if cluster.id not in regions]


def _resolve(page: Page, raw: Sequence[Cluster]) -> list[Cluster]:
    """Return what docling's post-processing makes of raw clusters, as far as it can be known now.

    A layout model answers the same place several times; docling sorts that out after OCR, and
    every guess would be read and end up in the text.
    """
    copies = [cluster.model_copy(deep=True) for cluster in raw]
    options = LayoutPostprocessorOptions(skip_cell_assignment=True)
    resolved: list[Cluster] = LayoutPostprocessor(page, copies, options).postprocess()
    return resolved


def _name(cluster: Cluster) -> str:
    return f"{cluster.label.value} {cluster.id}"


def _take(job: _Job, cluster: Cluster) -> None:
    """Turn what was read in a cluster into cells."""
    region = page_notes(job.page).regions[cluster.id]
    job.note(region, _name(cluster))
    items = []
    if cluster.label == DocItemLabel.LIST_ITEM and not region.lines:
        items = split_list_items(region.text)
    if len(items) > 1:
        cells = [
            to_cell(item, part.bbox, region.confidence)
            for item, part in zip(items, _split(job.page, cluster, len(items)), strict=True)
        ]
    else:
        cells = region_cells(region, cluster.bbox, page_box(job.page))
    job.add(cells, region.confidence)


def _split(page: Page, cluster: Cluster, count: int) -> list[Cluster]:
    """Replace a cluster that holds a whole list by one cluster an item."""
    layout = page.predictions.layout
    assert layout is not None  # noqa: S101  the cluster is in it
    first_id = max(other.id for other in layout.clusters) + 1
    parts = [
        cluster.model_copy(update={"id": first_id + i, "bbox": box})
        for i, box in enumerate(slices(cluster.bbox, count))
    ]
    layout.clusters = [c for c in layout.clusters if c.id != cluster.id] + parts
    return parts
