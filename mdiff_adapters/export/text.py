"""Plain text: what a search index wants."""

from __future__ import annotations

from mdiff_adapters.document import ParsedDocument, ParsedPage, Region
from mdiff_adapters.export.structure import page_blocks
from mdiff_adapters.formulas import tidy_spacing

__all__ = ["page_to_text", "region_text", "to_text"]


def to_text(doc: ParsedDocument, *, include_furniture: bool = False) -> str:
    """Return a document as plain text.

    Args:
        doc: The document.
        include_furniture: As in :func:`mdiff_adapters.export.to_markdown`.

    Returns:
        The pages, each followed by a form feed but the last; a page without text is empty.
    """
    return "\f".join(page_to_text(page, include_furniture=include_furniture) for page in doc.pages)


def page_to_text(page: ParsedPage, *, include_furniture: bool = False) -> str:
    """Return one page as plain text, its blocks separated by blank lines.

    Table rows are lines with tabs between cells, formulas are bare LaTeX, list items are lines.
    """
    parts: list[str] = []
    for block in page_blocks(page, include_furniture=include_furniture):
        parts += [region.text for region in block.before]
        if block.items:
            parts.append("\n".join(text for text, _ in block.items))
        else:
            parts.append(region_text(block.region))
        parts += [region.text for region in block.after]
    return "\n\n".join(part for part in parts if part)


def region_text(region: Region) -> str:
    """Return all that a region says as plain text: table rows, bare LaTeX, text.

    Args:
        region: A region.

    Returns:
        The text; empty where nothing was read.
    """
    parts = []
    if region.table is not None:
        rows = ("\t".join(" ".join(text.split()) for text in row) for row in region.table.rows())
        parts += [region.table.caption, "\n".join(rows)]
    parts += [tidy_spacing(region.latex or ""), region.text]
    return "\n".join(part for part in parts if part)
