"""Tables: a grid with spans, and readers for what models answer (OTSL, HTML).

OTSL (arXiv 2305.03393) writes a table row by row: ``<fcel>`` a cell with text, ``<ecel>`` an empty
one, ``<lcel>`` joined to its left neighbour, ``<ucel>`` to the one above, ``<xcel>`` to both and
``<nl>`` the end of a row. Docling adds ``<ched>``, ``<rhed>`` and ``<srow>`` for header cells.
The readers never raise on what a model wrote: they repair, say so in flags, and lose no text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html.entities import html5
from html.parser import HTMLParser
from typing import Any

from mdiff_adapters.text import escape_html, escape_inline
from mdiff_core.errors import EngineUnavailableError

__all__ = ["Cell", "ParsedTable", "Table", "parse_html", "parse_otsl", "parse_table_answer"]

_HEADER_TAGS = frozenset({"ched", "rhed", "srow"})
_SPAN_TAGS = frozenset({"lcel", "ucel", "xcel"})
_TAG_NAMES = ("fcel", "ecel", "lcel", "ucel", "xcel", "nl", "ched", "rhed", "srow")
_TAG = re.compile(f"<({'|'.join(_TAG_NAMES)})>")
_PARTIAL_TAGS = frozenset(f"<{name}"[:length] for name in _TAG_NAMES for length in range(1, 6))
_HTML_TAG = re.compile(r"</?(?:table|thead|tbody|tfoot|tr|td|th)\b", re.IGNORECASE)
_PARTIAL_HTML_TAG = re.compile(r"<(?:[/!a-zA-Z][^<>]*)?\Z")
_PARTIAL_CHARACTER_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]*\Z")
# Without the semicolon `&copy` of `R&copying` would turn into a sign.
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Elements whose tags go away in an HTML answer, their text staying.
_DROPPED_MARKUP = frozenset({
    "a", "abbr", "b", "body", "br", "caption", "center", "code", "col", "colgroup", "del", "div",
    "em", "figure", "font", "h1", "h2", "h3", "h4", "h5", "h6", "head", "hr", "html", "i", "img",
    "input", "ins", "label", "li", "mark", "ol", "p", "pre", "s", "script", "small", "span",
    "strike", "strong", "style", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u",
    "ul", "var",
})  # fmt: skip
# What stands on lines of its own.
_BLOCK_MARKUP = frozenset({
    "center", "div", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "ul",
})  # fmt: skip
# A `<` of text, as in `if x<y</td>`: it begins no comment and no whole tag.
_LONE_ANGLE = re.compile(r"""<(?!!--|[/!]?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>)""")
# The limits of the HTML standard; without them one damaged attribute fills the memory.
_MAX_COL_SPAN = 1000
_MAX_ROW_SPAN = 65534
# What spans may blow a table up to, rows times columns; further ones count as one column.
_MAX_SLOTS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        row: 0-based row of its upper left slot.
        col: 0-based column of its upper left slot.
        text: Plain text; may hold newlines and inline formulas.
        row_span: Rows it covers, at least 1.
        col_span: Columns it covers, at least 1.
        is_header: Whether it heads a column, a row or a section.
    """

    row: int
    col: int
    text: str = ""
    row_span: int = 1
    col_span: int = 1
    is_header: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose cells cover every slot of the grid exactly once.

    Attributes:
        num_rows: Rows of the grid, at least 1.
        num_cols: Columns of the grid, at least 1.
        cells: The cells, by row and column.
        caption: What the answer said outside of the cells; empty for most tables.

    Raises:
        ValueError: If a slot is covered twice or not at all, or a cell leaves the grid.
    """

    num_rows: int
    num_cols: int
    cells: tuple[Cell, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.num_cols < 1:
            raise ValueError(f"a table has at least 1 x 1 slots, not {self._size()}")
        ordered = tuple(sorted(self.cells, key=lambda cell: (cell.row, cell.col)))
        object.__setattr__(self, "cells", ordered)
        covered: set[tuple[int, int]] = set()
        for cell in ordered:
            inside = (
                cell.row >= 0 and cell.col >= 0 and cell.row_span >= 1 and cell.col_span >= 1
                and cell.row + cell.row_span <= self.num_rows
                and cell.col + cell.col_span <= self.num_cols
            )  # fmt: skip
            if not inside:
                raise ValueError(f"{cell} leaves the grid of {self._size()}")
            for slot in _slots(cell):
                if slot in covered:
                    raise ValueError(f"{cell} covers slot {slot} a second time")
                covered.add(slot)
        if len(covered) != self.num_rows * self.num_cols:
            missing = self.num_rows * self.num_cols - len(covered)
            raise ValueError(f"{missing} of {self._size()} slots are not covered by any cell")

    def _size(self) -> str:
        return f"{self.num_rows} x {self.num_cols}"

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[str]], *, header_rows: int = 0) -> Table:
        """Build a table without spans from texts; short rows are filled with empty cells.

        Args:
            rows: Texts by row; at least one row with at least one cell.
            header_rows: Leading rows that are column headers.

        Returns:
            The table, as wide as its widest row.

        Raises:
            ValueError: If there is no cell.
        """
        width = max((len(row) for row in rows), default=0)
        cells = tuple(
            Cell(row=r, col=c, text=row[c] if c < len(row) else "", is_header=r < header_rows)
            for r, row in enumerate(rows)
            for c in range(width)
        )
        return cls(num_rows=len(rows), num_cols=width, cells=cells)

    @classmethod
    def from_otsl(cls, text: str) -> Table:
        """Read OTSL; see :func:`parse_otsl` for what is repaired.

        Raises:
            ValueError: If the text holds no cell.
        """
        return _require(parse_otsl(text), "OTSL")

    @classmethod
    def from_html(cls, text: str) -> Table:
        """Read an HTML table; see :func:`parse_html` for what is repaired.

        Raises:
            ValueError: If the text holds no cell.
        """
        return _require(parse_html(text), "HTML")

    @property
    def header_rows(self) -> int:
        """Number of leading rows in which every slot belongs to a header cell.

        A cell as wide as the table that heads no further header row is a section's, not a header.
        """
        rows = min((cell.row for cell in self.cells if not cell.is_header), default=self.num_rows)
        sections = {
            cell.row for cell in self.cells if cell.col_span == self.num_cols and cell.row_span == 1
        }
        while self.num_cols > 1 and rows - 1 in sections:
            rows -= 1
        return rows

    @property
    def has_spans(self) -> bool:
        """Whether a cell covers more than one slot."""
        return len(self.cells) != self.num_rows * self.num_cols

    @property
    def fits_markdown(self) -> bool:
        """Whether a pipe table can show it: no span, no newline, at most one header row."""
        return (
            not self.has_spans
            and self.header_rows <= 1
            and not any("\n" in cell.text or "\r" in cell.text for cell in self.cells)
        )

    def rows(self, *, fill_spans: bool = False) -> list[list[str]]:
        """Return the texts by row.

        Args:
            fill_spans: Repeat a cell's text in every slot it covers; otherwise the text stands in
                its upper left slot and the others are empty.

        Returns:
            ``num_rows`` lists of ``num_cols`` texts.
        """
        grid = [[""] * self.num_cols for _ in range(self.num_rows)]
        for cell in self.cells:
            for row, col in _slots(cell) if fill_spans else [(cell.row, cell.col)]:
                grid[row][col] = cell.text
        return grid

    def to_otsl(self) -> str:
        """Return OTSL that :func:`parse_otsl` reads back to an equal table."""
        tags = [[""] * self.num_cols for _ in range(self.num_rows)]
        for cell in self.cells:
            for row, col in _slots(cell):
                if row == cell.row:
                    tags[row][col] = "<lcel>"
                else:
                    tags[row][col] = "<ucel>" if col == cell.col else "<xcel>"
            if cell.is_header:
                name = "ched" if cell.row < self.header_rows else "rhed"
            else:
                name = "fcel" if cell.text else "ecel"
            tags[cell.row][cell.col] = f"<{name}>{_escape_otsl(cell.text)}"
        return _escape_otsl(self.caption) + "".join("".join(row) + "<nl>" for row in tags)

    def to_html(self) -> str:
        """Return a bare ``<table>`` element; text is escaped once, newlines become ``<br>``."""
        by_row: list[list[str]] = [[] for _ in range(self.num_rows)]
        for cell in self.cells:
            name = "th" if cell.is_header else "td"
            spans = f' rowspan="{cell.row_span}"' if cell.row_span > 1 else ""
            spans += f' colspan="{cell.col_span}"' if cell.col_span > 1 else ""
            by_row[cell.row].append(f"<{name}{spans}>{escape_html(cell.text)}</{name}>")
        caption = f"<caption>{escape_html(self.caption)}</caption>" if self.caption else ""
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in by_row)
        return f"<table>{caption}{rows}</table>"

    def to_markdown(self) -> str:
        """Return a pipe table, or HTML where :attr:`fits_markdown` is false.

        A pipe table must have a header row; where the table has none, its first row serves.
        """
        if not self.fits_markdown:
            return self.to_html()
        lines = [
            "| " + " | ".join(escape_inline(text).replace("|", r"\|") for text in row) + " |"
            for row in self.rows()
        ]
        lines.insert(1, "|" + " --- |" * self.num_cols)
        if self.caption:
            lines[:0] = [escape_inline(self.caption), ""]
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``; header rows become its columns, spans are repeated.

        Raises:
            EngineUnavailableError: If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise EngineUnavailableError(
                "pandas is not installed", hint='pip install "mdiff-adapters[pandas]"'
            ) from error
        rows = self.rows(fill_spans=True)
        head, body = rows[: self.header_rows], rows[self.header_rows :]
        if not head:
            return pd.DataFrame(body)
        columns = head[0] if len(head) == 1 else pd.MultiIndex.from_arrays(head)
        return pd.DataFrame(body, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTable:
    """What a reader made of an answer.

    Attributes:
        table: The table; None where the answer holds no cell.
        text: The answer's text where there is no table, so that nothing is lost.
        flags: What was found or repaired: ``truncated`` (ends inside a row or a tag), ``ragged``
            (rows of unequal width), ``orphan_span`` (a join without a partner), ``empty_row``
            (a row without cells, left out), ``html`` (HTML instead of OTSL), ``repaired`` (HTML
            not well formed), ``nested`` (a table in a cell, kept as its text), ``no_table``.
    """

    table: Table | None
    text: str = ""
    flags: tuple[str, ...] = ()


def parse_table_answer(text: str) -> ParsedTable:
    """Read a model's answer to the table task, OTSL or HTML.

    Args:
        text: The answer, special tokens of the model already removed.

    Returns:
        The table, or the plain text where neither format is recognised.
    """
    otsl = _TAG.search(text)
    markup = _HTML_TAG.search(text)
    if otsl and (markup is None or otsl.start() < markup.start()):
        return parse_otsl(text)
    if markup:
        parsed = parse_html(text)
        if parsed.table is not None or otsl is None:
            return parsed
    return parse_otsl(text)


def parse_otsl(text: str) -> ParsedTable:
    """Read OTSL as a stream of (tag, text) pairs.

    The text after a tag belongs to that tag whatever stands around it: an empty row or a leading
    text moves nothing. Only the known tags split; any other ``<`` is text. Text before the first
    tag becomes the caption, text behind a join goes to the cell it joins, text after ``<nl>`` to
    the cell before. Joins without a partner become cells of their own. Character references with
    a semicolon are decoded once.

    Args:
        text: The answer.

    Returns:
        The table and what was repaired.
    """
    flags: list[str] = []
    body = text.rstrip()
    if (start := body.rfind("<")) >= 0 and body[start:] in _PARTIAL_TAGS:
        body = body[:start]
        flags.append("truncated")
    first = _TAG.search(body)
    if first is None:
        return ParsedTable(table=None, text=_unescape(body), flags=(*flags, "no_table"))
    caption = [body[: first.start()]]
    rows: list[list[tuple[str, list[str]]]] = [[]]
    # Where text goes that stands right after the tag just read.
    sink = caption
    for tag, tail in _pairs(body, first.start()):
        if tag == "nl":
            if not rows[-1]:
                flags.append("empty_row")
            else:
                rows.append([])
        else:
            sink = []
            rows[-1].append((tag, sink))
        sink.append(tail)
    if rows[-1]:
        flags.append("truncated")
    else:
        rows.pop()
    width = max((len(row) for row in rows), default=0)
    if width == 0:
        return ParsedTable(table=None, text=_join(caption), flags=(*flags, "no_table"))
    if any(len(row) != width for row in rows):
        flags.append("ragged")
    # The spare cells take part in no join: a `lcel` that is missing stays missing.
    full = [[(tag, _join(parts)) for tag, parts in row] for row in rows]
    for row in full:
        row.extend([("ecel", "")] * (width - len(row)))
    cells = _resolve_joins(full, flags)
    table = Table(num_rows=len(full), num_cols=width, cells=cells, caption=_join(caption))
    return ParsedTable(table=table, flags=_unique(flags))


def parse_html(text: str) -> ParsedTable:
    """Read an HTML table, closed or not.

    Only ``rowspan`` and ``colspan`` are taken over; scripts and styles are dropped, other inline
    markup keeps its text (``<sup>`` and ``<sub>`` keep their tags, as in text answers). A table in
    a cell becomes text of that cell, a second table more rows of the first. Text outside of the
    cells becomes the caption.

    Args:
        text: The answer.

    Returns:
        The table and what was repaired.
    """
    body = _PARTIAL_CHARACTER_REFERENCE.sub("", _PARTIAL_HTML_TAG.sub("", text.rstrip()))
    reader = _HtmlReader()
    # Two formats in one answer: what is no cell here must not show as a tag either.
    reader.feed(_LONE_ANGLE.sub("&lt;", _TAG.sub(" ", body)))
    reader.close()
    reader.finish()
    flags = ["html", *reader.flags]
    if body != text.rstrip():
        flags.append("truncated")
    if not any(reader.rows):
        caption = "".join(reader.outside).strip()
        return ParsedTable(table=None, text=caption, flags=_unique([*flags, "no_table"]))
    cells, num_cols, found = _place(reader.rows)
    flags += found
    caption = "".join(reader.outside).strip()
    table = Table(num_rows=len(reader.rows), num_cols=num_cols, cells=cells, caption=caption)
    return ParsedTable(table=table, flags=_unique(flags))


def _require(parsed: ParsedTable, kind: str) -> Table:
    if parsed.table is None:
        raise ValueError(f"no table cell in this {kind} text: {parsed.text[:80]!r}")
    return parsed.table


def _slots(cell: Cell) -> Iterator[tuple[int, int]]:
    for row in range(cell.row, cell.row + cell.row_span):
        for col in range(cell.col, cell.col + cell.col_span):
            yield row, col


def _pairs(body: str, start: int) -> Iterator[tuple[str, str]]:
    """Yield every tag from ``start`` on with the text up to the next tag."""
    matches = list(_TAG.finditer(body, start))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        end = following.start() if following is not None else len(body)
        yield match.group(1), body[match.end() : end]


def _resolve_joins(grid: list[list[tuple[str, str]]], flags: list[str]) -> tuple[Cell, ...]:
    """Turn tags into cells: each free slot, row by row, opens the largest cell its joins allow."""
    num_rows, num_cols = len(grid), len(grid[0])
    taken = [[False] * num_cols for _ in range(num_rows)]
    cells = []
    for row in range(num_rows):
        for col in range(num_cols):
            if taken[row][col]:
                continue
            tag = grid[row][col][0]
            if tag in _SPAN_TAGS:
                flags.append("orphan_span")
            width = 1
            while (
                col + width < num_cols
                and grid[row][col + width][0] == "lcel"
                and not taken[row][col + width]
            ):
                width += 1
            height = 1
            while row + height < num_rows and _joins_up(grid[row + height], col, width):
                height += 1
            cell = Cell(
                row=row, col=col, row_span=height, col_span=width, is_header=tag in _HEADER_TAGS
            )
            texts = []
            for r, c in _slots(cell):
                taken[r][c] = True
                texts.append(grid[r][c][1])
            cells.append(replace(cell, text=" ".join(filter(None, texts))))
    return tuple(cells)


def _joins_up(row: list[tuple[str, str]], col: int, width: int) -> bool:
    """Whether the slots of ``row`` below a cell all belong to it, so that it stays a rectangle."""
    below = [tag for tag, _ in row[col : col + width]]
    return below[0] == "ucel" and all(tag in _SPAN_TAGS for tag in below)


def _escape_otsl(text: str) -> str:
    """Protect what :func:`parse_otsl` would read as a tag, a cut tag or a character reference."""
    text = _ENTITY.sub(lambda match: f"&amp;{match.group()[1:]}", text)
    text = _TAG.sub(lambda match: f"&lt;{match.group()[1:]}", text)
    start = text.rfind("<")
    if start >= 0 and text[start:] in _PARTIAL_TAGS:
        text = f"{text[:start]}&lt;{text[start + 1 :]}"
    return text


def _unescape(text: str) -> str:
    return _ENTITY.sub(_decode, text).strip()


def _decode(entity: re.Match[str]) -> str:
    # `html.unescape` takes `&copying;` for a sign and `ing;`.
    known = entity.group()[1] == "#" or entity.group()[1:] in html5
    return html.unescape(entity.group()) if known else entity.group()


def _join(parts: Iterable[str]) -> str:
    return " ".join(filter(None, (_unescape(part) for part in parts)))


def _unique(flags: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flags))


@dataclass(slots=True)
class _HtmlCell:
    parts: list[str]
    row_span: int
    col_span: int
    is_header: bool

    @property
    def text(self) -> str:
        return "".join(self.parts).strip()


class _HtmlReader(HTMLParser):
    """Collects rows of cells; every implied end of a cell or row is taken as given."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[_HtmlCell]] = []
        self.outside: list[str] = []
        self.flags: list[str] = []
        self._cell: _HtmlCell | None = None
        self._depth = 0
        self._row_open = False
        self._skipped: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._skipped = tag
        elif tag in ("sup", "sub"):
            self._write(f"<{tag}>")
        elif tag not in _DROPPED_MARKUP:
            # `x<y>z` is not markup: what is no element of HTML stays text.
            self._write(self.get_starttag_text() or "")
        elif tag == "table":
            self._depth += 1
            if self._depth > 1:
                self.flags.append("nested")
                self._write("\n")
        elif self._depth > 1:
            self._write({"tr": "\n", "td": " ", "th": " ", "br": "\n"}.get(tag, ""))
        elif tag == "tr":
            self._open_row()
        elif tag in ("td", "th"):
            self._open_cell(tag, dict(attrs))
        elif tag == "br":
            self._write("\n")
        elif tag in _BLOCK_MARKUP:
            self._break_line()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag in _DROPPED_MARKUP or tag in ("sup", "sub"):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipped:
            self._skipped = None
        elif tag in ("sup", "sub") or tag not in _DROPPED_MARKUP:
            self._write(f"</{tag}>")
        elif tag == "table":
            if self._depth > 1:
                self._write("\n")
            else:
                self._cell = None
                self._row_open = False
            self._depth = max(self._depth - 1, 0)
        elif self._depth > 1:
            return
        elif tag in ("td", "th"):
            self._cell = None
        elif tag == "tr":
            self._cell = None
            self._row_open = False
        elif tag in _BLOCK_MARKUP:
            self._break_line()

    def handle_data(self, data: str) -> None:
        if self._skipped is None:
            self._write(re.sub(r"[\n\r\t]+", " ", data))

    def finish(self) -> None:
        """Note what was still open at the end of the text."""
        if self._depth or self._row_open or self._cell is not None:
            self.flags.append("repaired")

    def _parts(self) -> list[str]:
        return self.outside if self._cell is None else self._cell.parts

    def _write(self, text: str) -> None:
        self._parts().append(text)

    def _break_line(self) -> None:
        """Begin a new line, once: the white space between two tags is none of the text."""
        parts = self._parts()
        while parts and not parts[-1].strip(" "):
            parts.pop()
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")

    def _open_row(self) -> None:
        if self._row_open or self._depth == 0:
            self.flags.append("repaired")
        self._cell = None
        self._row_open = True
        self.rows.append([])

    def _open_cell(self, tag: str, attributes: dict[str, str | None]) -> None:
        if not self._row_open:
            self._open_row()
            self.flags.append("repaired")
        if self._cell is not None:
            self.flags.append("repaired")
        self._cell = _HtmlCell(
            parts=[],
            row_span=_span(attributes.get("rowspan"), _MAX_ROW_SPAN),
            col_span=_span(attributes.get("colspan"), _MAX_COL_SPAN),
            is_header=tag == "th",
        )
        self.rows[-1].append(self._cell)


