"""Segmenter ``model``: the model's own layout first, then one request a region.

Two engine calls a window of pages: the layouts of all of them, then all their crops; a third one
where a table told nothing, for what stands inside it. Answers are tied to regions by id, so they
may come in any order.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from PIL import Image

from mdiff_adapters.document import (
    CUT_SHORT,
    BBox,
    ErrorRecord,
    FinishReason,
    PageStatus,
    ParsedPage,
    Region,
    RegionType,
    Severity,
)
from mdiff_adapters.engines.base import Answer, Request
from mdiff_adapters.errors import ConfigError, EngineError
from mdiff_adapters.formulas import check_latex, strip_delimiters
from mdiff_adapters.layout import LayoutRecord, parse_layout
from mdiff_adapters.tables import Table, parse_table_answer
from mdiff_adapters.text import find_loop, strip_special_tokens, unwrap_lines
from mdiff_core.protocol import LAYOUT_SIZE_PX

if TYPE_CHECKING:
    from mdiff_adapters.engines.base import DecodeConfig, Engine, Task
    from mdiff_adapters.segmenters.base import PageImage, SegmenterOptions

__all__ = ["KEEPS_LINES", "ModelSegmenter"]

INSIDE_SHARE = 0.9
"""Share of a box inside another from which on the other one tells its content."""
BLANK_LEVELS = 12
"""Grey levels below which an image holds nothing to read."""
MAX_CAPTION_GAP = 0.2
"""Largest distance between a caption and its figure, as a fraction of the page."""

_TASKS: dict[RegionType, Task | None] = {
    "table": "table",
    "equation": "formula",
    "equation_block": "formula",
    "image": None,
}
# What a caption or footnote belongs to, and what may stand in for it where there is none.
_OWNERS: dict[RegionType, tuple[frozenset[RegionType], frozenset[RegionType]]] = {
    "image_caption": (frozenset({"image"}), frozenset({"table", "code", "algorithm"})),
    "image_footnote": (frozenset({"image"}), frozenset({"table", "code", "algorithm"})),
    "table_caption": (frozenset({"table"}), frozenset({"image"})),
    "table_footnote": (frozenset({"table"}), frozenset({"image"})),
    "code_caption": (frozenset({"code", "algorithm"}), frozenset({"image", "table"})),
}
_CONTAINERS: frozenset[RegionType] = frozenset({"list", "equation_block"})
_PICTURES: frozenset[RegionType] = frozenset({"image", "equation_block"})
KEEPS_LINES: frozenset[RegionType] = frozenset({"list", "code", "algorithm"})
"""Types whose lines stay lines, whatever they look like."""
_DIVIDED_WORD = re.compile(r"\w+[-\u2010]\s*\n\s*\w+")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


@dataclass(slots=True)
class _Plan:
    """A region before it is read.

    Attributes:
        id: Region id.
        order: Position in the layout answer.
        record: What the layout answer says about it.
        task: What is asked about it; None where nothing is.
        parent: Id of the region it belongs to.
        flags: Remarks so far.
    """

    id: str
    order: int
    record: LayoutRecord
    task: Task | None
    parent: str | None = None
    flags: list[str] = field(default_factory=list)

    @property
    def bbox(self) -> BBox:
        return self.record.bbox

    @property
    def type(self) -> RegionType:
        return self.record.type


@dataclass(slots=True, eq=False)
class _Draft:
    """A page on its way: the image, the plan, and what went wrong so far."""

    page: PageImage
    plans: list[_Plan] = field(default_factory=list)
    warnings: list[ErrorRecord] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    layout: Answer | None = None
    is_blank: bool = False
    has_layout: bool = True
    is_incomplete: bool = False


class ModelSegmenter:
    """Reads pages by the model's own layout; see the module."""

    name = "model"

    def read(
        self,
        pages: Sequence[PageImage],
        engine: Engine,
        decode: DecodeConfig,
        options: SegmenterOptions,
    ) -> list[ParsedPage]:
        """Read a window of pages.

        Args:
            pages: Pages of one document, in order.
            engine: An engine that knows the layout task and reads whole regions.
            decode: Decoding settings of every request.
            options: Whether figure crops are kept.

        Returns:
            One parsed page for each page image, in order.

        Raises:
            ConfigError: If the engine cannot be asked for layouts or regions.
            EngineError: If the engine as a whole cannot answer.
        """
        _check_engine(engine)
        drafts = [_Draft(page) for page in pages]
        for draft in drafts:
            draft.is_blank = _is_blank(draft.page.image)
        by_id = {f"p{draft.page.index}layout": draft for draft in drafts if not draft.is_blank}
        for answer in _ask(engine, _layout_requests(by_id, decode), bool(by_id)):
            if answer.id in by_id:
                by_id[answer.id].layout = answer
        for draft in by_id.values():
            _plan_page(draft)
        owners = {
            plan.id: draft for draft in drafts for plan in draft.plans if plan.task is not None
        }
        _ask_regions(engine, owners, decode)
        # Second, what empty tables were thought to tell.
        untold = {plan_id: draft for draft in drafts for plan_id in _unsilence(draft)}
        _ask_regions(engine, untold, decode)
        return [_finish_page(draft, options) for draft in drafts]


