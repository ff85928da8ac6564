"""Segmenter ``lines``: text lines found by a detector, read in one engine call, put in order.

For engines that only know the text task. A checkpoint of unit ``segment`` gets each line as the
pieces it was trained on, one of unit ``region`` gets whole line crops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from mdiff_adapters.document import (
    BBox,
    ErrorRecord,
    FinishReason,
    PageStatus,
    ParsedPage,
    Region,
    RegionType,
    TextLine,
)
from mdiff_adapters.engines.base import Answer, Capabilities, DecodeConfig, Engine, Request
from mdiff_adapters.errors import EngineError, PageError
from mdiff_adapters.segmenters.base import PageImage, SegmenterOptions
from mdiff_adapters.segmenters.crops import (
    LineCrop,
    crop_lines,
    quad_angle,
    quad_size,
    split_crop,
)
from mdiff_adapters.segmenters.detection import LineDetector, line_detector
from mdiff_adapters.segmenters.order import (
    Block,
    LineBox,
    crossed_gutters,
    deskewed_boxes,
    font_size,
    group_paragraphs,
    is_list_item,
    reading_order,
)
from mdiff_adapters.text import find_loop, strip_special_tokens, unify_scripts, unwrap_lines
from mdiff_core.segments import prepare_line

__all__ = ["LineSegmenter"]

Gray = npt.NDArray[np.uint8]
Quads = npt.NDArray[np.float32]

BLANK_LEVELS = 8
"""A page whose grey values differ by no more is blank paper: nothing is asked about it."""
NUM_VOTES = 9
"""Lines that are asked which way up they are; the longest of a page."""
UPSIDE_DOWN = 0.6
"""Mean probability from which on a page is read upside down; upright is the safe assumption."""
TITLE_RATIO = 1.15
"""Font size, relative to the page's usual one, from which on a paragraph is a title."""
TITLE_MAX_LINES = 4
INK_LEVELS = 60
"""Grey levels from the paper from which on a pixel is ink, where a page seems to have no text."""
DOUBTFUL = 0.985
"""Mean confidence below which a line is read a second time."""
SECOND_AIR = 0.06
"""Paper added around a line on each side then, as a share of its ink height. Letters come out a
little smaller and at other places in the image tokens, so that what was misread for its place is
not misread again."""

_SEVERITY: tuple[FinishReason, ...] = ("empty", "stop", "loop", "length", "timeout", "error")


@dataclass(slots=True)
class _Line:
    """A line on its way from crop to text."""

    crop: LineCrop
    angle: int
    box_px: float
    requests: list[str] = field(default_factory=list)
    after_gap: list[bool] = field(default_factory=list)
    text: str = ""
    confidence: float | None = None
    num_tokens: int = 0
    finish_reason: FinishReason = "empty"
    error: Exception | None = None
    raw: str = ""


@dataclass(slots=True)
class _Page:
    """What a page asks for, and how it is to be put together."""

    page: PageImage
    angle: int = 0
    direction: float = 0.0
    line_px: float = 0.0
    lines: list[_Line] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    num_tokens: int = 0
    num_forwards: int = 0
    warnings: list[ErrorRecord] = field(default_factory=list)
    error: ErrorRecord | None = None


@dataclass(slots=True)
class _Paragraph:
    """Lines that become one region; ``keeps_lines`` for rows of a table or a form."""

    lines: list[_Line]
    kind: RegionType = "text"
    keeps_lines: bool = False


