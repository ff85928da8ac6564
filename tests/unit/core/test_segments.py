"""Pieces of text lines: held to the pieces that the shipped checkpoint was trained with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mdiff_core.config import Capabilities
from mdiff_core.errors import ConfigError, ImageError
from mdiff_core.segments import (
    MAX_GAP_PX,
    cut_line,
    ink_columns,
    prepare_line,
    prepare_piece,
    trim_rows,
)

CANVAS = Capabilities(tasks=("text",), text_unit="segment", segment_px=(896, 28), stretch=2.4)


def line(*runs: tuple[int, int], height: int = 28, paper: int = 255, ink: int = 0) -> np.ndarray:
    """A line whose columns are ink or paper, from runs of (ink columns, paper columns)."""
    parts = []
    for dark, light in runs:
        band = np.full((height, dark), paper, dtype=np.uint8)
        band[height // 3 : height // 3 + height // 4] = ink
        parts += [band, np.full((height, light), paper, dtype=np.uint8)]
    return np.concatenate(parts, axis=1)


def test_prepared_pieces_are_pixel_equal_to_the_recorded_ones(shared_dir: Path) -> None:
    runs = json.loads((shared_dir / "golden" / "tiny" / "runs.json").read_text())
    files: dict[str, list[str]] = {}
    for entry in json.loads((shared_dir / "lines" / "lines.json").read_text()):
        files.setdefault(entry["text"], []).append(entry["file"])
    for run in runs:
        number = int(run["image"][3])
        recorded = np.asarray(Image.open(shared_dir / "golden" / "tiny" / run["image"]))
        differences = []
        # One text may stand on several lines; one of them is the recorded one.
        for file in files[run["line"]]:
            gray = np.asarray(Image.open(shared_dir / "lines" / file).convert("L"))
            # Recorded before pieces of a line were made equally long.
            pieces = cut_line(gray, CANVAS, max_piece_px=880)
            if number < len(pieces):
                own = np.asarray(prepare_piece(pieces[number], CANVAS)).astype(int)
                differences.append(int(np.abs(own - recorded).max()))
        assert min(differences) == 0, run["image"]


def test_a_short_line_is_one_piece_at_the_left_margin() -> None:
    [(image, after_gap)] = prepare_line(line((20, 5)), CANVAS)
    assert (image.size, image.mode, after_gap) == ((896, 28), "RGB", False)
    dark = np.flatnonzero((np.asarray(image)[:, :, 0] < 128).any(axis=0))
    assert 5 <= dark[0] <= 7
    assert 6 + 20 * 2.4 - 3 <= dark[-1] <= 6 + 20 * 2.4 + 1


def test_a_long_line_is_cut_in_the_middle_of_its_widest_gap() -> None:
    # 300 px stretched to 720: gaps of 10 (24 stretched) and 16 (38) lie in the cut zone.
    gray = line((200, 10), (80, 16), (200, 0))
    first, second = cut_line(gray, CANVAS)
    cut = round((200 + 10 + 80 + 8) * 2.4)
    assert first.pixels.shape[1] == pytest.approx(cut, abs=2)
    assert (first.after_gap, second.after_gap) == (False, True)
    assert first.pixels.shape[1] + second.pixels.shape[1] == round(gray.shape[1] * 2.4)


def test_pieces_of_a_line_are_about_equally_long() -> None:
    # 12 words of 32 px, 77 stretched, and gaps of 29: ten fit the canvas, two would be left over.
    gray = line(*[(32, 12)] * 12)
    lengths = [piece.pixels.shape[1] for piece in cut_line(gray, CANVAS)]
    assert len(lengths) == 2
    assert max(lengths) - min(lengths) < 110
    longest = [piece.pixels.shape[1] for piece in cut_line(gray, CANVAS, max_piece_px=880)]
    assert len(longest) == 2 and max(longest) - min(longest) > 300
    assert sum(lengths) == sum(longest)


def test_ink_without_a_gap_is_cut_through_and_joined_without_a_space() -> None:
    pieces = cut_line(line((900, 0)), CANVAS)
    assert [piece.after_gap for piece in pieces] == [False] * len(pieces)
    assert len(pieces) >= 3
    assert all(piece.pixels.shape[1] <= 880 for piece in pieces)


def test_light_text_on_dark_paper_is_cut_at_the_same_places() -> None:
    runs = ((200, 10), (80, 16), (200, 0))
    dark = cut_line(line(*runs), CANVAS)
    light = cut_line(line(*runs, paper=0, ink=255), CANVAS)
    assert [p.pixels.shape for p in dark] == [p.pixels.shape for p in light]
    assert [p.background for p in light] == [0, 0]


def test_pale_text_counts_as_ink() -> None:
    assert ink_columns(line((10, 30), paper=200, ink=170), 200).sum() == 10


@pytest.mark.parametrize("paper", [0, 128, 255])
def test_a_line_without_ink_has_no_pieces(paper: int) -> None:
    assert cut_line(np.full((30, 500), paper, dtype=np.uint8), CANVAS) == []


def test_wide_paper_before_and_after_the_text_is_left_out() -> None:
    blank = np.full((28, 2000), 255, dtype=np.uint8)
    gray = np.concatenate([blank, line((30, 0)), blank], axis=1)
    [piece] = cut_line(gray, CANVAS)
    ink = np.flatnonzero((piece.pixels < 128).any(axis=0))
    assert ink[0] < 60
    assert piece.pixels.shape[1] <= 880


def test_the_canvas_comes_from_the_checkpoint() -> None:
    canvas = replace(CANVAS, segment_px=(448, 56), stretch=1.0)
    [piece] = cut_line(line((20, 0)), canvas)
    assert piece.pixels.shape == (56, 40)
    assert prepare_piece(piece, canvas).size == (448, 56)


def test_a_checkpoint_of_regions_has_no_pieces() -> None:
    with pytest.raises(ConfigError, match="unit segment"):
        prepare_line(line((20, 0)), Capabilities())


@pytest.mark.parametrize(
    "bad",
    [np.zeros((0, 5), np.uint8), np.zeros((5, 0), np.uint8), np.zeros((5, 5, 3), np.uint8),
     np.zeros((5, 5), np.float32)],
)  # fmt: skip
def test_what_is_no_grey_line_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ImageError, match="grey uint8"):
        cut_line(bad, CANVAS)


@settings(max_examples=40)
@given(
    runs=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 80)), min_size=1, max_size=8),
    height=st.integers(12, 90),
)
def test_pieces_fit_the_canvas_and_lose_no_ink(runs: list[tuple[int, int]], height: int) -> None:
    gray = line(*runs, height=height)
    pieces = cut_line(gray, CANVAS)
    width = max(1, round(gray.shape[1] * 28 / height * 2.4))
    whole = np.asarray(Image.fromarray(gray).resize((width, 28), Image.Resampling.BICUBIC))
    # Where ink fills most of the line, the median is the ink and the paper is what stands out.
    expected = int(ink_columns(whole, float(np.median(whole))).sum())
    kept = sum(int(ink_columns(p.pixels, p.background).sum()) for p in pieces)
    assert kept == expected
    for piece in pieces:
        assert piece.pixels.shape[0] == 28
        assert piece.pixels.shape[1] <= 880
        assert prepare_piece(piece, CANVAS).size == (896, 28)


def test_wide_gaps_are_narrowed_and_columns_tell_where_from() -> None:
    # A table's row: two cells far apart. Heights equal the canvas, so only the stretch scales.
    gray = line((20, 200), (20, 5), height=28)
    [piece] = cut_line(gray, CANVAS)
    ink = ink_columns(piece.pixels, piece.background)
    inner = np.diff(np.flatnonzero(ink)).max() - 1
    assert inner == MAX_GAP_PX
    whole = np.asarray(
        Image.fromarray(gray).resize((round(gray.shape[1] * 2.4), 28), Image.Resampling.BICUBIC)
    )
    np.testing.assert_array_equal(whole[:, piece.columns], piece.pixels)
    # A gap of the usual width stays as it is.
    [close] = cut_line(line((20, 15), (20, 5), height=28), CANVAS)
    assert np.diff(close.columns).max() == 1


def letters(top: int, bottom: int, *, descends: int = 0, height: int = 60) -> np.ndarray:
    """A crop with a word between two rows, one stroke of it ``descends`` rows lower."""
    gray = np.full((height, 200), 230, dtype=np.uint8)
    gray[top:bottom, 20:180:4] = 20
    gray[bottom : bottom + descends, 100:103] = 20
    return gray


def test_rows_are_trimmed_to_the_ink_and_a_little_air() -> None:
    # 40 rows of ink with descenders: a tenth of it is kept on both sides.
    assert trim_rows(letters(10, 42, descends=8), 0.1) == slice(6, 54)
    # Without descenders a fifth is kept below, as far as the crop has it.
    assert trim_rows(letters(10, 42), 0.1) == slice(7, 48)
    assert trim_rows(letters(10, 56), 0.1) == slice(5, 60)
    assert trim_rows(letters(0, 60), 0.1) == slice(0, 60)
    # One row of soft edges stays even without any air.
    assert trim_rows(letters(10, 42, descends=8), 0.0) == slice(9, 51)


def test_light_text_on_dark_paper_is_trimmed_alike() -> None:
    gray = letters(10, 42, descends=8)
    assert trim_rows(255 - gray, 0.1) == trim_rows(gray, 0.1)


def test_nothing_is_trimmed_where_there_is_too_little_to_go_by() -> None:
    dash = np.full((60, 200), 255, dtype=np.uint8)
    dash[30:34, 50:150] = 0
    for gray in (dash, np.full((60, 200), 255, dtype=np.uint8)):
        assert trim_rows(gray, 0.04) == slice(0, 60)


def test_trimmed_letters_fill_the_canvas_whatever_the_crop() -> None:
    loose, close = letters(20, 52, descends=8, height=80), letters(4, 36, descends=8, height=48)
    [one], [other] = (cut_line(gray, replace(CANVAS, line_air=0.04)) for gray in (loose, close))
    np.testing.assert_array_equal(one.pixels, other.pixels)
    [untrimmed] = cut_line(loose, CANVAS)
    assert one.pixels.shape[1] > 1.5 * untrimmed.pixels.shape[1]