def _check_engine(engine: Engine) -> None:
    can = engine.capabilities
    missing = [task for task in ("layout", "text") if task not in can.tasks]
    if missing or can.text_unit != "region":
        reason = (
            f"it does not know the task {missing[0]}"
            if missing
            else f"it reads text by the {can.text_unit}, not by the region"
        )
        raise ConfigError(
            f"segmenter 'model' cannot use engine {engine.name!r}: {reason}",
            hint="use segmenter 'lines' or 'auto', or a checkpoint with all four tasks",
        )


def _ask(engine: Engine, requests: Iterator[Request], has_requests: bool) -> Iterable[Answer]:
    """Ask the engine, unless there is nothing to ask: a blank page costs no call."""
    return engine.answer(requests) if has_requests else ()


def _is_blank(image: Image.Image) -> bool:
    low, high = image.convert("L").getextrema()
    return float(high) - float(low) < BLANK_LEVELS  # type: ignore[arg-type]  # one band, numbers


def _origin(page: PageImage) -> dict[str, object]:
    return {"source": page.source, "stem": page.stem, "page": page.index}


def _layout_requests(drafts: dict[str, _Draft], decode: DecodeConfig) -> Iterator[Request]:
    for request_id, draft in drafts.items():
        image = draft.page.image.convert("RGB").resize(
            (LAYOUT_SIZE_PX, LAYOUT_SIZE_PX), Image.Resampling.BICUBIC
        )
        yield Request(
            id=request_id, image=image, task="layout", decode=decode, origin=_origin(draft.page)
        )


def _ask_regions(engine: Engine, owners: dict[str, _Draft], decode: DecodeConfig) -> None:
    """Ask about the regions with these ids, and put the answers to their pages."""
    for answer in _ask(engine, _region_requests(owners, decode), bool(owners)):
        if answer.id in owners:
            owners[answer.id].answers[answer.id] = answer


def _region_requests(owners: dict[str, _Draft], decode: DecodeConfig) -> Iterator[Request]:
    """Yield the crops of these regions; each is cut when the engine asks for it."""
    for draft in dict.fromkeys(owners.values()):
        for plan in draft.plans:
            if plan.task is None or plan.id not in owners:
                continue
            crop = _crop(draft.page, plan.record)
            if _is_blank(crop):
                plan.flags.append("blank")
                continue
            origin = _origin(draft.page) | {"region": plan.id, "type": plan.type}
            if draft.has_layout:
                box = plan.bbox
                origin |= {"order": plan.order, "bbox": (box.x0, box.y0, box.x1, box.y1)}
            yield Request(id=plan.id, image=crop, task=plan.task, decode=decode, origin=origin)


def _crop(page: PageImage, record: LayoutRecord) -> Image.Image:
    crop = page.image.crop(record.bbox.pixels(page.image.size)).convert("RGB")
    return crop.rotate(record.angle, expand=True) if record.angle else crop


