"""Between our regions and docling's clusters, cells and tables: labels, boxes, header rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from docling.datamodel.base_models import Cluster
from docling.datamodel.base_models import Table as TableElement
from docling_core.types.doc import BoundingBox, DocItemLabel
from docling_core.types.doc.page import BoundingRectangle, TextCell

from docling_mdiff.pages import to_points
from mdiff_adapters.document import Region, RegionType
from mdiff_adapters.export.docling import LABELS as EXPORT_LABELS
from mdiff_adapters.export.docling import table_data
from mdiff_adapters.tables import Table

# docling's layout post-processing does not know the label REFERENCE and would fail the page.
LABELS: dict[RegionType, DocItemLabel] = {**EXPORT_LABELS, "ref_text": DocItemLabel.TEXT}
"""docling's label of each region type; only labels that its layout post-processing accepts."""

TABLE_LABELS = frozenset({DocItemLabel.TABLE, DocItemLabel.DOCUMENT_INDEX})

HeaderRows = Literal["none", "first", "auto"]
_OTSL_TAG = re.compile(r"<(fcel|ecel|lcel|ucel|xcel|ched|rhed|nl)>")


class MDiffCluster(Cluster):
    """A layout region of ours; docling carries the extra fields through all stages.

    Attributes:
        angle: Degrees a counter-clockwise rotation needs to make the crop upright.
        region_type: Our type; finer than docling's label.
        order: Position in the reading order of the segmenter.
    """

    angle: int = 0
    region_type: RegionType | None = None
    order: int = -1


def to_cluster(
    region: Region, cluster_id: int, whole: BoundingBox, label: DocItemLabel | None = None
) -> MDiffCluster:
    """Return the raw cluster of a region.

    The confidence is 1: the model gives none for boxes, and docling drops clusters below 0.5.

    Args:
        region: The region.
        cluster_id: Number of the cluster on its page.
        whole: Box of the page.
        label: docling's label where it is not that of the region's type.
    """
    return MDiffCluster(
        id=cluster_id,
        label=label or LABELS[region.type],
        bbox=to_points(region.bbox, whole),
        confidence=1.0,
        angle=region.angle,
        region_type=region.type,
        order=region.order,
    )


def to_cell(text: str, box: BoundingBox, confidence: float | None) -> TextCell:
    """Return an OCR cell; docling numbers the cells of a page itself."""
    return TextCell(
        index=0,
        text=text,
        orig=text,
        from_ocr=True,
        confidence=1.0 if confidence is None else confidence,
        rect=BoundingRectangle.from_bounding_box(box),
    )


def slices(box: BoundingBox, count: int) -> list[BoundingBox]:
    """Cut a box into ``count`` rows of equal height.

    For texts of several rows whose boxes nobody knows: docling joins one cell a row as it should,
    and a matcher of table cells gets rows in place of one block.
    """
    step = (box.b - box.t) / count
    return [
        box.model_copy(update={"t": box.t + i * step, "b": box.t + (i + 1) * step})
        for i in range(count)
    ]


def region_cells(region: Region, box: BoundingBox, whole: BoundingBox) -> list[TextCell]:
    """Return what was read in a region as docling's cells, in reading order.

    Lines have their own boxes where they are known. Otherwise the rows of a table and the lines
    of a text share the region's box in equal parts, since docling joins cells, not lines.

    Args:
        region: The region.
        box: Box of its cluster, in points.
        whole: Box of the page, of which the boxes of its lines are fractions.

    Returns:
        The cells; none where nothing was read.
    """
    if region.lines:
        return [
            to_cell(line.text, to_points(line.bbox, whole), line.confidence)
            for line in region.lines
            if line.text
        ]
    if region.type in ("code", "algorithm"):
        texts = [region.text]  # docling joins cells by a space, which code would not survive
    elif region.table is not None:
        rows = [" ".join(filter(None, row)) for row in region.table.rows()]
        texts = [region.table.caption, *rows, region.text]
    else:
        texts = [region.latex or "", *region.text.split("\n")]
    texts = [text for text in texts if text.strip()]
    parts = slices(box, len(texts)) if texts else []
    return [to_cell(text, part, region.confidence) for text, part in zip(texts, parts, strict=True)]


def with_header_rows(table: Table, mode: HeaderRows) -> Table:
    """Return the table with its first row marked as column headers, where ``mode`` says so.

    The model marks no header cells. ``auto`` takes the first row where every slot of it has text,
    few of them look like numbers, and the rows below hold more numbers than it.

    Args:
        table: A table; header rows that it marks itself stay.
        mode: ``none``, ``first`` or ``auto``.
    """
    if table.header_rows or mode == "none" or table.num_rows < 2:
        return table
    if mode == "auto":
        first, *below = table.rows(fill_spans=True)
        share = _numeric_share([first])
        if not all(t.strip() for t in first) or share >= 0.5 or _numeric_share(below) <= share:
            return table
    cells = tuple(replace(c, is_header=True) if c.row == 0 else c for c in table.cells)
    return replace(table, cells=cells)


def to_table_element(table: Table, cluster: Cluster, page_no: int) -> TableElement:
    """Return docling's table of ``cluster``, cell by cell."""
    return TableElement(
        label=cluster.label,
        id=cluster.id,
        page_no=page_no,
        cluster=cluster,
        otsl_seq=_OTSL_TAG.findall(table.to_otsl()),
        num_rows=table.num_rows,
        num_cols=table.num_cols,
        table_cells=table_data(table).table_cells,
    )


def _numeric_share(rows: Sequence[Sequence[str]]) -> float:
    texts = [text for row in rows for text in row if text.strip()]
    return sum(map(_is_numeric, texts)) / len(texts) if texts else 0.0


def _is_numeric(text: str) -> bool:
    return sum(c.isdigit() for c in text) * 2 >= sum(not c.isspace() for c in text)