class LineSegmenter:
    """Reads pages line by line.

    Args:
        detector: Finds the lines; by default the one of the process.
    """

    def __init__(self, detector: LineDetector | None = None) -> None:
        self._detector = detector

    @property
    def name(self) -> str:
        """``lines``."""
        return "lines"

    def read(
        self,
        pages: Sequence[PageImage],
        engine: Engine,
        decode: DecodeConfig,
        options: SegmenterOptions,
    ) -> list[ParsedPage]:
        """Read a window of pages; see :meth:`mdiff_adapters.segmenters.base.Segmenter.read`."""
        capabilities = engine.capabilities
        plans = [self._plan(page, capabilities, decode) for page in pages]
        answers = _ask(engine, plans)
        for plan in plans:
            for line in plan.lines:
                _read(line, answers)
        if capabilities.segment_px is not None:
            _read_again(plans, engine, decode)
        return [_assemble(plan) for plan in plans]

    def _plan(self, page: PageImage, capabilities: Capabilities, decode: DecodeConfig) -> _Page:
        plan = _Page(page)
        try:
            self._find_lines(plan)
            for order, line in enumerate(plan.lines):
                plan.requests += _requests(
                    page, order, line, capabilities, decode, name=f"l{order}"
                )
        except EngineError:
            raise  # no detector at all: not this page's fault
        except Exception as error:  # noqa: BLE001 - one page must not cost the others
            failed = PageError(
                f"no text lines could be cut from the page: {type(error).__name__}: {error}",
                source=page.source,
                page=page.index,
            )
            plan.error = ErrorRecord(
                kind=PageError.__name__, message=str(failed), stage="segment", page=page.index
            )
            plan.lines, plan.requests = [], []
        return plan

    def _find_lines(self, plan: _Page) -> None:
        gray = np.asarray(plan.page.image.convert("L"))
        if int(gray.max()) - int(gray.min()) <= BLANK_LEVELS:
            return
        detector = self._detector or line_detector()
        quads = _detect(detector, np.asarray(plan.page.image.convert("RGB")), gray)
        if len(quads) == 0:
            plan.warnings.append(
                ErrorRecord(
                    kind=PageError.__name__,
                    message="no text line was found, though the page is not empty",
                    stage="segment",
                    page=plan.page.index,
                    severity="info",
                )
            )
            return
        sizes = np.array([quad_size(quad) for quad in quads])
        plan.line_px = line_px = _usual_height(sizes)
        sideways = _is_sideways(sizes, line_px)
        weights = sizes.max(axis=1)
        page_sideways = bool(weights[sideways].sum() > weights.sum() / 2)
        angles = np.where(sideways, 90, 0)
        for kind in (0, 90):
            members = np.flatnonzero(angles == kind)
            longest = members[np.argsort(-weights[members], kind="stable")][:NUM_VOTES]
            crops = [
                crop
                for i in longest
                for crop in crop_lines(gray, _own_corners(quads[i], kind), line_px=line_px)
            ]
            share = detector.upside_down_share([_head(crop.gray) for crop in crops])
            # Sideways text has no safe assumption: the better half decides.
            if share > (UPSIDE_DOWN if kind == 0 else 0.5):
                angles[members] = kind + 180
        main = np.flatnonzero(sideways == page_sideways)
        plan.angle = int(angles[main[0]])
        plan.direction = _direction(quads[main], sizes[main], plan.angle)
        for quad, angle in zip(quads, angles.tolist(), strict=True):
            own = _own_corners(quad, angle)
            width, height = quad_size(own)
            # The edges of a short box say little about the slope of its line.
            direction = None
            if angle == plan.angle and width < 10 * height:
                direction = plan.direction
            for crop in crop_lines(gray, own, line_px=line_px, angle=direction):
                plan.lines.append(_Line(crop, angle, height))
        _split_at_gutters(plan)


def _split_at_gutters(plan: _Page) -> None:
    """Split lines that the detector has drawn across two columns."""
    main = [i for i, line in enumerate(plan.lines) if line.angle == plan.angle]
    if not main:
        return
    quads = np.stack([plan.lines[i].crop.quad for i in main])
    boxes = deskewed_boxes(quads, plan.direction)
    parts: dict[int, list[_Line]] = {}
    # From right to left, so that what is left of a cut can be cut again.
    for number, left, right in sorted(crossed_gutters(boxes, plan.line_px), reverse=True):
        i = main[number]
        line = parts[i][0] if i in parts else plan.lines[i]
        [box] = deskewed_boxes(line.crop.quad[None], plan.direction)
        width = box[2] - box[0]
        slack = 0.5 * plan.line_px
        split = split_crop(
            line.crop, (left - slack - box[0]) / width, (right + slack - box[0]) / width
        )
        if split is not None:
            halves = [_Line(crop, line.angle, line.box_px) for crop in split]
            parts[i] = [*halves, *parts.get(i, [])[1:]]
    plan.lines = [part for i, line in enumerate(plan.lines) for part in parts.get(i, [line])]


def _ask(engine: Engine, plans: Sequence[_Page]) -> dict[str, Answer]:
    """Ask what the pages want to know, and note the answers' cost with each page."""
    requests = [request for plan in plans for request in plan.requests]
    answers = {answer.id: answer for answer in engine.answer(requests)} if requests else {}
    for plan in plans:
        given = [answers[request.id] for request in plan.requests if request.id in answers]
        plan.num_tokens += sum(answer.num_tokens for answer in given)
        plan.num_forwards += sum(answer.num_forwards for answer in given)
    return answers


