"""Reading order and paragraphs of text lines, from their geometry.

Order: the page is cut into strips of lines; strips that share a vertical gutter are columns, read
one after the other, unless they look like the rows of a table. Paragraphs: lines of one column that
follow each other at the usual distance, in one size, without an indent or a line that ends early.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Block",
    "LineBox",
    "crossed_gutters",
    "deskewed_boxes",
    "font_size",
    "group_paragraphs",
    "is_list_item",
    "reading_order",
]

Boxes = npt.NDArray[np.float64]

MIN_GUTTER = 0.5
"""Narrowest gutter between columns, in line heights."""
MIN_SIDE_BY_SIDE = 0.3
"""Least height that columns share, in line heights."""
MAX_LOOK_BACK = 40
"""Strips that are looked back at for the beginning of columns."""
LONG_FRAGMENT = 8.0
"""Lines from this width on, in line heights, are prose and not cells of a table."""
PROSE_SHARE = 0.6
"""Share of a column's text, by width, that must be in long lines for the column to be prose."""
ALIGNED_SHARE = 0.5
"""Share of strips with text on both sides of a gutter from which on it separates cells."""
WIDE_STEP = 1.8
"""Distance of rows, in usual ones, at which a table is taken to end."""
CORE_SHARE = 0.3
"""Half height, as a share of the box, that tells lines apart; boxes of close lines overlap."""

_BULLET = re.compile(r"^(?:[•◦▪●○■□‣⁃∙·*–—-]|\(?\d{1,3}[.)]|\[\d{1,3}\]|\(?[a-zA-Z][.)])\s+\S")
_TALL = re.compile(r"[A-Z0-9bdfhklt()\[\]{}|/\\!?\"'&@#$%]")
_DEEP = re.compile(r"[gjpqyQ()\[\]{}|/\\@$]")


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that are read from top to bottom before anything else is.

    Attributes:
        rows: Indices of lines, row by row, each row from left to right.
        tabular: Whether the rows are those of a table or a form: they stay rows.
    """

    rows: tuple[tuple[int, ...], ...]
    tabular: bool = False


@dataclass(frozen=True, slots=True)
class LineBox:
    """A read line in the upright, deskewed frame of its page, in px.

    Attributes:
        x0: Left edge.
        y0: Upper edge.
        x1: Right edge.
        y1: Lower edge.
        size: Font size estimate, see :func:`font_size`.
        text: What was read.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    text: str


def deskewed_boxes(quads: npt.NDArray[np.float32], angle: float) -> Boxes:
    """Return the boxes around quadrilaterals in a frame turned so that ``angle`` is level.

    Args:
        quads: (n, 4, 2) corners in px.
        angle: Direction of the text in radians, clockwise on the page.

    Returns:
        (n, 4) of x0, y0, x1, y1; the frame's origin is the page's.
    """
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    x = quads[:, :, 0] * cos + quads[:, :, 1] * sin
    y = quads[:, :, 1] * cos - quads[:, :, 0] * sin
    return np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], axis=1).astype(np.float64)


def reading_order(boxes: Boxes) -> list[Block]:
    """Order text lines as they are read.

    Args:
        boxes: (n, 4) upright boxes x0, y0, x1, y1.

    Returns:
        Blocks in reading order; each line is in exactly one.
    """
    if len(boxes) == 0:
        return []
    height = float(np.median(boxes[:, 3] - boxes[:, 1]))
    return _order(np.arange(len(boxes)), boxes, max(height, 1.0))


def crossed_gutters(boxes: Boxes, line_px: float) -> list[tuple[int, float, float]]:
    """Find lines that a detector has drawn across the gutter of two columns.

    The neighbours above and below leave a gutter free, on both sides of it, that the line crosses.
    A line of larger print is a heading across the columns and stays.

    Args:
        boxes: (n, 4) upright boxes.
        line_px: Typical height of a box.

    Returns:
        For each such line its number and the left and right edge of the gutter.
    """
    middle, heights = (boxes[:, 1] + boxes[:, 3]) / 2, boxes[:, 3] - boxes[:, 1]
    found = []
    for i, (x0, _, x1, _) in enumerate(boxes.tolist()):
        near = np.abs(middle - middle[i]) < 3.5 * line_px
        near[i] = False
        others = boxes[near]
        if len(others) < 2 or heights[i] > 1.5 * np.median(heights[near]):
            continue
        order = np.argsort(others[:, 0], kind="stable")
        starts, reach = others[order, 0], np.maximum.accumulate(others[order, 2])
        for left, right in zip(reach[:-1].tolist(), starts[1:].tolist(), strict=True):
            inside = x0 + 2 * line_px < left and right < x1 - 2 * line_px
            if inside and right - left >= MIN_GUTTER * line_px:
                found.append((i, left, right))
    return found