def _plan_page(draft: _Draft) -> None:
    """Turn a layout answer into a plan: what is asked, and what belongs to what."""
    page, answer = draft.page, draft.layout
    if answer is None:
        answer = draft.layout = _no_answer(f"p{page.index}layout")
    result = parse_layout(answer.text, page=page.index)
    # Without any record the page is read as one text, so that nothing is missing.
    severity: Severity = "warning" if result.records else "info"
    refused = [replace(record, severity=severity) for record in result.refused]
    draft.warnings += [*refused, *result.repaired]
    if answer.error is not None:
        draft.warnings.append(_error_record(answer.error, "layout", page.index))
    draft.is_incomplete = (
        result.truncated or bool(result.refused) or answer.finish_reason in CUT_SHORT
    )
    if result.truncated or answer.finish_reason in CUT_SHORT:
        draft.warnings.append(
            _warning(
                f"the layout answer is cut short ({answer.finish_reason})", page.index, severity
            )
        )
    if not result.records:
        draft.has_layout = False
        draft.warnings.append(
            _warning(
                f"the layout answer has no usable record: {answer.text!r}", page.index, severity
            )
        )
        whole = LayoutRecord(bbox=BBox(0.0, 0.0, 1.0, 1.0), type="text")
        draft.plans = [_Plan(f"p{page.index}r0", 0, whole, "text", flags=["whole_page"])]
        return
    plans = [
        _Plan(f"p{page.index}r{order}", order, record, _TASKS.get(record.type, "text"))
        for order, record in enumerate(result.records)
    ]
    draft.plans = _merge_duplicates(plans, draft)
    _silence_inside_tables(draft.plans)
    _resolve_containers(draft.plans)
    _attach_captions(draft.plans)


def _merge_duplicates(plans: list[_Plan], draft: _Draft) -> list[_Plan]:
    """Keep the first of regions with the same box, as long as both are read or both are not."""
    seen: set[tuple[BBox, bool]] = set()
    kept = []
    for plan in plans:
        key = (plan.bbox, plan.task is None)
        if key in seen:
            message = f"duplicate of an earlier box, merged: {plan.record.raw!r}"
            draft.warnings.append(_warning(message, draft.page.index, "info"))
        else:
            seen.add(key)
            kept.append(plan)
    return kept


def _silence_inside_tables(plans: list[_Plan]) -> None:
    """Ask nothing about what a table's own answer tells; geometry decides, never the text."""
    tables: list[_Plan] = []
    for plan in _by_area(plan for plan in plans if plan.type == "table"):
        if not _silence(plan, tables):
            tables.append(plan)
    for plan in plans:
        if plan.task is not None and plan.type != "table" and plan.type not in _OWNERS:
            _silence(plan, tables)


def _unsilence(draft: _Draft) -> list[str]:
    """Give the regions inside tables whose answer tells nothing their task back; return their ids.

    What stands on the page is better read without the table's structure than not at all.
    """
    silenced = [plan for plan in draft.plans if "inside_table" in plan.flags]
    owners = {plan.parent for plan in silenced}
    untold = {
        plan.id
        for plan in draft.plans
        if plan.id in owners and plan.id in draft.answers and _is_untold(plan, draft)
    }
    found = [plan for plan in silenced if plan.parent in untold]
    for plan in found:
        plan.task = _TASKS.get(plan.type, "text")
        plan.flags.remove("inside_table")
    return [plan.id for plan in found if plan.task is not None]


def _is_untold(table: _Plan, draft: _Draft) -> bool:
    content = _read_answer(draft.answers[table.id], table, frozenset())
    return content.table is None and not content.text.strip()


def _silence(plan: _Plan, tables: list[_Plan]) -> bool:
    for table in tables:
        if _is_inside(plan.bbox, table.bbox):
            plan.task, plan.parent = None, table.id
            plan.flags.append("inside_table")
            return True
    return False


def _by_area(plans: Iterable[_Plan]) -> list[_Plan]:
    """Sort from the largest; of two of the same size the model's first one comes first."""
    return sorted(plans, key=lambda plan: (-round(plan.bbox.area, 6), plan.order))


def _is_inside(inner: BBox, outer: BBox) -> bool:
    return inner.covered_by(outer) >= INSIDE_SHARE