def _read_again(plans: Sequence[_Page], engine: Engine, decode: DecodeConfig) -> None:
    """Read doubtful lines once more with more air around them; the surer reading stays."""
    seconds: list[tuple[_Line, _Line]] = []
    capabilities = engine.capabilities
    if capabilities.line_air is not None:
        capabilities = replace(capabilities, line_air=capabilities.line_air + SECOND_AIR)
    for plan in plans:
        plan.requests = []
        for order, line in enumerate(plan.lines):
            if line.error is not None or not _is_doubtful(line):
                continue
            air = max(1, round(SECOND_AIR * line.crop.ink_px))
            paper = int(np.median(line.crop.gray))
            gray = np.pad(line.crop.gray, air, constant_values=paper)
            again = _Line(replace(line.crop, gray=gray), line.angle, line.box_px)
            plan.requests += _requests(
                plan.page, order, again, capabilities, decode, name=f"l{order}again"
            )
            seconds.append((line, again))
    answers = _ask(engine, plans)
    for line, again in seconds:
        _read(again, answers)
        if again.error is None and _sureness(again) > _sureness(line):
            line.text, line.raw, line.confidence = again.text, again.raw, again.confidence
            line.num_tokens, line.finish_reason = again.num_tokens, again.finish_reason


def _is_doubtful(line: _Line) -> bool:
    whole = line.finish_reason in ("stop", "empty")
    return not whole or (line.confidence is not None and line.confidence < DOUBTFUL)


def _sureness(line: _Line) -> tuple[bool, float]:
    """Return what the surer of two readings has more of: an end of its own, then confidence."""
    return line.finish_reason == "stop", line.confidence or 0.0


