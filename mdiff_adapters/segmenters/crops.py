"""From a quadrilateral on a page to the upright, tight grey crop of one text line.

The reader was trained on crops that run from just above the ascenders to just below the
descenders. A detector's box is neither that tight nor exactly along the line, so the slope is
measured again on the ink, ink of neighbouring lines and rules is painted over, and the crop is cut
to what is left.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["LineCrop", "crop_lines", "quad_angle", "quad_size", "split_crop"]

Gray = npt.NDArray[np.uint8]
Quad = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

PAD_SHARE = 0.35
"""Paper taken around a box on each side, as a share of the line height, before tightening."""
AIR_SHARE = 0.05
"""Paper kept around the ink of a line, as a share of its ink height.

Letters should fill the canvas of the reader: 0.11 costs a quarter more errors on drawn scans, below
0.05 little is gained (``tests/benchmarks/bench_pages.py --air``)."""
DESCENT_SHARE = 0.15
"""The same below a line without descenders."""
MAX_ASCENT = 1.1
"""Most that letters, with accents, rise above the core band, in heights of the band."""
MAX_DESCENT = 0.65
"""Most that letters reach below the core band, in heights of the band."""
CONTRAST_LEVELS = 12
"""Grey levels below which a crop counts as empty paper."""
MIN_SPLIT_SHARE = 0.4
"""Narrowest run at which a line is split at a gutter, as a share of its ink height."""
MAX_SLOPE = 0.03
"""Largest slope, as rise over run, that is corrected beyond the box's own angle."""
STRIPS = 24
"""Vertical strips whose row profiles are shifted against each other to find the slope."""


@dataclass(frozen=True, slots=True)
class LineCrop:
    """One text line, upright.

    Attributes:
        gray: Grey values, tight.
        quad: Corners of the crop on the page in px, clockwise from its own top left.
        ink_px: Height of the line's ink in page px.
    """

    gray: Gray = field(repr=False)
    quad: Quad
    ink_px: int


def quad_size(quad: Quad) -> tuple[float, float]:
    """Return width (along the first edge) and height of a quadrilateral in px."""
    width = (np.linalg.norm(quad[1] - quad[0]) + np.linalg.norm(quad[2] - quad[3])) / 2
    height = (np.linalg.norm(quad[3] - quad[0]) + np.linalg.norm(quad[2] - quad[1])) / 2
    return float(width), float(height)


def quad_angle(quad: Quad) -> float:
    """Return the direction of a quadrilateral's first edge in radians, clockwise on the page."""
    along = (quad[1] - quad[0]) + (quad[2] - quad[3])
    return float(np.arctan2(along[1], along[0]))


def crop_lines(
    page: Gray, quad: Quad, *, line_px: float, angle: float | None = None
) -> list[LineCrop]:
    """Cut the line, or the lines, inside a box out of a page.

    Args:
        page: Grey page, height x width.
        quad: Corners of the box, clockwise from the line's own top left.
        line_px: Typical height of a box on the page, which tells a box around two lines.
        angle: Direction of the line in radians where it is known better than from the box.

    Returns:
        Crops from top to bottom, normally one; none where there is no ink.
    """
    centre = quad.mean(axis=0)
    width, height = quad_size(quad)
    if width < 2 or height < 2:
        return []
    angle = quad_angle(quad) if angle is None else angle
    pad = PAD_SHARE * min(height, 1.5 * line_px)
    size = (round(width + 2 * pad), round(height + 2 * pad))
    crop = _rectify(page, centre, angle, size)
    ink = _ink(crop)
    if ink is None:
        return []
    slope = _slope(ink)
    if abs(slope) * width >= 1.0:
        angle += float(np.arctan(slope))
        crop = _rectify(page, centre, angle, size)
        ink = _ink(crop)
        if ink is None:
            return []
    rules = _rules(ink, size[1] - 2 * pad)
    ink &= ~rules
    lines = []
    for top, bottom in _bands(ink, pad, line_px):
        line = _tighten(crop, ink, rules, top, bottom, pad)
        if line is not None:
            gray, box, ink_px = line
            lines.append(LineCrop(gray, _to_page(box, centre, angle, size), ink_px))
    return lines