def _span(value: str | None, limit: int) -> int:
    """Read a span attribute; anything that is not a positive number counts as 1."""
    match = re.match(r"\s*([0-9]{1,6})", value or "")
    return min(max(int(match.group(1)), 1), limit) if match else 1


def _place(rows: list[list[_HtmlCell]]) -> tuple[tuple[Cell, ...], int, list[str]]:
    """Give each cell the first free slot of its row; cells never overlap, holes become cells.

    Returns:
        The cells, the number of columns, and flags.
    """
    flags = []
    taken: dict[tuple[int, int], bool] = {}
    cells = []
    for row, sources in enumerate(rows):
        col = 0
        for source in sources:
            while (row, col) in taken:
                col += 1
            width = 1
            while width < source.col_span and (row, col + width) not in taken:
                width += 1
            height = min(source.row_span, len(rows) - row)
            if width > 1 and (col + width) * len(rows) > _MAX_SLOTS:
                width = 1
                flags.append("repaired")
            cell = Cell(row=row, col=col, text=source.text, row_span=height, col_span=width,
                        is_header=source.is_header)  # fmt: skip
            cells.append(cell)
            taken.update(dict.fromkeys(_slots(cell), True))
            col += width
    num_cols = max(col for _, col in taken) + 1
    holes = [
        Cell(row=row, col=col)
        for row in range(len(rows))
        for col in range(num_cols)
        if (row, col) not in taken
    ]
    return (*cells, *holes), num_cols, flags + ["ragged"] * bool(holes)