def _detect(
    detector: LineDetector, rgb: npt.NDArray[np.uint8], gray: npt.NDArray[np.uint8]
) -> Quads:
    """Return the boxes of a page; a page that seems to have none is looked at where its ink is."""
    quads = detector.detect(rgb)
    if len(quads):
        return quads
    # A few words on a huge page vanish when all of it is shrunk to what the detector looks at.
    ink = np.abs(gray.astype(np.int16) - int(np.median(gray))) > INK_LEVELS
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if rows.size == 0:
        return quads
    pad = max(8, (int(rows[-1]) - int(rows[0])) // 4)
    top, left = max(0, int(rows[0]) - pad), max(0, int(columns[0]) - pad)
    part = rgb[top : int(rows[-1]) + 1 + pad, left : int(columns[-1]) + 1 + pad]
    if part.shape == rgb.shape:
        return quads
    return detector.detect(part) + np.array([left, top], dtype=np.float32)


def _usual_height(sizes: npt.NDArray[np.float64]) -> float:
    """Return the typical short side of a page's boxes, long ones counting more."""
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    order = np.argsort(short, kind="stable")
    total = np.cumsum(long[order])
    return float(short[order][int(np.searchsorted(total, total[-1] / 2))])


def _is_sideways(sizes: npt.NDArray[np.float64], line_px: float) -> npt.NDArray[np.bool_]:
    """Tell which boxes hold text that runs up or down the page."""
    width, height = sizes[:, 0], sizes[:, 1]
    # A narrow box that is no higher than two lines is a digit or a letter on its own.
    return np.asarray((height > 1.5 * width) & (height > 2.2 * line_px))


def _own_corners(quad: npt.NDArray[np.float32], angle: int) -> npt.NDArray[np.float32]:
    """Return a box's corners clockwise from the line's own top left.

    Args:
        quad: Corners clockwise from the top left of the page.
        angle: Degrees of counter-clockwise rotation that make the line upright.
    """
    return np.roll(quad, -(angle // 90), axis=0)


def _head(gray: Gray) -> Gray:
    """Return the first letters of a line, which the classifier sees best."""
    return gray[:, : 6 * gray.shape[0]]


def _direction(quads: Quads, sizes: npt.NDArray[np.float64], angle: int) -> float:
    """Return the direction of the page's text in radians: the median of its boxes by length."""
    directions = np.array([quad_angle(_own_corners(quad, angle)) for quad in quads])
    # Around the multiple of 90 degrees that the page is turned by, so that nothing wraps.
    base = np.radians(angle)
    deviations = np.angle(np.exp(1j * (directions - base)))
    long = sizes.max(axis=1)
    order = np.argsort(deviations, kind="stable")
    total = np.cumsum(long[order])
    return float(base + deviations[order][int(np.searchsorted(total, total[-1] / 2))])


def _requests(
    page: PageImage,
    order: int,
    line: _Line,
    capabilities: Capabilities,
    decode: DecodeConfig,
    *,
    name: str,
) -> Iterator[Request]:
    if capabilities.segment_px is None:
        images = [(Image.fromarray(line.crop.gray).convert("RGB"), False)]
    else:
        images = prepare_line(line.crop.gray, capabilities)
    for number, (image, after_gap) in enumerate(images):
        piece = f"p{page.index}{name}s{number}"
        line.requests.append(piece)
        line.after_gap.append(after_gap)
        yield Request(
            id=piece,
            image=image,
            task="text",
            decode=decode,
            origin={
                "source": page.source,
                "stem": page.stem,
                "page": page.index,
                "region": f"p{page.index}l{order}",
                "order": order,
            },
        )


def _assemble(plan: _Page) -> ParsedPage:
    page = plan.page
    regions = tuple(_regions(plan))
    status: PageStatus = "ok" if regions else "blank"
    error = plan.error
    _note_empty_lines(plan)
    if error is not None:
        status = "failed"
    elif any(
        region.error is not None or region.finish_reason not in ("stop", "empty")
        for region in regions
    ):
        status = "partial"
        if all(line.error is not None for line in plan.lines):
            status, error = "failed", _page_error(plan)
    return ParsedPage(
        index=page.index,
        label=page.label,
        size_px=page.image.size,
        size_pt=page.size_pt,
        rotation=page.rotation,
        regions=regions,
        status=status,
        error=error,
        warnings=tuple(plan.warnings),
        num_tokens=plan.num_tokens,
        num_forwards=plan.num_forwards,
    )


def _note_empty_lines(plan: _Page) -> None:
    """Note the lines that were read as nothing: specks and logos often, a whole page hardly."""
    count, total = sum(not line.text and line.error is None for line in plan.lines), len(plan.lines)
    if count:
        plan.warnings.append(
            ErrorRecord(
                kind=PageError.__name__,
                message=f"{count} of {total} lines were read as nothing",
                page=plan.page.index,
                severity="warning" if count == total else "info",
            )
        )


def _page_error(plan: _Page) -> ErrorRecord:
    first = next(line.error for line in plan.lines if line.error is not None)
    failed = PageError(
        f"none of its {len(plan.lines)} lines could be read: {first}",
        source=plan.page.source,
        page=plan.page.index,
    )
    return ErrorRecord(
        kind=PageError.__name__, message=str(failed), stage="read", page=plan.page.index
    )


def _read(line: _Line, answers: dict[str, Answer]) -> None:
    """Join the answers about a line's pieces."""
    weighted, weight = 0.0, 0
    for name, after_gap in zip(line.requests, line.after_gap, strict=True):
        answer = answers.get(name)
        if answer is None:
            answer = Answer(
                id=name, finish_reason="error", error=EngineError("the engine gave no answer")
            )
        text = strip_special_tokens(answer.text).text
        reason = answer.finish_reason
        if reason == "length":
            loop = find_loop(text)
            if loop is not None:
                text, reason = loop.trimmed, "loop"
        glue = " " if after_gap and line.text and text else ""
        line.text += glue + " ".join(text.split())
        line.raw += glue + answer.text
        line.finish_reason = max(line.finish_reason, reason, key=_SEVERITY.index)
        line.error = line.error or answer.error
        line.num_tokens += answer.num_tokens
        if answer.confidence is not None and answer.num_tokens:
            weighted += answer.confidence * answer.num_tokens
            weight += answer.num_tokens
    line.text = unify_scripts(line.text)
    line.confidence = weighted / weight if weight else None


def _regions(plan: _Page) -> Iterator[Region]:
    """Yield the page's paragraphs in reading order; lines that read as nothing are left out."""
    kept = [line for line in plan.lines if line.text or line.error is not None]
    # Text that runs another way than the page's comes last, each line for itself.
    main = [line for line in kept if line.angle == plan.angle]
    others = [line for line in kept if line.angle != plan.angle]
    paragraphs: list[_Paragraph] = []
    if main:
        boxes = deskewed_boxes(np.stack([line.crop.quad for line in main]), plan.direction)
        sizes = _font_sizes(main, plan.line_px)
        for block in reading_order(boxes):
            paragraphs += _paragraphs(block, main, boxes, sizes)
    paragraphs += [_Paragraph([line]) for line in others]
    for order, paragraph in enumerate(paragraphs):
        yield _region(plan.page, order, paragraph)


def _font_sizes(lines: Sequence[_Line], line_px: float) -> npt.NDArray[np.float64]:
    """Return the font size of each line in the page's usual one: above 1 is larger print.

    The height of the ink tells it best, but a speck or a drop cap adds to it; a line is only taken
    to be larger than usual as far as its detected box is, too.
    """
    sizes = np.array([font_size(line.text, line.crop.ink_px) for line in lines])
    lengths = np.array([max(1, len(line.text)) for line in lines])
    order = np.argsort(sizes, kind="stable")
    total = np.cumsum(lengths[order])
    sizes = sizes / sizes[order][int(np.searchsorted(total, total[-1] / 2))]
    boxes = np.array([line.box_px for line in lines]) / line_px
    return np.asarray(np.minimum(sizes, np.maximum(boxes, 1.0)))


def _paragraphs(
    block: Block,
    lines: Sequence[_Line],
    boxes: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.float64],
) -> Iterator[_Paragraph]:
    rows = [[lines[i] for i in row] for row in block.rows]
    if block.tabular:
        yield _Paragraph([_joined(row) for row in rows], keeps_lines=True)
        return
    em_px = float(np.median([font_size(line.text, line.crop.ink_px) for line in lines]))
    row_boxes = []
    for numbers, row in zip(block.rows, rows, strict=True):
        around = boxes[list(numbers)]
        text = " ".join(filter(None, (line.text for line in row)))
        (x0, y0), (x1, y1) = around[:, :2].min(axis=0), around[:, 2:].max(axis=0)
        size = float(sizes[list(numbers)].max()) * em_px
        row_boxes.append(LineBox(float(x0), float(y0), float(x1), float(y1), size, text))
    for members in group_paragraphs(row_boxes):
        is_title = (
            len(members) <= TITLE_MAX_LINES
            and not is_list_item(row_boxes[members[0]].text)
            and len(lines) > len(members)
            and np.median([row_boxes[i].size for i in members]) >= TITLE_RATIO * em_px
        )
        yield _Paragraph([_joined(rows[i]) for i in members], "title" if is_title else "text")


def _joined(row: Sequence[_Line]) -> _Line:
    """Return the fragments of one row as one line."""
    if len(row) == 1:
        return row[0]
    quads = np.concatenate([line.crop.quad for line in row])
    (x0, y0), (x1, y1) = quads.min(axis=0), quads.max(axis=0)
    quad = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], dtype=np.float32)
    known = [(line.confidence, line.num_tokens) for line in row if line.confidence is not None]
    weight = sum(tokens for _, tokens in known)
    return replace(
        row[0],
        crop=replace(row[0].crop, quad=quad),
        text=" ".join(filter(None, (line.text for line in row))),
        raw=" ".join(filter(None, (line.raw for line in row))),
        confidence=sum(c * tokens for c, tokens in known) / weight if weight else None,
        num_tokens=sum(line.num_tokens for line in row),
        finish_reason=max((line.finish_reason for line in row), key=_SEVERITY.index),
        error=next((line.error for line in row if line.error is not None), None),
    )


