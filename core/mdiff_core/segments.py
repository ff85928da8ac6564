"""Text lines cut and prepared as the pieces that a ``segment`` checkpoint reads.

A checkpoint whose capabilities say ``text_unit: segment`` was trained on pieces of one text line:
scaled to the canvas height, stretched horizontally in the same resize, pasted near the left edge of
a canvas of fixed size. Every request then has one shape, and a character's position in the answer
stays close to the image token that shows it. Canvas size and stretch come from the checkpoint.

Source: the recipe the shipped ``tiny`` checkpoint was trained with; ``tests/unit/core`` holds it to
pieces prepared by that recipe, pixel by pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from mdiff_core.config import Capabilities
from mdiff_core.errors import ConfigError, ImageError

__all__ = ["Piece", "cut_line", "ink_columns", "prepare_line", "prepare_piece", "trim_rows"]

Gray = npt.NDArray[np.uint8]

LEFT_MARGIN_PX = 6
"""Where a piece starts on its canvas."""
RIGHT_MARGIN_PX = 10
"""Least background right of a piece."""
MIN_GAP_PX = 9
"""Least width of an ink-free run, after stretching, that counts as a gap between words."""
CUT_ZONE = 0.6
"""Share of the longest piece, at its end, where the cut is looked for."""
INK_LEVELS = 60
"""Grey levels from the background at which a pixel is ink, on a line of full contrast."""
INK_SHARE = 0.3
"""The same as a share of the line's own contrast, which decides on pale lines."""
FLAT_LEVELS = 4
"""A line whose grey values differ by no more than this holds no ink."""
SMALL_LETTERS_SHARE = 0.45
"""Ink of a row, relative to the fullest one, from which on it belongs to the small letters."""
DESCENT_SHARE = 0.2
"""Room kept below a line without descenders, as a share of its ink height, so that letters of one
size come out at one size whatever word they stand in."""
LEAST_KEPT = 0.45
"""Share of the rows of a crop that trimming leaves at least. What would be less is a lone dash or
dot, which must not be blown up to the height of a capital."""
EVEN_SHARES = (1.05, 1.15, 1.25)
"""Longest pieces that are tried for a line of several, as multiples of their mean length."""
MAX_AIR_PX = 48
"""Ink-free width kept before a piece; more would push its text away from the trained place."""
MAX_GAP_PX = 48
"""Ink-free width kept between words, stretched. Wider gaps, as between the cells of a table's row,
hold nothing to read, but moved what follows to places where short texts were never seen."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text line, stretched and scaled to the canvas height, not yet on its canvas.

    Attributes:
        pixels: Grey values, canvas height x piece width.
        background: Grey value of the paper.
        columns: For each column of the piece, the column of the whole scaled line it shows.
        after_gap: Whether a gap between words precedes it. False for the first piece and where a
            run of ink longer than the canvas had to be cut through: no space is put there.
    """

    pixels: Gray = field(repr=False)
    background: int
    columns: npt.NDArray[np.intp] = field(repr=False)
    after_gap: bool = False


def trim_rows(gray: Gray, air: float) -> slice:
    """Return the rows of a line's crop that its letters need: their ink and a little air.

    The canvas is a few px high, so rows without ink are paid for with the size of the letters.

    Args:
        gray: Grey values, height x width.
        air: Rows kept above and below the ink, as a share of its height; below a line without
            descenders :data:`DESCENT_SHARE`. Nothing is added where the crop has less.

    Returns:
        The rows; all of them where there is no ink or too little to go by.
    """
    height = gray.shape[0]
    ink = _is_ink(gray, float(np.median(gray))).sum(axis=1)
    rows = np.flatnonzero(ink)
    if not rows.size:
        return slice(0, height)
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    baseline = int(np.flatnonzero(ink >= SMALL_LETTERS_SHARE * ink.max())[-1]) + 1
    has_descenders = bottom - baseline > 0.1 * (bottom - top)
    above = max(1, round(air * (bottom - top)))
    below = above if has_descenders else max(1, round(DESCENT_SHARE * (bottom - top)))
    kept = slice(max(0, top - above), min(height, bottom + below))
    return kept if kept.stop - kept.start >= LEAST_KEPT * height else slice(0, height)