def split_crop(crop: LineCrop, start: float, stop: float) -> tuple[LineCrop, LineCrop] | None:
    """Cut a crop in two in the middle of its widest ink-free run within bounds.

    Args:
        crop: A line.
        start: Where the run may begin, as a share of the crop's width.
        stop: Where it may end, as a share of the crop's width.

    Returns:
        Left and right part, each with its own place on the page; None where there is ink all along.
    """
    ink = _ink(crop.gray)
    width = crop.gray.shape[1]
    low, high = max(0, round(start * width)), min(width, round(stop * width))
    if ink is None or high <= low:
        return None
    runs = _runs(np.asarray(~ink[:, low:high].any(axis=0)))
    if not runs:
        return None
    first, last = max(runs, key=lambda run: run[1] - run[0])
    if last - first < MIN_SPLIT_SHARE * crop.ink_px:
        return None
    at = low + (first + last) // 2
    parts = []
    for begin, end in ((0, at), (at, width)):
        columns = np.flatnonzero(ink[:, begin:end].any(axis=0))
        if columns.size == 0:
            return None
        air = max(1, round(AIR_SHARE * crop.ink_px))
        x0 = max(begin, begin + int(columns[0]) - air)
        x1 = min(end, begin + int(columns[-1]) + 1 + air)
        share = np.array([[x0], [x1], [x1], [x0]], dtype=np.float32) / width
        left, right = crop.quad[[0, 0, 3, 3]], crop.quad[[1, 1, 2, 2]]
        quad = np.asarray(left + (right - left) * share, dtype=np.float32)
        parts.append(LineCrop(np.ascontiguousarray(crop.gray[:, x0:x1]), quad, crop.ink_px))
    return parts[0], parts[1]


def _rectify(page: Gray, centre: Quad, angle: float, size: tuple[int, int]) -> Gray:
    """Return the pixels of a turned rectangle; what lies outside the page repeats its edge."""
    turns = round(angle / (np.pi / 2))
    if abs(angle - turns * np.pi / 2) * max(size) < 0.5:
        return _slice(page, centre, turns % 4, size)
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    width, height = size
    # From crop to page: turn about the crop's centre, move to the box's centre.
    matrix = np.array(
        [
            [cos, -sin, centre[0] - cos * (width - 1) / 2 + sin * (height - 1) / 2],
            [sin, cos, centre[1] - sin * (width - 1) / 2 - cos * (height - 1) / 2],
        ],
        dtype=np.float64,
    )
    crop = cv2.warpAffine(
        page,
        matrix,
        size,
        flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.asarray(crop, dtype=np.uint8)


def _slice(page: Gray, centre: Quad, turns: int, size: tuple[int, int]) -> Gray:
    """Return a rectangle that is turned by quarters only, without resampling it."""
    x, y = float(centre[0]), float(centre[1])
    page_height, page_width = page.shape
    for _ in range(turns):
        x, y = y, page_width - 1 - x
        page_width, page_height = page_height, page_width
    upright = np.rot90(page, turns)
    width, height = size
    left, top = _corner((x, y), size)
    rows = np.clip(np.arange(top, top + height), 0, page_height - 1)
    columns = np.clip(np.arange(left, left + width), 0, page_width - 1)
    return np.asarray(upright[np.ix_(rows, columns)], dtype=np.uint8)


def _corner(centre: tuple[float, float], size: tuple[int, int]) -> tuple[int, int]:
    return round(centre[0] - (size[0] - 1) / 2), round(centre[1] - (size[1] - 1) / 2)


def _to_page(
    box: tuple[int, int, int, int], centre: Quad, angle: float, size: tuple[int, int]
) -> Quad:
    """Return the corners on the page of a box (x0, y0, x1, y1) in a rectified crop."""
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    x0, y0, x1, y1 = box
    corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], dtype=np.float32)
    offset = corners - np.array([size[0] / 2, size[1] / 2], dtype=np.float32)
    turned = offset @ np.array([[cos, sin], [-sin, cos]], dtype=np.float32)
    return np.asarray(turned + centre, dtype=np.float32)


