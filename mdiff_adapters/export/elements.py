"""Flat elements, one a region, for stores that take JSON scalars only."""

from __future__ import annotations

from mdiff_adapters.document import ParsedDocument, ParsedPage, Region
from mdiff_adapters.export.structure import FURNITURE, has_content
from mdiff_adapters.export.text import region_text

__all__ = ["Scalar", "page_to_elements", "region_to_element", "to_elements"]

Scalar = str | int | float | bool


def to_elements(doc: ParsedDocument, *, include_furniture: bool = True) -> list[dict[str, Scalar]]:
    """Return one flat mapping a region, in reading order.

    Args:
        doc: The document.
        include_furniture: Whether running headers, page numbers and the like are wanted.

    Returns:
        The elements of :func:`region_to_element`; regions without content are left out.
    """
    return [
        element
        for page in doc.pages
        for element in page_to_elements(page, include_furniture=include_furniture)
    ]


def page_to_elements(
    page: ParsedPage, *, include_furniture: bool = True
) -> list[dict[str, Scalar]]:
    """Return the elements of one page."""
    return [
        region_to_element(region, page)
        for region in page.regions
        if has_content(region) and (include_furniture or region.type not in FURNITURE)
    ]


def region_to_element(region: Region, page: ParsedPage) -> dict[str, Scalar]:
    """Return a region as a flat mapping of JSON scalars.

    Args:
        region: The region.
        page: Its page.

    Returns:
        ``category`` (the region type), ``element_id``, ``order``, ``page`` (0-based),
        ``page_label``, ``bbox`` (``"x0,y0,x1,y1"`` in fractions of the page), ``text``, and where
        there is one ``raw_label``, ``text_as_html`` (tables), ``latex``, ``angle``, ``parent_id``,
        ``confidence``, ``finish_reason``, ``flags`` (joined by commas), ``error``.
    """
    box = region.bbox
    element: dict[str, Scalar] = {
        "category": region.type,
        "element_id": region.id,
        "order": region.order,
        "page": page.index,
        "page_label": page.label,
        "bbox": ",".join(f"{value:.6g}" for value in (box.x0, box.y0, box.x1, box.y1)),
        "text": region_text(region),
    }
    optional: dict[str, Scalar | None] = {
        "raw_label": region.raw_label,
        "text_as_html": region.table.to_html() if region.table is not None else None,
        "latex": region.latex,
        "angle": region.angle or None,
        "parent_id": region.parent,
        "confidence": region.confidence,
        "finish_reason": region.finish_reason,
        "flags": ",".join(region.flags) or None,
        "error": region.error.message if region.error is not None else None,
    }
    return element | {name: value for name, value in optional.items() if value is not None}
