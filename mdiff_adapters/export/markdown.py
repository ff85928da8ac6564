"""Markdown: titles, paragraphs, lists, tables, formulas, code, figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

from mdiff_adapters.document import ParsedDocument, ParsedPage, Region
from mdiff_adapters.export.structure import Block, Images, image_url, page_blocks
from mdiff_adapters.formulas import Delimiters, tidy_spacing, wrap_formula
from mdiff_adapters.text import escape_inline
from mdiff_core.config import suggest
from mdiff_core.errors import ConfigError

__all__ = ["TableFormat", "page_to_markdown", "to_markdown"]

TableFormat = Literal["html", "markdown", "auto"]

# What would turn a paragraph into another block, up to three blanks from the edge: a heading, a
# quote, a fence, a rule, an underlining or the line below a table's header.
_BLOCK_START = re.compile(
    r"^( {0,3})(?=#{1,6}(?:\s|$)|>|~{3}|`{3}|(?:=+|-+)\s*$"
    r"|(?P<rule>[-*_])[ \t]*(?:(?P=rule)[ \t]*){2,}$"
    r"|\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$)",
    re.M,
)
# Hashes at the end of a heading are markup too.
_CLOSING_HASHES = re.compile(r"(^|\s)(#+)\Z")
# The definition of a link's target, which is not shown.
_DEFINITION = re.compile(r"^( {0,3}\[[^\]\n]+\]):", re.M)
_ORDERED = re.compile(r"^\d{1,3}[.)]\s")
_FENCE = re.compile(r"`{3,}")


def to_markdown(
    doc: ParsedDocument,
    *,
    include_furniture: bool = False,
    formula_delimiters: Delimiters = "brackets",
    table_format: TableFormat = "html",
    page_separator: str = "\n\n",
    images: Images = "none",
) -> str:
    r"""Return a document as markdown.

    Args:
        doc: The document.
        include_furniture: Whether running headers, footers, page numbers, page footnotes, text
            in the margin and regions of unknown type are wanted.
        formula_delimiters: ``brackets`` for ``\[ \]``, ``dollars`` for ``$$``, ``none``; inline
            formulas stay as the model writes them, ``\( \)``.
        table_format: ``html`` for all tables; ``markdown`` for pipe tables wherever spans and
            newlines allow one, in a table without header its first row serves as one; ``auto``
            for pipe tables only where the table has a header row of its own.
        page_separator: What stands between pages. Pages without text are left out where it is
            newlines only, and kept where it marks pages.
        images: ``none``, ``embed`` as data URLs, or a folder to write PNG files to; the pictures
            must have been asked for when parsing.

    Returns:
        The markdown, without a newline at the end.

    Raises:
        ConfigError: If an option is unknown or the folder cannot be written.
    """
    pages = [
        page_to_markdown(
            page,
            include_furniture=include_furniture,
            formula_delimiters=formula_delimiters,
            table_format=table_format,
            images=images,
        )
        for page in doc.pages
    ]
    if not page_separator.strip("\n"):
        pages = [page for page in pages if page]
    return page_separator.join(pages)


def page_to_markdown(
    page: ParsedPage,
    *,
    include_furniture: bool = False,
    formula_delimiters: Delimiters = "brackets",
    table_format: TableFormat = "html",
    images: Images = "none",
) -> str:
    """Return one page as markdown; options as in :func:`to_markdown`."""
    if table_format not in get_args(TableFormat):
        raise ConfigError(
            f"table_format = {table_format!r} is unknown",
            hint=suggest(str(table_format), list(get_args(TableFormat))),
        )
    # An unknown name is refused also on a page without formulas.
    wrap_formula("", formula_delimiters)
    parts: list[str] = []
    for block in page_blocks(page, include_furniture=include_furniture):
        parts += _block_parts(block, formula_delimiters, table_format, images)
    return "\n\n".join(part for part in parts if part)


def _block_parts(
    block: Block, delimiters: Delimiters, table_format: TableFormat, images: Images
) -> Iterator[str]:
    for caption in block.before:
        yield escape_text(caption.text)
    if block.items:
        yield "\n".join(_item(text) for text, _ in block.items)
    else:
        yield _body(block.region, delimiters, table_format, images)
    for note in block.after:
        yield escape_text(note.text)


def _body(region: Region, delimiters: Delimiters, table_format: TableFormat, images: Images) -> str:
    picture = image_url(region, images)
    parts = [f"![{region.type}]({picture})"] if picture else []
    if region.table is not None:
        piped = table_format == "markdown" or (
            table_format == "auto" and region.table.header_rows == 1
        )
        parts.append(region.table.to_markdown() if piped else region.table.to_html())
    if region.latex:
        parts.append(wrap_formula(tidy_spacing(region.latex), delimiters))
    if region.text:
        parts.append(_prose(region))
    return "\n\n".join(parts)


def _prose(region: Region) -> str:
    if region.type == "title":
        title = escape_inline(" ".join(region.text.split()))
        return "# " + _CLOSING_HASHES.sub(r"\1\\\2", title)
    if region.type in ("code", "algorithm"):
        # The fence must be longer than any inside.
        longest = max((len(run) for run in _FENCE.findall(region.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{fence}\n{region.text}\n{fence}"
    return escape_text(region.text)


def _item(text: str) -> str:
    text = escape_text(text).replace("\n", " ")
    return text if _ORDERED.match(text) else f"- {text}"


def escape_text(text: str) -> str:
    """Escape what markdown would read as something else than text.

    These are ``$`` of money, a ``<`` that would open a tag, links, pictures and entities, and line
    starts that would open another block. Emphasis marks and lists stay as they are: they do no
    harm to the reader.

    Args:
        text: Plain text of a region.

    Returns:
        Markdown that renders as the text.
    """
    return _DEFINITION.sub(r"\1\\:", _BLOCK_START.sub(r"\1\\", escape_inline(text)))
