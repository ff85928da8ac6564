"""The table model and its readers: C1 to C11 of the faults list, and random grids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.tables import Cell, Table, parse_html, parse_otsl, parse_table_answer

TAGS = ("fcel", "ecel", "lcel", "ucel", "xcel", "nl", "ched", "rhed", "srow")
PARTIAL = re.compile(r"<(?:f|fc|fce|fcel|e|ec|ece|ecel|l|lc|lce|lcel|n|nl)?$")

# No control characters: HTML cannot carry them, and a carriage return is a newline there.
plain = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n"), max_size=12
).map(lambda text: "\n".join(line.strip() for line in text.strip().split("\n")))
tricky = st.sampled_from(
    ["", "a < b", "x<y>z", "&lt;", "&amp;amp;", "p<0.05", "<b>bold</b>", "<fcel>", "a<", "<nl",
     "&#38;", r"\(x_1 < 2\)", "a | b", "R&D", "&copy", "<td>", "</table>", "<sup>2</sup>",
     "<script>", "]]>"]
)  # fmt: skip
fragments = st.sampled_from(
    ["<", ">", "/", "t", "d", "r", "a", "&", "lt;", "<td>", "<tr>", "</table>", "<td rowspan=3>",
     '<td colspan="9999999">', "<fcel>", "<nl>", "<lcel>", "<script>", "<table>", "\n",
     "<!--", "&#x"]
)  # fmt: skip
stream_texts = st.sampled_from(["", "", "w", "a < b"])
texts = st.one_of(plain, tricky)


@st.composite
def tables(draw: st.DrawFn, with_headers: bool = True) -> Table:
    """A random grid with random spans, filled slot by slot."""
    num_rows = draw(st.integers(1, 6))
    num_cols = draw(st.integers(1, 6))
    taken: set[tuple[int, int]] = set()
    cells = []
    for row in range(num_rows):
        for col in range(num_cols):
            if (row, col) in taken:
                continue
            col_span = 1
            limit = draw(st.integers(1, 3))
            while (
                col_span < limit
                and col + col_span < num_cols
                and (row, col + col_span) not in taken
            ):
                col_span += 1
            row_span = draw(st.integers(1, min(3, num_rows - row)))
            taken |= {(row + i, col + j) for i in range(row_span) for j in range(col_span)}
            cells.append(
                Cell(row=row, col=col, text=draw(texts), row_span=row_span, col_span=col_span,
                     is_header=with_headers and draw(st.booleans()))
            )  # fmt: skip
    return Table(num_rows=num_rows, num_cols=num_cols, cells=tuple(cells), caption=draw(texts))


def grid(answer: str) -> list[list[str]]:
    parsed = parse_table_answer(answer)
    assert parsed.table is not None
    return parsed.table.rows()


@given(tables())
@settings(max_examples=60)
def test_otsl_round_trip(table: Table) -> None:
    assert Table.from_otsl(table.to_otsl()) == table
    assert parse_otsl(table.to_otsl()).flags == ()


@given(tables())
@settings(max_examples=60)
def test_html_round_trip(table: Table) -> None:
    parsed = parse_html(table.to_html())
    assert parsed.table == table
    assert parsed.flags == ("html",)


@given(
    st.lists(st.tuples(st.sampled_from(TAGS), stream_texts), max_size=40),
    st.sampled_from(["", "head"]),
)
@settings(max_examples=60)
def test_any_tag_stream_is_covered_once_and_keeps_its_text(
    stream: list[tuple[str, str]], lead: str
) -> None:
    # The constructor of Table refuses holes and overlaps, so building it is half of the proof.
    numbered = [(tag, f"{text}{i}" if text else "") for i, (tag, text) in enumerate(stream)]
    parsed = parse_otsl(lead + "".join(f"<{tag}>{text}" for tag, text in numbered))
    shown = parsed.text
    if parsed.table is not None:
        slots = sum(cell.row_span * cell.col_span for cell in parsed.table.cells)
        assert slots == parsed.table.num_rows * parsed.table.num_cols
        shown = " ".join([parsed.table.caption, *(cell.text for cell in parsed.table.cells)])
    assert sorted(shown.split()) == sorted(" ".join([lead, *(t for _, t in numbered)]).split())


@given(st.lists(fragments, max_size=15).map("".join))
@settings(max_examples=60)
def test_any_text_is_read_without_an_exception(answer: str) -> None:
    parsed = parse_table_answer(answer)
    if parsed.table is not None:
        assert parse_otsl(parsed.table.to_otsl()).table == parsed.table
        assert parsed.table.to_html().startswith("<table>")


def test_leading_text_becomes_the_caption_c1() -> None:
    parsed = parse_otsl("Table 1 <fcel>a<fcel>b<nl><fcel>c<fcel>d<nl>")
    assert parsed.table is not None
    assert parsed.table.rows() == [["a", "b"], ["c", "d"]]
    assert parsed.table.caption == "Table 1"


@pytest.mark.parametrize(
    "answer",
    [
        "<fcel>a<fcel>b<nl><nl><fcel>c<fcel>d<nl>",
        "<nl><fcel>a<fcel>b<nl><fcel>c<fcel>d<nl>",
        "<fcel>a<fcel>b<nl>\n<fcel>c<fcel>d<nl><nl>",
    ],
)
def test_empty_rows_move_no_text_c2(answer: str) -> None:
    assert grid(answer) == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("a < b", "a < b"),
        ("x<y>z", "x<y>z"),
        ("&lt;", "<"),
        ("&amp;amp;", "&amp;"),
        ("&lt;x&gt;", "<x>"),
        ("p<0.05", "p<0.05"),
        ("<b>bold</b>", "<b>bold</b>"),
        (r"\(x_1 < 2\)", r"\(x_1 < 2\)"),
        ("AT&T &copy 2020", "AT&T &copy 2020"),
        ("R&copying; &notit;", "R&copying; &notit;"),
    ],
)
def test_less_than_and_entities_c3_c11(cell: str, text: str) -> None:
    parsed = parse_otsl(f"<fcel>{cell}<fcel>x<nl>")
    assert parsed.table is not None
    assert parsed.table.rows() == [[text, "x"]]
    assert Table.from_html(parsed.table.to_html()) == parsed.table
    assert "&amp;lt;" not in parse_otsl("<fcel>&lt;x&gt;<nl>").table.to_html()  # type: ignore[union-attr]


def test_ragged_rows_are_padded_c4() -> None:
    parsed = parse_otsl("<fcel>a<fcel>b<fcel>c<nl><fcel>d<nl><fcel>e<fcel>f<fcel>g<nl>"
                        "<fcel>h<fcel>i<fcel>j<fcel>k<fcel>l<nl>")  # fmt: skip
    assert parsed.table is not None
    assert (parsed.table.num_rows, parsed.table.num_cols) == (4, 5)
    assert "".join(cell.text for cell in parsed.table.cells) == "abcdefghijkl"
    assert parsed.flags == ("ragged",)


@pytest.mark.parametrize("num_rows", [12, 40, 300])
def test_spans_do_not_fill_the_memory(num_rows: int) -> None:
    """Rows that each claim a thousand columns beside those of the rows above them."""
    row = '<tr><td rowspan="100" colspan="1000">a</td></tr>'
    parsed = parse_html(f"<table>{row * num_rows}</table>")
    assert parsed.table is not None
    assert parsed.table.num_rows == num_rows
    assert parsed.table.num_rows * parsed.table.num_cols <= 100_000
    assert "repaired" in parsed.flags
    assert [cell.text for cell in parsed.table.cells].count("a") == num_rows


def test_two_dimensional_span_c5() -> None:
    table = Table.from_otsl("<fcel>a<lcel><fcel>b<nl><ucel><xcel><fcel>c<nl>")
    assert table.cells[0] == Cell(row=0, col=0, text="a", row_span=2, col_span=2)
    assert table.rows() == [["a", "", "b"], ["", "", "c"]]
    assert table.rows(fill_spans=True) == [["a", "a", "b"], ["a", "a", "c"]]


@pytest.mark.parametrize(
    ("answer", "rows", "spans"),
    [
        # a join at the edge has no partner and becomes an empty cell
        ("<lcel><fcel>a<nl>", [["", "a"]], []),
        ("<ucel><fcel>a<nl><fcel>b<fcel>c<nl>", [["", "a"], ["b", "c"]], []),
        ("<xcel><fcel>a<nl>", [["", "a"]], []),
        # the second row's lcel would make an L of the cell above
        ("<fcel>a<fcel>b<nl><ucel><lcel><nl>", [["a", "b"], ["", ""]], [(0, 0, 2, 1)]),
        # a T: the stem below the bar is narrower than the bar
        ("<fcel>a<lcel><lcel><nl><fcel>b<ucel><fcel>c<nl>",
         [["a", "", ""], ["b", "", "c"]], [(0, 0, 1, 3)]),
    ],
)  # fmt: skip
def test_orphan_joins_c5(
    answer: str, rows: list[list[str]], spans: list[tuple[int, int, int, int]]
) -> None:
    parsed = parse_otsl(answer)
    assert parsed.table is not None
    assert parsed.table.rows() == rows
    assert "orphan_span" in parsed.flags
    wide = [(c.row, c.col, c.row_span, c.col_span) for c in parsed.table.cells
            if c.row_span * c.col_span > 1]  # fmt: skip
    assert wide == spans


def test_text_behind_a_join_goes_to_the_joined_cell_c5() -> None:
    assert grid("<fcel>a<lcel>more<fcel>b<nl>") == [["a more", "", "b"]]
    assert grid("<fcel>a<nl>stray<fcel>b<nl>") == [["a stray"], ["b"]]


def test_every_cut_is_read_and_flagged_c6() -> None:
    answer = "<fcel>größe<fcel>b<lcel><nl><fcel>c<ucel><ecel><nl>"
    data = answer.encode()
    whole_rows = {data.index(b"<nl>") + 4}
    for end in range(1, len(data)):
        parsed = parse_otsl(data[:end].decode(errors="ignore"))
        shown = [parsed.text]
        if parsed.table is not None:
            shown = [cell.text for cell in parsed.table.cells]
        assert not any(PARTIAL.search(text) for text in shown), (end, shown)
        # A cut between two rows cannot be seen in the text: the finish reason tells it.
        assert ("truncated" in parsed.flags or "no_table" in parsed.flags) == (
            end not in whole_rows
        ), end


@pytest.mark.parametrize(
    ("answer", "rows", "flags"),
    [
        ("<table><tr><td>a</td><th>b</th></tr></table>", [["a", "b"]], ("html",)),
        ("<table><tr><td>a</td>", [["a"]], ("html", "repaired")),
        ("<table><tr><td>a<td>b<tr><td>c<td>d", [["a", "b"], ["c", "d"]], ("html", "repaired")),
        ("<tr><td>a</td></tr>", [["a"]], ("html", "repaired")),
        ("<table><tr><td>a<script>alert(1)</script></td></tr></table>", [["a"]], ("html",)),
        ("<table><tr><td onclick='x()'>a</td></tr></table>", [["a"]], ("html",)),
        ("<table><tr><td>a</td><td>b</t", [["a", "b"]], ("html", "repaired", "truncated")),
        ("<table><tr><td>x<sup>2</sup></td><td>a<br>b</td></tr></table>",
         [["x<sup>2</sup>", "a\nb"]], ("html",)),
        ("<table><tr><td>p < 0.05</td><td>x<y>z</td></tr></table>",
         [["p < 0.05", "x<y>z"]], ("html",)),
        ("<table><tr><td>&lt;</td><td>&amp;amp;</td></tr></table>", [["<", "&amp;"]], ("html",)),
        ("<table><tr><td><p>one</p> <p>two</p></td><td>a<div>b</div></td></tr></table>",
         [["one\ntwo", "a\nb"]], ("html",)),
        ("<table><tr><td><ul><li>x</li><li>y</li></ul></td><td><p></p></td></tr></table>",
         [["x\ny", ""]], ("html",)),
        ("<table><tr><td>if x<y</td><td>a <x/> b</td><td/></tr></table>",
         [["if x<y", "a <x/> b", ""]], ("html",)),
        ("<table><!-- a note --><tr><td title='a<b'>q</td></tr></table>", [["q"]], ("html",)),
    ],
)  # fmt: skip
def test_html_answers_c8(answer: str, rows: list[list[str]], flags: tuple[str, ...]) -> None:
    parsed = parse_table_answer(answer)
    assert parsed.table is not None
    assert parsed.table.rows() == rows
    assert parsed.flags == flags
    assert Table.from_html(parsed.table.to_html()) == parsed.table


def test_raised_and_lowered_text_shows_as_such() -> None:
    html = Table.from_rows([["x<sup>2</sup> <sub>", "<b>"]]).to_html()
    assert "x<sup>2</sup> &lt;sub&gt;" in html and "&lt;b&gt;" in html


def test_nested_html_keeps_the_inner_text_c8() -> None:
    parsed = parse_html(
        "<table><tr><td>a<table><tr><td>b</td><td>c</td></tr></table>d</td><td>e</td></tr></table>"
    )
    assert parsed.table is not None
    assert parsed.table.num_cols == 2
    assert parsed.table.cells[0].text.split() == ["a", "b", "c", "d"]
    assert parsed.table.cells[1].text == "e"
    assert parsed.flags == ("html", "nested")


def test_html_spans_never_overlap_c5() -> None:
    table = Table.from_html(
        "<table><tr><td rowspan=2>a</td><td colspan=2>b</td></tr>"
        "<tr><td colspan=3>c</td></tr></table>"
    )
    assert table.rows() == [["a", "b", "", ""], ["", "c", "", ""]]
    assert table.num_cols == 4


def test_huge_span_attributes_are_limited() -> None:
    table = Table.from_html("<table><tr><td rowspan=99999 colspan=999999>a</td></tr></table>")
    assert (table.num_rows, table.num_cols) == (1, 1000)


def test_header_tags_c9() -> None:
    parsed = parse_otsl("<ched>h1<ched>h2<nl><rhed>r<fcel>a<nl><srow>s<lcel><nl>")
    assert parsed.table is not None
    assert parsed.table.rows() == [["h1", "h2"], ["r", "a"], ["s", ""]]
    assert [cell.is_header for cell in parsed.table.cells] == [True, True, True, False, True]
    assert parsed.table.header_rows == 1
    assert parsed.table.to_html() == (
        '<table><tr><th>h1</th><th>h2</th></tr><tr><th>r</th><td>a</td></tr>'
        '<tr><th colspan="2">s</th></tr></table>'
    )  # fmt: skip


def test_answers_without_a_table_keep_their_text() -> None:
    parsed = parse_table_answer("I cannot read this table.")
    assert (parsed.table, parsed.text) == (None, "I cannot read this table.")
    assert parsed.flags == ("no_table",)
    assert grid("<table> <fcel>a<nl>") == [["a"]]


def test_pipe_table_only_where_it_can_show_everything() -> None:
    table = Table.from_rows([["a|b", "c"], ["d"]], header_rows=1)
    assert table.to_markdown() == "| a\\|b | c |\n| --- | --- |\n| d |  |"
    assert Table.from_rows([["a\nb"]]).to_markdown() == "<table><tr><td>a<br>b</td></tr></table>"
    spanned = Table.from_otsl("<fcel>a<lcel><nl>")
    assert not spanned.fits_markdown
    assert spanned.to_markdown() == spanned.to_html()


def test_pandas_frame() -> None:
    frame = Table.from_otsl("<ched>x<ched>y<nl><fcel>1<fcel>2<nl><fcel>3<lcel><nl>").to_pandas()
    assert list(frame.columns) == ["x", "y"]
    assert frame.to_numpy().tolist() == [["1", "2"], ["3", "3"]]
    assert Table.from_rows([["a", "b"]]).to_pandas().shape == (1, 2)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((Cell(row=0, col=0),), "not covered"),
        ((Cell(row=0, col=0, col_span=2), Cell(row=0, col=1)), "second time"),
        ((Cell(row=0, col=0, col_span=3),), "leaves the grid"),
        ((Cell(row=-1, col=0, col_span=2),), "leaves the grid"),
        ((Cell(row=0, col=0, row_span=0),), "leaves the grid"),
    ],
)
def test_a_table_covers_every_slot_once(cells: tuple[Cell, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(num_rows=1, num_cols=2, cells=cells)


def test_no_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="1 x 1"):
        Table.from_rows([])
    with pytest.raises(ValueError, match="no table cell"):
        Table.from_otsl("words")
    with pytest.raises(ValueError, match="no table cell"):
        Table.from_html("words")