def ink_columns(gray: Gray, background: float) -> npt.NDArray[np.bool_]:
    """Return for each column whether it holds ink: a pixel clearly unlike the background.

    Works for dark text on light paper and for the inverse.

    Args:
        gray: Grey values, height x width.
        background: Grey value of the paper.

    Returns:
        Booleans, one a column.
    """
    return np.asarray(_is_ink(gray, background).any(axis=0))


def _is_ink(gray: Gray, background: float) -> npt.NDArray[np.bool_]:
    distance = np.abs(gray.astype(np.int16) - round(background))
    contrast = int(distance.max(initial=0))
    if contrast <= FLAT_LEVELS:
        return np.zeros(gray.shape, dtype=bool)
    return np.asarray(distance > min(INK_LEVELS, contrast * INK_SHARE), dtype=bool)


def cut_line(
    gray: Gray,
    capabilities: Capabilities,
    *,
    max_piece_px: int | None = None,
) -> list[Piece]:
    """Scale one upright text line and cut it at word gaps into pieces that fit the canvas.

    Gaps wider than :data:`MAX_GAP_PX` are narrowed to that. A line takes as few pieces as the
    canvas allows, of about equal length. A cut lies in the middle of the widest ink-free run of the
    cut zone (the last of several equally wide ones). Where no run is wide enough, it goes through
    the column with least ink.

    Args:
        gray: Grey values of the line, height x width, uint8; from just above the ascenders to just
            below the descenders.
        capabilities: Of a ``segment`` checkpoint: its canvas, its stretch, and how the line is
            trimmed before (``line_air``, see :func:`trim_rows`).
        max_piece_px: Longest piece, stretched, at most what the canvas holds with its margins (880
            px of 896); each piece is then as long as it can be, not as long as the others.

    Returns:
        The pieces from left to right; none where the line holds no ink.

    Raises:
        ImageError: If the line has no pixels or is not a grey image.
        ConfigError: If the checkpoint reads whole regions.
    """
    if gray.ndim != 2 or gray.dtype != np.uint8 or 0 in gray.shape:
        raise ImageError(
            f"a text line must be a grey uint8 image with pixels, got {gray.dtype} {gray.shape}",
            hint="convert the crop with PIL convert('L') and skip empty boxes",
        )
    canvas_width, height = _canvas_px(capabilities)
    if capabilities.line_air is not None:
        gray = gray[trim_rows(gray, capabilities.line_air)]
    room = canvas_width - LEFT_MARGIN_PX - RIGHT_MARGIN_PX
    width = max(1, round(gray.shape[1] * height / gray.shape[0] * capabilities.stretch))
    line = np.asarray(Image.fromarray(gray).resize((width, height), Image.Resampling.BICUBIC))
    background = float(np.median(line))
    ink = ink_columns(line, background)
    columns = _narrow_gaps(ink)
    line, ink = line[:, columns], ink[columns]

    longest = room if max_piece_px is None else min(max_piece_px, room)
    spans = _cut_spans(line, ink, background, longest)
    if max_piece_px is None and len(spans) > 1:
        # A long piece and a remnant are read worse, and in more forwards, than two of one length.
        mean = sum(end - start for start, end, _ in spans) / len(spans)
        for limit in (round(mean * share) for share in EVEN_SHARES if mean * share < room):
            even = _cut_spans(line, ink, background, limit)
            if len(even) == len(spans):
                spans = even
                break
    return [
        Piece(line[:, start:end], round(background), columns[start:end], after_gap)
        for start, end, after_gap in spans
    ]


