"""HTML: one standalone page; all text escaped once."""

from __future__ import annotations

import html
from collections.abc import Iterator

from mdiff_adapters.document import ParsedDocument, ParsedPage, Region
from mdiff_adapters.export.structure import Block, Images, image_url, page_blocks
from mdiff_adapters.formulas import Delimiters, tidy_spacing, wrap_formula
from mdiff_adapters.text import escape_html

__all__ = ["page_to_html", "to_html"]

_STYLE = (
    "body{max-width:50rem;margin:2rem auto;padding:0 1rem;font-family:serif;line-height:1.5}"
    "table{border-collapse:collapse}td,th{border:1px solid #999;padding:.2rem .5rem}"
    "section+section{border-top:1px solid #ccc;margin-top:2rem}img{max-width:100%}"
    "figure{margin:1rem 0}.furniture{color:#666}"
)


def to_html(
    doc: ParsedDocument,
    *,
    title: str | None = None,
    include_furniture: bool = False,
    formula_delimiters: Delimiters = "brackets",
    images: Images = "none",
) -> str:
    """Return a document as a standalone HTML page.

    Args:
        doc: The document.
        title: Title of the page; the document's own or its source where there is none.
        include_furniture: As in :func:`mdiff_adapters.export.to_markdown`.
        formula_delimiters: As in :func:`mdiff_adapters.export.to_markdown`; a script such as
            MathJax turns the formulas into pictures, none is included.
        images: As in :func:`mdiff_adapters.export.to_markdown`.

    Returns:
        HTML with one ``section`` a page; no scripts, no reference to the network.
    """
    heading = title or doc.metadata.get("title") or doc.source
    pages = "\n".join(
        page_to_html(
            page,
            include_furniture=include_furniture,
            formula_delimiters=formula_delimiters,
            images=images,
        )
        for page in doc.pages
    )
    return (
        '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"{pages}\n</body>\n</html>\n"
    )


def page_to_html(
    page: ParsedPage,
    *,
    include_furniture: bool = False,
    formula_delimiters: Delimiters = "brackets",
    images: Images = "none",
) -> str:
    """Return one page as a ``section`` element; options as in :func:`to_html`."""
    wrap_formula("", formula_delimiters)
    failed = ' data-status="failed"' if page.status == "failed" else ""
    label = html.escape(page.label)
    lines = [f'<section id="page-{page.index + 1}" data-label="{label}"{failed}>']
    told: set[str] = set()
    for block in page_blocks(page, include_furniture=include_furniture):
        # A list that something interrupts goes on in another block, without the id again.
        identity = "" if block.region.id in told else f' id="{_id(block.region)}"'
        told.add(block.region.id)
        lines += _block(block, identity, formula_delimiters, images)
    return "\n".join([*lines, "</section>"])


def _block(block: Block, identity: str, delimiters: Delimiters, images: Images) -> Iterator[str]:
    region = block.region
    if block.items:
        items = "".join(f"<li>{escape_html(text)}</li>" for text, _ in block.items)
        yield f"<ul{identity}>{items}</ul>"
        return
    body = "".join(_body(region, delimiters, images))
    if not (region.type == "image" or block.before or block.after):
        yield body
        return
    before = "".join(_note(other) for other in block.before)
    after = "".join(_note(other) for other in block.after)
    yield f"<figure{identity}>{before}{body}{after}</figure>"


def _body(region: Region, delimiters: Delimiters, images: Images) -> Iterator[str]:
    url = image_url(region, images)
    if url is not None:
        yield f'<img src="{html.escape(url)}" alt="{region.type}">'
    if region.table is not None:
        yield region.table.to_html()
    if region.latex:
        formula = wrap_formula(tidy_spacing(region.latex), delimiters)
        yield f'<div class="formula">{html.escape(formula, quote=False)}</div>'
    if not region.text:
        return
    if region.type in ("code", "algorithm"):
        yield f"<pre><code>{html.escape(region.text, quote=False)}</code></pre>"
        return
    name = "h2" if region.type == "title" else "p"
    for paragraph in region.text.split("\n\n"):
        yield f'<{name} class="{region.type}">{escape_html(paragraph)}</{name}>'


def _note(region: Region) -> str:
    return f'<p id="{_id(region)}" class="{region.type}">{escape_html(region.text)}</p>'


def _id(region: Region) -> str:
    return html.escape(region.id)