def _resolve_containers(plans: list[_Plan]) -> None:
    """Let either a list or its items tell the text, whichever is complete.

    Models name a list and its items as well. Where the items fill the list, they are read: their
    crops are small and nothing is cut by the token limit. Where a part of the list has no box of
    its own, the list is read as a whole.
    """
    larger: list[_Plan] = []
    for container in _by_area(plan for plan in plans if plan.type in _CONTAINERS):
        larger.append(container)
        if container.task is None:
            continue
        inside = [
            plan
            for plan in plans
            if plan not in larger
            and plan.type not in _OWNERS
            and _is_inside(plan.bbox, container.bbox)
        ]
        items = [plan for plan in inside if plan.task in ("text", "formula")]
        if not items:
            continue
        if _fills([plan.bbox for plan in inside], container.bbox):
            container.task = None
            container.flags.append("told_by_items")
            for plan in items:
                # The smallest container comes last and keeps its items.
                plan.parent = container.id
        else:
            for plan in items:
                plan.task, plan.parent = None, container.id
                plan.flags.append(f"inside_{container.type}")


def _fills(boxes: Sequence[BBox], outer: BBox) -> bool:
    """Whether no line of text fits between the boxes: then nothing of the outer box is untold."""
    smallest = min(box.height for box in boxes)
    bottom = outer.y0
    for box in sorted(boxes, key=lambda box: box.y0):
        if box.y0 - bottom > 0.8 * smallest:
            return False
        bottom = max(bottom, box.y1)
    width = max(box.x1 for box in boxes) - min(box.x0 for box in boxes)
    return outer.y1 - bottom <= 0.8 * smallest and width >= 0.8 * outer.width


def _attach_captions(plans: list[_Plan]) -> None:
    """Give captions and footnotes their figure or table: the nearest by place, then by order.

    The model may name a figure a table; its caption then goes to a table that it follows or
    precedes directly, so that moving the caption never changes the order of anything else.
    """
    for position, plan in enumerate(plans):
        if plan.type not in _OWNERS:
            continue
        own, stand_in = _OWNERS[plan.type]
        near = [
            (_gap(plan.bbox, other.bbox) + 0.02 * abs(position - at), other)
            for at, other in enumerate(plans)
            if _gap(plan.bbox, other.bbox) <= MAX_CAPTION_GAP
            and (
                other.type in own
                or (other.type in stand_in and _are_neighbours(plans, position, at))
            )
        ]
        # A figure of the right kind comes before any other.
        near = [entry for entry in near if entry[1].type in own] or near
        if near:
            plan.parent = min(near, key=lambda entry: entry[0])[1].id


def _are_neighbours(plans: list[_Plan], first: int, second: int) -> bool:
    """Whether only captions and footnotes stand between two regions."""
    low, high = sorted((first, second))
    return all(plan.type in _OWNERS for plan in plans[low + 1 : high])


def _gap(a: BBox, b: BBox) -> float:
    return math.hypot(max(0.0, a.x0 - b.x1, b.x0 - a.x1), max(0.0, a.y0 - b.y1, b.y0 - a.y1))


def _finish_page(draft: _Draft, options: SegmenterOptions) -> ParsedPage:
    page = draft.page
    for plan in draft.plans:
        if plan.task is not None and plan.id not in draft.answers and "blank" not in plan.flags:
            draft.answers[plan.id] = _no_answer(plan.id)
    words = _vocabulary([answer.text for answer in draft.answers.values()])
    regions = tuple(
        _finish_region(plan, draft.answers.get(plan.id), page, words, options)
        for plan in draft.plans
    )
    status, error = _status(draft, regions)
    answers = [*draft.answers.values(), *([draft.layout] if draft.layout is not None else [])]
    return ParsedPage(
        index=page.index,
        label=page.label,
        size_px=page.image.size,
        size_pt=page.size_pt,
        rotation=page.rotation,
        regions=regions,
        status=status,
        error=error,
        warnings=tuple(draft.warnings),
        num_tokens=sum(answer.num_tokens for answer in answers),
        num_forwards=sum(answer.num_forwards for answer in answers),
    )