def _ink(crop: Gray) -> Mask | None:
    """Return where the ink is, whether dark on light or the inverse; None on empty paper."""
    low, high = np.percentile(crop, (1, 99))
    if high - low < CONTRAST_LEVELS:
        low, high = float(crop.min()), float(crop.max())
        if high - low < CONTRAST_LEVELS:
            return None
    level, _ = cv2.threshold(crop, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    dark = crop <= level
    # The paper is what there is more of.
    return ~dark if dark.mean() > 0.5 else dark


def _rules(ink: Mask, height: float) -> Mask:
    """Return the ink of drawn lines: frames of table cells, underlines, bars.

    They run further than any stroke of a letter does: past the line above and below, or along
    several letters. In a grid they hang together, so runs are looked at, not components.
    """
    mask = ink.astype(np.uint8)
    down = min(round(1.25 * height), round(0.9 * ink.shape[0]))
    along = min(round(1.8 * height), round(0.9 * ink.shape[1]))
    found = np.zeros_like(mask)
    for shape in ((1, max(3, down)), (max(3, along), 1)):
        kernel = np.ones(shape[::-1], dtype=np.uint8)
        found |= np.asarray(cv2.morphologyEx(mask, cv2.MORPH_OPEN, kernel), dtype=np.uint8)
    return found > 0


def _slope(ink: Mask) -> float:
    """Return the slope (rise over run) at which the row profile is sharpest."""
    height, width = ink.shape
    num = min(STRIPS, width // max(1, height // 2))
    if num < 4:
        return 0.0
    edges = np.linspace(0, width, num + 1).round().astype(int)
    profiles = np.stack([ink[:, a:b].sum(axis=1) for a, b in itertools.pairwise(edges)]).astype(
        np.float64
    )
    middle = (edges[:-1] + edges[1:]) / 2 - width / 2
    limit = max(2, round(MAX_SLOPE * width))
    shifts = np.linspace(-limit, limit, 4 * limit + 1)  # half a pixel over the whole width
    # Rows beyond the crop hold no ink; the last one stands for all of them.
    padded = np.concatenate([profiles, np.zeros((num, 1))], axis=1)
    offsets = np.rint(shifts[:, None] * middle / width).astype(int)
    rows = np.arange(height) + offsets[:, :, None]
    rows = np.where((rows >= 0) & (rows < height), rows, height)
    totals = padded[np.arange(num)[:, None], rows].sum(axis=1)
    scores = (np.diff(totals, axis=1) ** 2).sum(axis=1)
    best = int(np.argmax(scores))
    # Where the profile says nothing much, the box's own angle stands.
    if scores[best] < 1.05 * scores[len(shifts) // 2]:
        return 0.0
    return float(shifts[best] / width)


def _bands(ink: Mask, pad: float, line_px: float) -> list[tuple[int, int]]:
    """Return the rows (first, last + 1) of each line in a crop; normally the box's own rows."""
    top, bottom = round(pad), ink.shape[0] - round(pad)
    if bottom - top < 1.6 * line_px:
        return [(top, bottom)]
    profile = ink[top:bottom].sum(axis=1)
    runs = _runs(profile > 0.02 * ink.shape[1])
    tall = [run for run in runs if run[1] - run[0] >= 0.4 * line_px]
    if len(tall) < 2 or max(b - a for a, b in tall) > 1.5 * line_px:
        return [(top, bottom)]
    cuts = [
        0,
        *((a[1] + b[0]) // 2 for a, b in itertools.pairwise(tall)),
        bottom - top,
    ]
    return [(top + a, top + b) for a, b in itertools.pairwise(cuts)]


def _core(ink: Mask, top: int, bottom: int) -> tuple[int, int]:
    """Return the rows (first, last + 1) of the band of small letters between two rows."""
    profile = ink[top:bottom].sum(axis=1).astype(np.float64)
    if not profile.any():
        return top, bottom
    smooth = np.convolve(profile, np.ones(3) / 3, mode="same")
    # Bands end where there is hardly ink: between lines only descenders reach. Of several, the
    # one with most ink is the line's own, the others are slices of its neighbours.
    bands = _runs(smooth >= 0.15 * smooth.max())
    first, last = max(bands, key=lambda band: smooth[band[0] : band[1]].sum())
    rows = np.flatnonzero(smooth[first:last] >= 0.45 * smooth.max()) + first
    if rows.size == 0:
        return top + first, top + last
    return top + int(rows[0]), top + int(rows[-1]) + 1


def _runs(flags: Mask) -> list[tuple[int, int]]:
    """Return first and last + 1 of each run of true values."""
    edges = np.diff(np.concatenate(([0], flags.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _tighten(
    crop: Gray, ink: Mask, rules: Mask, top: int, bottom: int, pad: float
) -> tuple[Gray, tuple[int, int, int, int], int] | None:
    """Return the crop cut to the ink of one line, its box in the crop, and the ink height."""
    core_top, core_bottom = _core(ink, top, bottom)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink.astype(np.uint8), connectivity=8)
    left, upper = stats[:, cv2.CC_STAT_LEFT], stats[:, cv2.CC_STAT_TOP]
    right, lower = left + stats[:, cv2.CC_STAT_WIDTH], upper + stats[:, cv2.CC_STAT_HEIGHT]
    height = bottom - top

    # Letters stand on the core band; what does not is a dot or an accent, or no part of the line.
    on_core = (upper < core_bottom) & (lower > core_top)
    on_core[0] = False  # the paper
    if not on_core.any():
        return None
    ascent = max(top, min(int(upper[on_core].min()), core_top - (core_bottom - core_top) // 2))
    above = (lower <= core_top) & (upper >= ascent - 0.08 * height)
    underscore = (upper >= core_bottom) & (right - left >= 0.3 * height) & (lower <= bottom)
    keep = on_core | above | underscore
    beside = (right <= pad * 0.5) | (left >= ink.shape[1] - pad * 0.5)
    keep &= ~beside
    keep[0] = False  # the paper
    if not keep[1:].any():
        return None

    kept = np.flatnonzero(keep)
    # A letter that touches the line above or below must not stretch the crop into it: what letters
    # have above and below the core band has its limits.
    core = core_bottom - core_top
    y0 = max(int(upper[kept].min()), core_top - round(max(MAX_ASCENT * core, 0.3 * height)))
    y1 = min(int(lower[kept].max()), core_bottom + round(max(MAX_DESCENT * core, 0.25 * height)))
    x0, x1 = int(left[kept].min()), int(right[kept].max())
    paper = np.uint8(np.median(crop[~ink])) if not ink.all() else crop[0, 0]
    clean = _erase(crop, labels, keep, rules, paper)
    # Letters that were cut must not show in the air; a row for the soft edges of the others.
    clean[: max(0, y0 - 1)] = paper
    clean[y1 + 1 :] = paper
    air = max(1, round(AIR_SHARE * (y1 - y0)))
    # A line that happens to have no descenders keeps some of their room.
    has_descenders = y1 - core_bottom > 0.1 * (y1 - y0)
    room = air if has_descenders else round(DESCENT_SHARE * (y1 - y0))
    box = (x0 - air, y0 - air, x1 + air, y1 + room)
    return _cut(clean, box, paper), box, y1 - y0


def _erase(
    crop: Gray, labels: npt.NDArray[np.int32], keep: Mask, rules: Mask, paper: np.uint8
) -> Gray:
    """Paint over rules and the components that are not kept, with their soft edges."""
    kept = keep[labels]
    lost = rules | ((labels > 0) & ~kept)
    kernel = np.ones((3, 3), dtype=np.uint8)
    edges = cv2.dilate(lost.astype(np.uint8), kernel) > 0
    kept_edges = cv2.dilate(kept.astype(np.uint8), kernel) > 0
    clean: Gray = crop.copy()
    clean[lost | (edges & ~kept_edges)] = paper
    return clean


def _cut(crop: Gray, box: tuple[int, int, int, int], paper: np.uint8) -> Gray:
    """Return a box of a crop; what lies outside the crop is paper."""
    x0, y0, x1, y1 = box
    out = np.full((y1 - y0, x1 - x0), paper, dtype=np.uint8)
    sx0, sy0 = max(x0, 0), max(y0, 0)
    sx1, sy1 = min(x1, crop.shape[1]), min(y1, crop.shape[0])
    out[sy0 - y0 : sy1 - y0, sx0 - x0 : sx1 - x0] = crop[sy0:sy1, sx0:sx1]
    return out