def _order(lines: npt.NDArray[np.intp], boxes: Boxes, height: float) -> list[Block]:
    blocks: list[Block] = []
    in_one_column = False  # whether the last block is lines one below the other
    for group in _groups(_strips(lines, boxes), boxes, height):
        members = np.concatenate(group)
        gutter = _widest_gutter(boxes[members], height)
        # A single row is read from left to right whatever stands in it.
        if gutter is not None and len(group) > 1:
            is_left = (boxes[members, 0] + boxes[members, 2]) / 2 < gutter
            left, right = members[is_left], members[~is_left]
            if not _are_cells(group, left, right, boxes, height):
                blocks += _order(left, boxes, height)
                blocks += _order(right, boxes, height)
                in_one_column = False
                continue
        for part in _parts([row for strip in group for row in _rows(strip, boxes)], boxes):
            rows = tuple(part)
            tabular = len(rows) > 1 and any(len(row) > 1 for row in rows)
            if in_one_column and not tabular:
                # A row with a wide gap in it does not end the column that it stands in.
                rows = blocks.pop().rows + rows
            blocks.append(Block(rows, tabular and gutter is not None))
            in_one_column = not blocks[-1].tabular
    return blocks


def _parts(rows: list[tuple[int, ...]], boxes: Boxes) -> list[list[tuple[int, ...]]]:
    """Cut rows where they are much further apart than usual: a table ends, a heading follows."""
    middle = [float(boxes[list(row), 1::2].mean()) for row in rows]
    steps = np.diff(middle)
    usual = float(np.median(steps)) if steps.size else 0.0
    parts = [[rows[0]]]
    for row, step in zip(rows[1:], steps.tolist(), strict=True):
        if step > WIDE_STEP * usual:
            parts.append([])
        parts[-1].append(row)
    return parts


def _strips(lines: npt.NDArray[np.intp], boxes: Boxes) -> list[npt.NDArray[np.intp]]:
    """Cut lines into strips, from top to bottom, between which a level cut meets no line."""
    middle = (boxes[lines, 1] + boxes[lines, 3]) / 2
    half = (boxes[lines, 3] - boxes[lines, 1]) * CORE_SHARE
    order = np.argsort(middle - half, kind="stable")
    strips: list[list[int]] = []
    reach = -np.inf
    for at in order:
        if middle[at] - half[at] >= reach:
            strips.append([])
        strips[-1].append(int(lines[at]))
        reach = max(reach, middle[at] + half[at])
    return [np.array(strip, dtype=np.intp) for strip in strips]


def _groups(
    strips: list[npt.NDArray[np.intp]], boxes: Boxes, height: float
) -> list[list[npt.NDArray[np.intp]]]:
    """Group neighbouring strips: as long as they share a gutter, and those that have none."""
    groups: list[list[npt.NDArray[np.intp]]] = []
    with_gutter: list[bool] = []

    def shared(members: list[npt.NDArray[np.intp]]) -> bool:
        return _widest_gutter(boxes[np.concatenate(members)], height) is not None

    for strip in strips:
        alone = shared([strip])
        if groups and shared([*groups[-1], strip]):
            groups[-1].append(strip)
            with_gutter[-1] = True
            continue
        if groups and not alone and not with_gutter[-1]:
            # Columns may have begun before: below a title, the lines of two columns that do not
            # stand side by side come one by one.
            last = groups[-1]
            for start in range(max(1, len(last) - MAX_LOOK_BACK), len(last)):
                if shared([*last[start:], strip]):
                    groups[-1:] = [last[:start], [*last[start:], strip]]
                    with_gutter.append(True)
                    break
            else:
                last.append(strip)
            continue
        groups.append([strip])
        with_gutter.append(alone)
    return groups


def _widest_gutter(boxes: Boxes, height: float) -> float | None:
    """Return the middle of the widest vertical gap between boxes that stand side by side.

    No box reaches into the gap, and what is left of it and what is right of it share a stretch of
    the page from top to bottom: a date on the right above an address on the left has no gutter.
    """
    order = np.argsort(boxes[:, 0], kind="stable")
    starts, reach = boxes[order, 0], np.maximum.accumulate(boxes[order, 2])
    gaps = starts[1:] - reach[:-1]
    for at in np.argsort(-gaps, kind="stable").tolist():
        if gaps[at] < MIN_GUTTER * height:
            break
        left, right = boxes[order[: at + 1]], boxes[order[at + 1 :]]
        side_by_side = min(left[:, 3].max(), right[:, 3].max()) - max(
            left[:, 1].min(), right[:, 1].min()
        )
        if side_by_side >= MIN_SIDE_BY_SIDE * height:
            return float(starts[at + 1] + reach[at]) / 2
    return None


def _are_cells(
    strips: list[npt.NDArray[np.intp]],
    left: npt.NDArray[np.intp],
    right: npt.NDArray[np.intp],
    boxes: Boxes,
    height: float,
) -> bool:
    """Tell whether a gutter separates cells of rows, not columns of prose."""
    if _is_prose(boxes[left], height) and _is_prose(boxes[right], height):
        return False
    on_left = set(left.tolist())
    both = sum(0 < sum(i in on_left for i in strip.tolist()) < len(strip) for strip in strips)
    return both >= ALIGNED_SHARE * len(strips)


