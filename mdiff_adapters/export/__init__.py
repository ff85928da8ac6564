"""Exports of parsed documents: markdown, HTML, JSON, plain text, Docling, flat elements, pictures.

Every text is told once: a caption beside its figure or table, a list by its items, a region inside
a table by the table. The order is the model's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdiff_adapters.export.elements import to_elements
from mdiff_adapters.export.html import page_to_html, to_html
from mdiff_adapters.export.json_format import from_json, to_json
from mdiff_adapters.export.markdown import page_to_markdown, to_markdown
from mdiff_adapters.export.text import page_to_text, to_text

if TYPE_CHECKING:
    from mdiff_adapters.document import ParsedDocument, ParsedPage

__all__ = [
    "draw_layout",
    "from_json",
    "page_to_html",
    "page_to_markdown",
    "page_to_text",
    "to_docling",
    "to_elements",
    "to_html",
    "to_json",
    "to_markdown",
    "to_text",
]


def to_docling(doc: ParsedDocument) -> Any:
    """Return a ``DoclingDocument``; see :func:`mdiff_adapters.export.docling.to_docling`."""
    # docling-core is an extra, and slow to import.
    from mdiff_adapters.export.docling import to_docling as convert

    return convert(doc)


def draw_layout(image: Any, page: ParsedPage) -> Any:
    """Draw the regions on the page; see :func:`mdiff_adapters.export.draw.draw_layout`."""
    # Pillow's drawing modules are needed by nobody else here.
    from mdiff_adapters.export.draw import draw_layout as draw

    return draw(image, page)