def _region(page: PageImage, order: int, paragraph: _Paragraph) -> Region:
    lines = paragraph.lines
    name = f"p{page.index}r{order}"
    boxes = [_bbox(line, page) for line in lines]
    around = boxes[0]
    for box in boxes[1:]:
        around = around.union(box)
    whole = _joined(lines)
    text = "\n".join(line.text for line in lines if line.text)
    error = None
    if whole.error is not None:
        error = ErrorRecord(
            kind=type(whole.error).__name__,
            message=str(whole.error),
            page=page.index,
            region=name,
        )
    return Region(
        id=name,
        order=order,
        type=paragraph.kind,
        bbox=around,
        angle=lines[0].angle,
        text=text if paragraph.keeps_lines else unwrap_lines(text),
        lines=tuple(
            TextLine(text=line.text, bbox=box, confidence=line.confidence)
            for line, box in zip(lines, boxes, strict=True)
        ),
        confidence=whole.confidence,
        finish_reason=whole.finish_reason,
        raw="\n".join(line.raw for line in lines),
        error=error,
        flags=("truncated",) if whole.finish_reason in ("length", "loop") else (),
    )


def _bbox(line: _Line, page: PageImage) -> BBox:
    (x0, y0), (x1, y1) = line.crop.quad.min(axis=0), line.crop.quad.max(axis=0)
    return BBox.from_px((float(x0), float(y0), float(x1), float(y1)), page.image.size)
