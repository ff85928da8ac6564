"""The small parts: tables, cells, reading order, notes, images."""

from __future__ import annotations

import gc

import pytest
from docling.datamodel.base_models import Cluster, Page
from docling_core.types.doc import BoundingBox, CoordOrigin, DocItemLabel, Size, TableData
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from docling_mdiff.convert import region_cells, slices, to_table_element, with_header_rows
from docling_mdiff.notes import num_noted_pages, page_notes
from docling_mdiff.pages import Shot
from docling_mdiff.reading_order import ModelOrderPredictor, OrderedElement
from mdiff_adapters.document import BBox, Region, TextLine
from mdiff_adapters.segmenters import PageImage
from mdiff_adapters.tables import Table, parse_table_answer

BOX = BoundingBox(l=10.0, t=20.0, r=110.0, b=60.0, coord_origin=CoordOrigin.TOPLEFT)
WHOLE = BoundingBox(l=0.0, t=0.0, r=100.0, b=50.0, coord_origin=CoordOrigin.TOPLEFT)
CLUSTER = Cluster(id=7, label=DocItemLabel.TABLE, bbox=BOX)

TAGS = st.sampled_from(
    ["<fcel>", "<ecel>", "<lcel>", "<ucel>", "<xcel>", "<nl>", "<ched>", "a", "1", "<", " b ", "|"]
)


@settings(max_examples=200)
@given(st.lists(TAGS, max_size=40).map("".join), st.sampled_from(["none", "first", "auto"]))
def test_any_table_answer_becomes_a_whole_grid(answer, mode):
    table = parse_table_answer(answer).table
    if table is None:
        return
    element = to_table_element(with_header_rows(table, mode), CLUSTER, 3)
    assert (element.id, element.page_no) == (7, 3)
    data = TableData(
        table_cells=element.table_cells, num_rows=element.num_rows, num_cols=element.num_cols
    )
    assert len(data.grid) == table.num_rows
    assert all(len(row) == table.num_cols for row in data.grid)
    shown = [cell.text for row in data.grid for cell in row]
    assert all(cell.text in shown for cell in table.cells)
    assert not any("<fcel>" in tag or "<" in tag for tag in element.otsl_seq)


@pytest.mark.parametrize(
    ("rows", "mode", "expected"),
    [
        ([["Year", "Sum"], ["1990", "12"]], "auto", 1),
        ([["Year", "Sum"], ["1990", "12"]], "none", 0),
        ([["1989", "11"], ["1990", "12"]], "auto", 0),
        ([["1989", "11"], ["1990", "12"]], "first", 1),
        ([["", "Sum"], ["1990", "12"]], "auto", 0),  # a gap: not a header for certain
        ([["Name", "Place"], ["Ann", "Rome"]], "auto", 0),  # nothing tells them apart
        ([["Year", "Sum"]], "first", 0),  # a table is more than its head
    ],
)
def test_header_rows_are_marked_only_where_they_show(rows, mode, expected):
    assert with_header_rows(Table.from_rows(rows), mode).header_rows == expected


def test_header_rows_of_the_answer_itself_stay():
    table = Table.from_rows([["a", "b"], ["c", "d"], ["1", "2"]], header_rows=2)
    assert with_header_rows(table, "first") == table


def shot() -> Shot:
    image = Image.new("RGB", (200, 100), (240, 240, 240))
    image.paste((0, 0, 0), (20, 20, 60, 40))
    image.paste((0, 0, 0), (120, 60, 180, 80))
    page = PageImage(index=0, label="1", image=image, size_pt=(100.0, 50.0))
    return Shot(page, WHOLE)


def region(**fields) -> Region:
    return Region(id="p0r0", order=0, bbox=BBox(0.1, 0.2, 0.5, 0.6), **fields)


