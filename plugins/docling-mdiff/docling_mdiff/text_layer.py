"""The layout of born-digital pages from their own text: no image, no model, the exact boxes.

Used where the engine has no layout task. Lines are ordered and grouped by the same geometry as the
lines that a detector finds on a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from docling.datamodel.base_models import Page
from docling_core.types.doc import BoundingBox, CoordOrigin
from docling_core.types.doc.page import PdfCellRenderingMode, PdfTextCell, TextCell

from docling_mdiff.convert import LABELS, MDiffCluster
from mdiff_adapters.document import RegionType
from mdiff_adapters.segmenters.order import LineBox, group_paragraphs, reading_order

MAX_PICTURE_SHARE = 0.05
"""Share of the page that pictures may cover: larger ones may hold text that only pixels tell."""
TITLE_RATIO = 1.25
"""Line height, relative to the page's usual one, from which on a paragraph is a title."""
TITLE_MAX_LINES = 4

_INVISIBLE = (PdfCellRenderingMode.INVISIBLE, PdfCellRenderingMode.ONLY_CLIPPING)


def text_layer_clusters(page: Page) -> list[MDiffCluster] | None:
    """Return the paragraphs and titles of a born-digital page in reading order.

    Args:
        page: docling's page with its text cells.

    Returns:
        The clusters; None where the page has no visible text, or pictures of some size.
    """
    cells = [cell for cell in page.cells if cell.text.strip() and _is_visible(cell)]
    if not cells or page.size is None or page._backend is None:
        return None
    pictures = sum(box.area() for box in page._backend.get_bitmap_rects())
    if pictures > MAX_PICTURE_SHARE * page.size.width * page.size.height:
        return None
    height = page.size.height
    lines = [
        LineBox(box.l, box.t, box.r, box.b, max(box.b - box.t, 1.0), cell.text)
        for cell in cells
        for box in [cell.rect.to_bounding_box().to_top_left_origin(height)]
    ]
    return [
        MDiffCluster(
            id=order, label=LABELS[kind], bbox=_around(members), region_type=kind, order=order
        )
        for order, (members, kind) in enumerate(_paragraphs(lines))
    ]


def _is_visible(cell: TextCell) -> bool:
    return not (isinstance(cell, PdfTextCell) and cell.rendering_mode in _INVISIBLE)


def _paragraphs(lines: Sequence[LineBox]) -> Iterator[tuple[list[LineBox], RegionType]]:
    sizes = np.repeat([line.size for line in lines], [len(line.text) for line in lines])
    usual = float(np.median(sizes))
    boxes = np.array([(line.x0, line.y0, line.x1, line.y1) for line in lines])
    for block in reading_order(boxes):
        rows = [[lines[i] for i in row] for row in block.rows]
        if block.tabular:
            yield [line for row in rows for line in row], "text"
            continue
        for members in group_paragraphs([_joined(row) for row in rows]):
            paragraph = [line for i in members for line in rows[i]]
            is_title = (
                len(members) <= TITLE_MAX_LINES
                and len(paragraph) < len(lines)
                and np.median([line.size for line in paragraph]) >= TITLE_RATIO * usual
            )
            yield paragraph, "title" if is_title else "text"


def _joined(row: Sequence[LineBox]) -> LineBox:
    around = _around(row)
    size = max(line.size for line in row)
    text = " ".join(line.text for line in row)
    return LineBox(around.l, around.t, around.r, around.b, size, text)


def _around(lines: Sequence[LineBox]) -> BoundingBox:
    return BoundingBox(
        l=min(line.x0 for line in lines),
        t=min(line.y0 for line in lines),
        r=max(line.x1 for line in lines),
        b=max(line.y1 for line in lines),
        coord_origin=CoordOrigin.TOPLEFT,
    )
