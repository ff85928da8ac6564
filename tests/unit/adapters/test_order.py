"""Reading order and paragraphs from geometry alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.segmenters.order import (
    LineBox,
    crossed_gutters,
    deskewed_boxes,
    font_size,
    group_paragraphs,
    reading_order,
)

H = 30
PITCH = 40


def column(x0: float, x1: float, y0: float, num: int, pitch: float = PITCH) -> list[list[float]]:
    return [[x0, y0 + n * pitch, x1, y0 + n * pitch + H] for n in range(num)]


def order_of(*groups: list[list[float]], seed: int = 0) -> list[int]:
    """The order in which lines given group by group are read; they are shuffled before."""
    lines = [line for group in groups for line in group]
    shuffled = np.random.default_rng(seed).permutation(len(lines))
    boxes = np.array([lines[i] for i in shuffled], dtype=float)
    blocks = reading_order(boxes)
    return [int(shuffled[i]) for block in blocks for row in block.rows for i in row]


@pytest.mark.parametrize("shift", [0, 13, 20])
def test_two_columns_under_a_title_and_above_a_foot(shift: int) -> None:
    title = [[300, 20, 900, 70]]
    left, right = column(100, 560, 120, 12), column(640, 1100, 120 + shift, 12)
    foot = [[100, 700, 1100, 730]]
    read = order_of(title, left, right, foot)
    assert read == list(range(len(read)))


def test_three_columns_of_uneven_length_and_ragged_lines() -> None:
    rng = np.random.default_rng(3)
    columns = [
        column(x, x + 300, 100 + dy, n) for x, dy, n in ((50, 0, 14), (400, 7, 9), (750, 3, 14))
    ]
    for lines in columns:
        for line in lines[::3]:
            line[2] -= int(rng.integers(10, 120))
    read = order_of(*columns)
    assert read == list(range(len(read)))


def test_a_heading_across_the_columns_divides_them() -> None:
    above = column(100, 560, 100, 5), column(640, 1100, 100, 5)
    heading = [[100, 310, 1100, 350]]
    below = column(100, 560, 370, 5), column(640, 1100, 370, 5)
    read = order_of(*above, heading, *below)
    assert read == list(range(len(read)))


def test_a_right_column_that_starts_above_the_left_one() -> None:
    left, right = column(100, 560, 220, 10), column(640, 1100, 100, 13)
    read = order_of(left, right)
    assert read == list(range(len(read)))


def test_rows_of_a_table_stay_rows() -> None:
    rows = [
        [[100, y, 180, y + H], [300, y, 380, y + H], [500, y, 560, y + H]] for y in (100, 140, 180)
    ]
    lines = [cell for row in rows for cell in row]
    read = order_of(lines)
    assert read == list(range(9))
    [block] = reading_order(np.array(lines, dtype=float))
    assert block.tabular
    assert [len(row) for row in block.rows] == [3, 3, 3]


def test_a_table_of_contents_is_read_row_by_row() -> None:
    entries = column(100, 600, 100, 6)
    numbers = column(950, 990, 100, 6)
    read = order_of(entries, numbers)
    assert read == [i for row in zip(range(6), range(6, 12), strict=True) for i in row]


def test_a_table_ends_where_the_rows_stop() -> None:
    cells = [[x, y, x + 80, y + H] for y in (100, 140, 180) for x in (100, 300, 500)]
    heading = [[100, 320, 420, 350]]
    blocks = reading_order(np.array(cells + heading, dtype=float))
    assert [block.tabular for block in blocks] == [True, False]
    assert blocks[1].rows == ((9,),)


def test_a_wide_space_in_a_line_does_not_break_its_column() -> None:
    lines = column(100, 1000, 100, 3)
    broken = [[100, 220, 480, 250], [560, 220, 1000, 250]]
    more = column(100, 1000, 260, 3)
    blocks = reading_order(np.array(lines + broken + more, dtype=float))
    assert len(blocks) == 1
    assert blocks[0].rows == ((0,), (1,), (2,), (3, 4), (5,), (6,), (7,))


def test_lines_whose_boxes_overlap_are_still_lines() -> None:
    boxes = np.array([[100, 100 + 30 * n, 900, 142 + 30 * n] for n in range(8)], dtype=float)
    [block] = reading_order(boxes)
    assert block.rows == tuple((n,) for n in range(8))


@pytest.mark.parametrize("degrees", [-3, -0.7, 0.7, 3])
def test_order_survives_skew(degrees: float) -> None:
    left, right = column(100, 560, 120, 12), column(640, 1100, 127, 12)
    boxes = np.array(left + right, dtype=np.float32)
    x0, y0, x1, y1 = boxes.T
    quads = np.stack(
        [np.stack(c, axis=1) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1
    )
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    turned = (quads @ turn).astype(np.float32)
    assert np.allclose(deskewed_boxes(turned, angle), boxes, atol=0.01)
    blocks = reading_order(deskewed_boxes(turned, angle))
    assert [i for block in blocks for row in block.rows for i in row] == list(range(24))


def test_a_box_across_a_gutter_is_found_and_a_heading_is_not() -> None:
    left, right = column(100, 560, 120, 6), column(640, 1100, 120, 6)
    across = [[100, 120 + 2 * PITCH, 1100, 120 + 2 * PITCH + H]]
    boxes = np.array(left[:2] + left[3:] + right[:2] + right[3:] + across, dtype=float)
    [(number, start, stop)] = crossed_gutters(boxes, H)
    assert (number, start, stop) == (10, 560, 640)
    heading = [[100, 120 + 2 * PITCH - 20, 1100, 120 + 2 * PITCH + H + 20]]
    assert crossed_gutters(np.concatenate([boxes[:-1], heading]), H) == []
    assert crossed_gutters(np.array(column(100, 1100, 100, 8), dtype=float), H) == []
    assert crossed_gutters(np.zeros((0, 4)), H) == []


def test_nothing_is_read_on_an_empty_page() -> None:
    assert reading_order(np.zeros((0, 4))) == []
    assert group_paragraphs([]) == []


BOXES = st.lists(
    st.tuples(*(st.integers(0, 900),) * 2, st.integers(1, 400), st.integers(1, 60)), max_size=30
)


@settings(max_examples=80)
@given(BOXES)
def test_every_line_is_read_exactly_once(found: list[tuple[int, int, int, int]]) -> None:
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in found], dtype=float).reshape(-1, 4)
    read = [i for block in reading_order(boxes) for row in block.rows for i in row]
    assert sorted(read) == list(range(len(boxes)))


def lines(*given: tuple[float, float, float, str], size: float = 30) -> list[LineBox]:
    """Lines of (x0, x1, y, text)."""
    return [LineBox(x0, y, x1, y + size, size, text) for x0, x1, y, text in given]


FULL = "a line of text that is as long as the others"


def test_lines_at_the_usual_distance_are_one_paragraph() -> None:
    text = lines(*((100, 900, 100 + PITCH * n, FULL) for n in range(6)))
    assert group_paragraphs(text) == [[0, 1, 2, 3, 4, 5]]


def test_a_gap_an_indent_and_an_early_end_begin_paragraphs() -> None:
    gap = [(100, 900, y, FULL) for y in (100, 140, 180, 260, 300)]
    assert group_paragraphs(lines(*gap)) == [[0, 1, 2], [3, 4]]
    indent = [(x, 900, 100 + PITCH * n, FULL) for n, x in enumerate((140, 100, 100, 140, 100))]
    assert group_paragraphs(lines(*indent)) == [[0, 1, 2], [3, 4]]
    early = [(100, x, 100 + PITCH * n, FULL) for n, x in enumerate((900, 900, 400, 900, 900))]
    assert group_paragraphs(lines(*early)) == [[0, 1, 2], [3, 4]]


def test_a_ragged_right_edge_begins_none() -> None:
    edges = (900, 860, 890, 835, 880, 900)
    ragged = [(100, x, 100 + PITCH * n, "wonderful " + FULL) for n, x in enumerate(edges)]
    assert group_paragraphs(lines(*ragged)) == [[0, 1, 2, 3, 4, 5]]


def test_larger_print_is_a_paragraph_of_its_own() -> None:
    title = lines((100, 900, 90, "A title"), size=45)
    text = lines(*((100, 900, 150 + PITCH * n, FULL) for n in range(3)))
    assert group_paragraphs(title + text) == [[0], [1, 2, 3]]


@pytest.mark.parametrize("marker", ["1.", "12)", "(a)", "-", "•", "[3]"])
def test_list_items_are_paragraphs_with_their_hanging_lines(marker: str) -> None:
    items = lines(
        (100, 900, 100, f"{marker} {FULL}"),
        (140, 900, 140, FULL),
        (100, 900, 180, f"{marker} {FULL}"),
        (140, 900, 220, FULL),
    )
    assert group_paragraphs(items) == [[0, 1], [2, 3]]


def test_centred_lines_stay_together() -> None:
    centred = [(300, 700, 100, "Short"), (200, 800, 140, "A longer one"), (350, 650, 180, "End")]
    assert group_paragraphs(lines(*centred)) == [[0, 1, 2]]


def test_font_sizes_do_not_depend_on_the_letters() -> None:
    # Heights as shares of the em of a usual Latin face.
    heights = {"Apply": 0.93, "HTML 12": 0.72, "some mean venom": 0.5, "gypsum": 0.71}
    for text, height in heights.items():
        assert font_size(text, height * 40) == pytest.approx(40, rel=0.03)