def test_cells_of_lines_have_the_boxes_of_the_lines():
    lines = (
        TextLine(text="one", bbox=BBox(0.1, 0.2, 0.5, 0.4), confidence=0.7),
        TextLine(text="", bbox=BBox(0.1, 0.4, 0.5, 0.5)),
        TextLine(text="two", bbox=BBox(0.1, 0.5, 0.5, 0.6)),
    )
    cells = region_cells(region(type="text", text="one two", lines=lines), BOX, WHOLE)
    assert [(c.text, c.confidence, c.from_ocr) for c in cells] == [
        ("one", 0.7, True), ("two", 1.0, True),
    ]  # fmt: skip
    assert cells[0].rect.to_bounding_box().as_tuple() == pytest.approx((10, 10, 50, 20))


def test_cells_without_known_lines_share_the_box():
    cells = region_cells(region(type="text", text="one\n\ntwo", confidence=0.5), BOX, WHOLE)
    assert [c.text for c in cells] == ["one", "two"]
    assert [c.rect.to_bounding_box().as_tuple() for c in cells] == [
        (10.0, 20.0, 110.0, 40.0), (10.0, 40.0, 110.0, 60.0),
    ]  # fmt: skip
    table = Table.from_rows([["a", ""], ["b", "c"]])
    cells = region_cells(region(type="table", table=table, text="note"), BOX, WHOLE)
    assert [c.text for c in cells] == ["a", "b c", "note"]


def test_code_stays_one_cell_and_nothing_gives_none():
    code = region(type="code", text="def f():\n    return 1")
    assert [c.text for c in region_cells(code, BOX, WHOLE)] == ["def f():\n    return 1"]
    assert region_cells(region(type="text"), BOX, WHOLE) == []


def test_slices_cover_the_box():
    parts = slices(BOX, 4)
    assert [part.t for part in parts] == [20, 30, 40, 50]
    assert parts[-1].b == BOX.b and {part.r for part in parts} == {BOX.r}


def test_only_keeps_the_size_and_paints_paper_around_the_boxes():
    left = BoundingBox(l=5.0, t=5.0, r=35.0, b=25.0, coord_origin=CoordOrigin.TOPLEFT)
    image = shot().only([left]).image.image
    assert image.size == (200, 100)
    assert image.getpixel((30, 30)) == (0, 0, 0)
    assert image.getpixel((150, 70)) == (240, 240, 240)
    beyond = BoundingBox(l=90.0, t=40.0, r=300.0, b=90.0, coord_origin=CoordOrigin.TOPLEFT)
    outside = BoundingBox(l=300.0, t=300.0, r=310.0, b=310.0, coord_origin=CoordOrigin.TOPLEFT)
    assert shot().only([beyond, outside]).image.image.getcolors() == [(20_000, (240, 240, 240))]


def element(cid: int, top: float, order: int | None) -> OrderedElement:
    return OrderedElement(
        cid=cid, page_no=1, page_size=Size(width=100, height=100), label=DocItemLabel.TEXT,
        text=str(cid), l=10, r=90, t=100 - top, b=95 - top,
        coord_origin=CoordOrigin.BOTTOMLEFT, order=order,
    )  # fmt: skip


def test_elements_without_a_position_follow_their_geometric_predecessor():
    top_down = [
        element(0, 0, None), element(1, 10, 2), element(2, 20, None),
        element(3, 30, None), element(4, 40, 1),
    ]  # fmt: skip
    ordered = ModelOrderPredictor().predict_reading_order(page_elements=top_down)
    assert [e.cid for e in ordered] == [0, 4, 1, 2, 3]


def test_pages_without_any_position_keep_docling_s_order():
    elements = [element(0, 40, None), element(1, 0, None)]
    assert [e.cid for e in ModelOrderPredictor().predict_reading_order(elements)] == [1, 0]


def test_notes_live_as_long_as_their_page():
    gc.collect()
    before = num_noted_pages()
    page, twin = Page(page_no=1), Page(page_no=1)
    page_notes(page).layout_seen = True
    assert page_notes(page).layout_seen and not page_notes(twin).layout_seen
    assert num_noted_pages() == before + 2
    del page, twin
    gc.collect()
    assert num_noted_pages() == before