def _is_prose(boxes: Boxes, height: float) -> bool:
    widths = boxes[:, 2] - boxes[:, 0]
    return bool(widths[widths >= LONG_FRAGMENT * height].sum() >= PROSE_SHARE * widths.sum())


def _rows(strip: npt.NDArray[np.intp], boxes: Boxes) -> list[tuple[int, ...]]:
    """Cut a strip into rows of lines that stand side by side."""
    middle = (boxes[strip, 1] + boxes[strip, 3]) / 2
    rows: list[list[int]] = []
    for at in np.argsort(middle, kind="stable"):
        line = int(strip[at])
        if rows and _beside(boxes[rows[-1]], boxes[line]):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [tuple(sorted(row, key=lambda i: boxes[i, 0])) for row in rows]


def _beside(row: Boxes, box: Boxes) -> bool:
    top, bottom = row[:, 1].min(), row[:, 3].max()
    shared = min(bottom, box[3]) - max(top, box[1])
    lower = min(bottom - top, box[3] - box[1])
    apart = np.minimum(row[:, 2], box[2]) - np.maximum(row[:, 0], box[0])
    # Boxes of one row may touch; a box above another is no neighbour of it.
    return bool(shared > 0.5 * lower and (apart < 0.5 * lower).all())


def font_size(text: str, ink_px: float) -> float:
    """Return the em size that ink of this height suggests, given which letters there are.

    A line without ascenders and descenders is lower than its neighbours in the same font.

    Args:
        text: What was read in the line.
        ink_px: Height of its ink.

    Returns:
        Estimate in px.
    """
    above = 0.72 if _TALL.search(text) else 0.5
    below = 0.21 if _DEEP.search(text) else 0.08 if re.search("[,;]", text) else 0.0
    return ink_px / (above + below)


def is_list_item(text: str) -> bool:
    """Tell whether a line begins with a bullet or a number of a list."""
    return _BULLET.match(text) is not None


def group_paragraphs(lines: Sequence[LineBox]) -> list[list[int]]:
    """Group the lines of one column into paragraphs.

    Args:
        lines: Lines from top to bottom; fragments of one row already joined.

    Returns:
        Lists of line numbers, in order.
    """
    if not lines:
        return []
    pitch = _usual_pitch(lines)
    right = float(np.percentile([line.x1 for line in lines], 90))
    paragraphs = [[0]]
    for i in range(1, len(lines)):
        before, line = lines[i - 1], lines[i]
        first = lines[paragraphs[-1][0]]
        if (
            _is_apart(before, line, pitch)
            or _is_other_size(before, line)
            or _is_indented(lines, paragraphs[-1], i)
            or _ended_early(before, line, right)
            or is_list_item(line.text)
            or (is_list_item(first.text) and line.x0 < first.x0 - 0.5 * first.size)
        ):
            paragraphs.append([i])
        else:
            paragraphs[-1].append(i)
    return paragraphs


def _usual_pitch(lines: Sequence[LineBox]) -> float | None:
    """Return the usual distance of neighbouring baselines in font sizes, None where unknown."""
    steps = [
        (b.y1 + b.y0 - a.y1 - a.y0) / 2 / max(a.size, b.size) for a, b in itertools.pairwise(lines)
    ]
    steps = [step for step in steps if 0.7 <= step <= 3.0]
    # The lower half: distances between paragraphs are the larger ones.
    return float(np.percentile(steps, 35)) if len(steps) >= 2 else None


def _is_apart(before: LineBox, line: LineBox, pitch: float | None) -> bool:
    size = max(before.size, line.size)
    step = (line.y1 + line.y0 - before.y1 - before.y0) / 2 / size
    usual = 1.3 if pitch is None else pitch
    overlap = min(before.x1, line.x1) - max(before.x0, line.x0)
    return step > usual * 1.35 + 0.1 or step < 0.3 or overlap <= 0


def _is_other_size(before: LineBox, line: LineBox) -> bool:
    return max(before.size, line.size) > 1.3 * min(before.size, line.size)


def _is_indented(lines: Sequence[LineBox], paragraph: Sequence[int], i: int) -> bool:
    """Tell whether line ``i`` begins further right than the line before, as paragraphs do."""
    line, before = lines[i], lines[i - 1]
    if line.x0 - before.x0 < 0.8 * line.size or _are_centred(before, line):
        return False
    # The lines of a list item hang: all but the first begin further right.
    first = lines[paragraph[0]]
    return not (len(paragraph) == 1 and is_list_item(first.text))


def _are_centred(before: LineBox, line: LineBox) -> bool:
    apart = abs((before.x0 + before.x1) - (line.x0 + line.x1)) / 2
    return apart < 0.5 * line.size and abs(before.x0 - line.x0) > 1.5 * line.size


def _ended_early(before: LineBox, line: LineBox, right: float) -> bool:
    """Tell whether the line before had room for this line's first word, and did not take it."""
    words = line.text.split()
    if not words or not before.text:
        return False
    letter = (line.x1 - line.x0) / max(1, len(line.text))
    needed = (len(words[0]) + 1) * letter
    if _are_centred(before, line):
        return False
    return before.x1 + needed + 0.6 * line.size < right
