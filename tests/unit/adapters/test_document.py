"""Boxes of the document model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.document import BBox

sides = st.integers(1, 5000)


@settings(max_examples=300)
@given(width=sides, height=sides, corners=st.tuples(*[st.integers(0, 5000)] * 4))
def test_whole_pixel_boxes_come_back_exactly(
    width: int, height: int, corners: tuple[int, int, int, int]
) -> None:
    x0, x1 = sorted(min(v, width) for v in corners[:2])
    y0, y1 = sorted(min(v, height) for v in corners[2:])
    left, top, right, bottom = BBox.from_px((x0, y0, x1, y1), (width, height)).pixels(
        (width, height)
    )
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if x1 > x0 and y1 > y0:
        assert (left, top, right, bottom) == (x0, y0, x1, y1)


@pytest.mark.parametrize("box", [(0, 0, 1.2, 1), (-0.1, 0, 1, 1), (0.5, 0, 0.4, 1),
                                 (0, float("nan"), 1, 1)])  # fmt: skip
def test_a_box_outside_the_page_is_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="box"):
        BBox(*box)


def test_geometry() -> None:
    a, b = BBox(0, 0, 0.5, 0.5), BBox(0.25, 0.25, 1, 1)
    assert a.intersection(b) == pytest.approx(0.0625)
    assert a.covered_by(b) == pytest.approx(0.25)
    assert a.union(b) == BBox(0, 0, 1, 1)
    assert BBox(0.3, 0.3, 0.3, 0.3).covered_by(a) == 0
