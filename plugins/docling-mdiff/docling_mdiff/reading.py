"""Pages and clusters read through the segmenters.

A segmenter asks for a page's layout, cuts the regions out, asks about each by its type, and cleans
the answers. Clusters that docling already has are read the same way: the layout answer is then
written from them instead of asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from docling.datamodel.base_models import Cluster
from docling_core.types.doc import DocItemLabel

from docling_mdiff.convert import MDiffCluster
from docling_mdiff.engine import GivenLayout, StageEngine
from docling_mdiff.pages import Shot
from mdiff_adapters.document import BBox, ErrorRecord, ParsedPage, Region, RegionType
from mdiff_adapters.engines import DecodeConfig, Engine
from mdiff_adapters.segmenters import SegmenterOptions, choose_segmenter, get_segmenter
from mdiff_core.protocol import format_record

logger = logging.getLogger(__name__)

# What is asked about a cluster follows the region type that stands in for its label.
_TYPES: dict[DocItemLabel, RegionType] = {
    DocItemLabel.TABLE: "table",
    DocItemLabel.DOCUMENT_INDEX: "table",
    DocItemLabel.FORMULA: "equation",
    DocItemLabel.CODE: "code",
}
_TASKS: dict[RegionType, str] = {
    "table": "table",
    "equation": "formula",
    "equation_block": "formula",
}


def segmenter_name(engine: Engine, wanted: str = "auto") -> str:
    """Return which segmenter reads the pages of an engine."""
    return choose_segmenter(engine.capabilities) if wanted == "auto" else wanted


def read_pages(
    shots: Sequence[Shot],
    engine: Engine,
    decode: DecodeConfig,
    *,
    segmenter: str = "auto",
    deadline: float | None = None,
    outline: bool = False,
) -> list[ParsedPage]:
    """Read images of pages with one or two calls to the engine; never raises.

    Args:
        shots: The images, each with an index of its own.
        engine: The engine.
        decode: Decoding settings.
        segmenter: Name of the segmenter.
        deadline: Monotonic time after which nothing more is waited for.
        outline: Only find the regions; see :class:`~docling_mdiff.engine.StageEngine`.

    Returns:
        One page for each image, in order.
    """
    stage = StageEngine(engine, deadline=deadline, outline=outline)
    return _read(shots, stage, decode, segmenter_name(engine, segmenter))


def read_clusters(
    jobs: Sequence[tuple[Shot, Sequence[Cluster]]],
    engine: Engine,
    decode: DecodeConfig,
    *,
    deadline: float | None = None,
    as_text: bool = False,
) -> list[dict[int, Region]]:
    """Read clusters of some pages with one call to an engine that reads whole regions.

    Args:
        jobs: Images of whole pages with the clusters to read on each.
        engine: The engine.
        decode: Decoding settings.
        deadline: Monotonic time after which nothing more is waited for.
        as_text: Ask for the text of every cluster, whatever its label.

    Returns:
        For each page the region of each cluster, by cluster id.
    """
    known = engine.capabilities.tasks
    layouts = {
        shot.image.index: GivenLayout(
            text="\n".join(
                _layout_record(cluster, shot, "text" if as_text else _region_type(cluster, known))
                for cluster in clusters
            ),
            orders=tuple(_order(cluster, position) for position, cluster in enumerate(clusters)),
        )
        for shot, clusters in jobs
    }
    stage = StageEngine(engine, deadline=deadline, layouts=layouts)
    # A page without records would be read as one text.
    shots = [shot for shot, clusters in jobs if clusters]
    pages = {page.index: page for page in _read(shots, stage, decode, "model")}
    return [_by_cluster(clusters, pages.get(shot.image.index)) for shot, clusters in jobs]


def _by_cluster(clusters: Sequence[Cluster], page: ParsedPage | None) -> dict[int, Region]:
    if page is None:
        return {}
    by_order = {region.order: region for region in page.regions}
    nothing = BBox(0.0, 0.0, 0.0, 0.0)
    return {
        cluster.id: by_order.get(order)
        # A duplicate of an earlier cluster, a blank page, or one that failed as a whole.
        or Region(id=f"p{page.index}r{order}", order=order, type="text", bbox=nothing,
                  error=page.error)
        for order, cluster in enumerate(clusters)
    }  # fmt: skip


def _read(
    shots: Sequence[Shot], stage: StageEngine, decode: DecodeConfig, name: str
) -> list[ParsedPage]:
    images = [shot.image for shot in shots]
    if not images:
        return []
    try:
        return get_segmenter(name).read(images, stage, decode, SegmenterOptions())
    except Exception as error:
        logger.warning("pages could not be read: %s", error, exc_info=True)
        record = ErrorRecord(kind=type(error).__name__, message=str(error))
        return [
            ParsedPage(
                index=image.index,
                label=image.label,
                size_px=image.image.size,
                size_pt=image.size_pt,
                status="failed",
                error=record,
            )
            for image in images
        ]


def _region_type(cluster: Cluster, known_tasks: Sequence[str]) -> RegionType:
    own = cluster.region_type if isinstance(cluster, MDiffCluster) else None
    kind: RegionType = own or _TYPES.get(cluster.label, "text")
    if kind == "image" or _TASKS.get(kind, "text") not in known_tasks:
        return "text"
    return kind


def _order(cluster: Cluster, position: int) -> int:
    known = isinstance(cluster, MDiffCluster) and cluster.order >= 0
    return cluster.order if known else position


def _layout_record(cluster: Cluster, shot: Shot, kind: RegionType) -> str:
    """Write a cluster as the layout task would have answered it."""
    box = cluster.bbox
    values = (
        (box.l - shot.box.l) / shot.box.width, (box.t - shot.box.t) / shot.box.height,
        (box.r - shot.box.l) / shot.box.width, (box.b - shot.box.t) / shot.box.height,
    )  # fmt: skip
    corners = " ".join(f"{min(max(value, 0.0), 1.0) * 1000:.6f}" for value in values)
    angle = cluster.angle if isinstance(cluster, MDiffCluster) else 0
    return format_record(corners, kind, angle)


def region_problem(region: Region) -> tuple[str, bool] | None:
    """Return what went wrong with a region, and whether it was for lack of time."""
    late = region.finish_reason == "timeout"
    if region.error is not None:
        return region.error.message, late
    if region.finish_reason in ("length", "loop"):
        return f"the answer is incomplete ({region.finish_reason})", late
    was_asked = region.finish_reason is not None and "blank" not in region.flags
    if region.type == "table" and region.table is None and was_asked:
        return "no table structure was found", late
    return None