def _status(draft: _Draft, regions: tuple[Region, ...]) -> tuple[PageStatus, ErrorRecord | None]:
    if draft.is_blank:
        return "blank", None
    asked = [region for region in regions if region.finish_reason is not None]
    errors = [region.error for region in asked if region.error is not None]
    if errors and len(errors) == len(asked):
        return "failed", errors[0]
    if not draft.has_layout:
        return "layout_failed", None
    if draft.is_incomplete or errors or any(r.finish_reason in CUT_SHORT for r in asked):
        return "partial", None
    return "ok", None


def _finish_region(
    plan: _Plan,
    answer: Answer | None,
    page: PageImage,
    words: frozenset[str],
    options: SegmenterOptions,
) -> Region:
    content = _Content()
    error = None
    finish: FinishReason | None = "empty" if "blank" in plan.flags else None
    if answer is not None and plan.task is not None:
        finish = answer.finish_reason
        content = _read_answer(answer, plan, words)
        finish = content.finish_reason or finish
        if answer.error is not None:
            error = _error_record(answer.error, "read", page.index, plan.id)
    picture = None
    if options.images == "embed" and plan.type in _PICTURES:
        picture = _png(_crop(page, plan.record))
    return Region(
        id=plan.id,
        order=plan.order,
        type=plan.type,
        bbox=plan.bbox,
        raw_label=plan.record.raw_label,
        angle=plan.record.angle,
        text=content.text,
        table=content.table,
        latex=content.latex,
        confidence=answer.confidence if answer is not None else None,
        finish_reason=finish,
        parent=plan.parent,
        raw=answer.text if answer is not None else "",
        error=error,
        flags=tuple(dict.fromkeys([*plan.flags, *content.flags])),
        image=picture,
    )


@dataclass(slots=True)
class _Content:
    """What an answer says, cleaned."""

    text: str = ""
    table: Table | None = None
    latex: str | None = None
    finish_reason: FinishReason | None = None
    flags: list[str] = field(default_factory=list)


def _read_answer(answer: Answer, plan: _Plan, words: frozenset[str]) -> _Content:
    stripped = strip_special_tokens(answer.text)
    text = stripped.text
    content = _Content(finish_reason=answer.finish_reason)
    if stripped.num_tokens:
        content.flags.append(f"special_tokens={stripped.num_tokens}")
    if answer.finish_reason in ("length", "loop"):
        # Repeated text that ended by itself is what stands on the page.
        loop = find_loop(text)
        if loop is not None:
            text, content.finish_reason = loop.trimmed, "loop"
    if content.finish_reason == "loop":
        content.flags.append("loop")
    elif content.finish_reason == "length":
        content.flags.append("truncated")
    if plan.task == "table":
        parsed = parse_table_answer(text)
        content.table, content.text = parsed.table, parsed.text
        content.flags += parsed.flags
    elif plan.task == "formula":
        content.latex = strip_delimiters(text) or None
        reason = check_latex(content.latex or "")
        if reason is not None:
            content.flags.append(f"invalid_latex={reason}")
    elif plan.type in KEEPS_LINES:
        content.text = "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))
    else:
        content.text = unwrap_lines(text, words)
    is_empty = not (content.text.strip() or content.table or content.latex)
    if is_empty and content.finish_reason == "stop":
        content.finish_reason = "empty"
    return content


def _vocabulary(texts: list[str]) -> frozenset[str]:
    """Return the words of a page, for dividing hyphens from real ones; divided words left out."""
    if not any(_DIVIDED_WORD.search(text) for text in texts):
        return frozenset()
    return frozenset(
        word.lower() for text in texts for word in _WORD.findall(_DIVIDED_WORD.sub(" ", text))
    )


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _no_answer(request_id: str) -> Answer:
    error = EngineError(f"the engine gave no answer to request {request_id!r}")
    return Answer(id=request_id, finish_reason="error", error=error)


def _error_record(
    error: Exception, stage: str, page: int, region: str | None = None
) -> ErrorRecord:
    return ErrorRecord(
        kind=type(error).__name__, message=str(error), stage=stage, page=page, region=region
    )


def _warning(message: str, page: int, severity: Severity = "warning") -> ErrorRecord:
    return ErrorRecord(
        kind="RegionError", message=message, stage="layout", page=page, severity=severity
    )