def _cut_spans(
    line: Gray,
    ink: npt.NDArray[np.bool_],
    background: float,
    limit: int,
) -> list[tuple[int, int, bool]]:
    """Return (start, end, after_gap) of pieces of at most ``limit`` columns, left to right."""
    spans: list[tuple[int, int, bool]] = []
    ink_at = np.flatnonzero(ink)
    start, after_gap = 0, False
    while (following := int(np.searchsorted(ink_at, start))) < len(ink_at):
        start = max(start, int(ink_at[following]) - MAX_AIR_PX)
        # What follows the last ink may be as long as it likes: it is cut off, not read.
        if int(ink_at[-1]) + 1 - start <= limit:
            end, gap_follows = min(len(ink), start + limit), False
        else:
            end, gap_follows = _cut_column(line, ink, background, start, limit)
        spans.append((start, end, after_gap))
        start, after_gap = end, gap_follows
    return spans


def _narrow_gaps(ink: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the columns that stay when the middle of each wide gap between ink is taken out."""
    at = np.flatnonzero(ink)
    keep = np.ones(len(ink), dtype=bool)
    half = MAX_GAP_PX // 2
    for i in np.flatnonzero(np.diff(at) > MAX_GAP_PX + 1):
        keep[at[i] + 1 + half : at[i + 1] - half] = False
    return np.flatnonzero(keep)


def _cut_column(
    line: Gray,
    ink: npt.NDArray[np.bool_],
    background: float,
    start: int,
    limit: int,
) -> tuple[int, bool]:
    """Return where to end a piece that starts at ``start``, and whether a word gap is there."""
    first = start + round(limit * (1 - CUT_ZONE))
    free = np.concatenate(([False], ~ink[first : start + limit], [False])).astype(np.int8)
    edges = np.diff(free)
    begins, ends = np.flatnonzero(edges == 1) + first, np.flatnonzero(edges == -1) + first
    if begins.size:
        lengths = ends - begins
        best = int(np.flatnonzero(lengths == lengths.max())[-1])
        if lengths[best] >= MIN_GAP_PX:
            return int(begins[best] + ends[best]) // 2, True
    zone = np.abs(line[:, first : start + limit].astype(np.int16) - round(background))
    amount = zone.sum(axis=0)
    # The last of the lightest columns: the piece stays as long as it can.
    return first + int(np.flatnonzero(amount == amount.min())[-1]) + 1, False


def prepare_piece(piece: Piece, capabilities: Capabilities) -> Image.Image:
    """Put a piece on its canvas.

    Args:
        piece: A piece of :func:`cut_line`.
        capabilities: What it was cut for.

    Returns:
        RGB image of exactly ``capabilities.segment_px``.
    """
    width, height = _canvas_px(capabilities)
    canvas = np.full((height, width), piece.background, dtype=np.uint8)
    canvas[:, LEFT_MARGIN_PX : LEFT_MARGIN_PX + piece.pixels.shape[1]] = piece.pixels
    return Image.fromarray(canvas).convert("RGB")


def prepare_line(gray: Gray, capabilities: Capabilities) -> list[tuple[Image.Image, bool]]:
    """Return the images of a line's pieces, each with whether a space precedes its text.

    Args:
        gray: Grey values of the line as for :func:`cut_line`.
        capabilities: Of a ``segment`` checkpoint.

    Returns:
        RGB images of its canvas from left to right; none where the line holds no ink.

    Raises:
        ImageError: If the line has no pixels or is not a grey image.
        ConfigError: If the checkpoint reads whole regions.
    """
    pieces = cut_line(gray, capabilities)
    return [(prepare_piece(piece, capabilities), piece.after_gap) for piece in pieces]


def _canvas_px(capabilities: Capabilities) -> tuple[int, int]:
    if capabilities.segment_px is None:
        raise ConfigError("only a checkpoint of unit segment reads pieces of lines")
    return capabilities.segment_px
