"""The reader of layout answers: finds records anywhere in the text and loses none silently.

A record is ``<|box_start|>x0 y0 x1 y1<|box_end|><|ref_start|>type<|ref_end|><|rotate_up|>`` with
thousandths of the page. Models write more than that: two records on a line, coordinates just
outside, corners swapped, labels of their own, lists that break off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import cast, get_args

from mdiff_adapters.document import BBox, ErrorRecord, RegionType
from mdiff_adapters.text import cut_at_stop
from mdiff_core.protocol import ROTATIONS

__all__ = ["LayoutRecord", "LayoutResult", "parse_layout"]

MAX_OVERSHOOT_PERMILLE = 20
"""How far outside of the page a coordinate may be and still be taken as the page's edge."""

_TYPES = frozenset(get_args(RegionType)) - {"other"}
_ANGLES = {turn: angle for angle, turn in ROTATIONS.items()}

# The start of a record: a box with both marks, with its first mark missing, or a lone first mark.
_START = re.compile(r"(?:<\|box_start\|>)?[^<\n]*<\|box_end\|>|<\|box_start\|>")
_BOX = re.compile(r"\A(?:<\|box_start\|>)?([^<]*)")
_LABEL = re.compile(r"<\|ref_start\|>([^<]*)<\|ref_end\|>")
_ROTATION = re.compile(r"<\|rotate_(up|right|down|left)\|>")
_CUT_TOKEN = re.compile(r"<(?:\|[a-z_]{0,16}\|?)?\Z")
_NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?")
_BETWEEN_NUMBERS = re.compile(r"[\s,;()\[\]]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRecord:
    """One region as the layout answer gives it.

    Attributes:
        bbox: Box on the page.
        type: Region type; ``other`` for a word that is none.
        raw_label: The model's word where the type is ``other``, else None.
        angle: Degrees (0, 90, 180, 270) that PIL ``rotate(angle, expand=True)`` needs to make the
            crop upright.
        raw: The record's text.
    """

    bbox: BBox
    type: RegionType
    raw_label: str | None = None
    angle: int = 0
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutResult:
    """What a layout answer holds.

    Attributes:
        records: In the model's order.
        refused: Records that no box could be made of, with their text and the reason.
        repaired: Records that were changed to fit, with their text and what was done.
        truncated: Whether the answer breaks off inside a record.
        num_marks: Records that the answer begins; always ``len(records) + len(refused)``.
    """

    records: tuple[LayoutRecord, ...]
    refused: tuple[ErrorRecord, ...]
    repaired: tuple[ErrorRecord, ...]
    truncated: bool
    num_marks: int


def parse_layout(text: str, *, page: int | None = None) -> LayoutResult:
    """Read a layout answer.

    Args:
        text: The answer as decoded; what follows a stop token is ignored.
        page: 0-based page index, for the error records.

    Returns:
        The records, and what was refused or repaired. An answer without records (garbage, or
        nothing) gives an empty result, which the caller must not take for an empty page.
    """
    text = cut_at_stop(text)
    starts = [match.start() for match in _START.finditer(text)]
    pieces = [text[start:end].strip() for start, end in pairwise([*starts, len(text)])]
    records: list[LayoutRecord] = []
    refused: list[ErrorRecord] = []
    repaired: list[ErrorRecord] = []
    for position, piece in enumerate(pieces):
        is_last = position == len(pieces) - 1
        found = _read_record(piece, is_last=is_last)
        if isinstance(found, str):
            refused.append(_note("refused", found, piece, page))
            continue
        record, repairs = found
        records.append(record)
        if repairs:
            repaired.append(_note("repaired", ", ".join(repairs), piece, page))
    return LayoutResult(
        records=tuple(records),
        refused=tuple(refused),
        repaired=tuple(repaired),
        truncated=_is_truncated(text, pieces),
        num_marks=len(pieces),
    )


def _read_record(piece: str, *, is_last: bool) -> tuple[LayoutRecord, list[str]] | str:
    """Return the record and what was repaired, or the reason for refusing it."""
    label = _LABEL.search(piece)
    if label is None and is_last and "<|ref_end|>" not in piece:
        return "the answer ends inside the record"
    box = _BOX.match(piece)
    values = _numbers(box.group(1) if box else "")
    if values is None or len(values) != 4:
        return "not four numbers"
    low, high = -MAX_OVERSHOOT_PERMILLE, 1000 + MAX_OVERSHOOT_PERMILLE
    if not all(low <= value <= high for value in values):
        return "coordinates are outside of the page"
    repairs = []
    clamped = [min(max(value, 0.0), 1000.0) / 1000.0 for value in values]
    if any(not 0 <= value <= 1000 for value in values):
        repairs.append("clamped to the page")
    x0, y0, x1, y1 = clamped
    if x0 > x1 or y0 > y1:
        repairs.append("corners swapped")
    name = label.group(1).strip() if label is not None else ""
    if label is None:
        repairs.append("no type, read as text")
    known = name.lower() in _TYPES
    rotation = _ROTATION.search(piece)
    record = LayoutRecord(
        bbox=BBox(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)),
        type=cast(RegionType, name.lower()) if known else "other",
        raw_label=None if known else name,
        angle=_ANGLES[rotation.group(1)] if rotation else 0,
        raw=piece,
    )
    return record, repairs


def _numbers(text: str) -> list[float] | None:
    """Return all numbers of a text that holds nothing else but separators, else None."""
    values = []
    end = 0
    for match in _NUMBER.finditer(text):
        if not _BETWEEN_NUMBERS.fullmatch(text[end : match.start()]):
            return None
        values.append(float(match.group().replace("−", "-")))
        end = match.end()
    return values if _BETWEEN_NUMBERS.fullmatch(text[end:]) else None


def _is_truncated(text: str, pieces: list[str]) -> bool:
    if _CUT_TOKEN.search(text):
        return True
    if not pieces:
        return False
    last = pieces[-1]
    if "<|ref_end|>" not in last:
        return True
    # A list that gives rotations gives one to its last record too.
    return _ROTATION.search(last) is None and any(_ROTATION.search(piece) for piece in pieces[:-1])


def _note(what: str, reason: str, piece: str, page: int | None) -> ErrorRecord:
    return ErrorRecord(
        kind="RegionError",
        message=f"layout record {what} ({reason}): {piece!r}",
        stage="layout",
        page=page,
        severity="warning" if what == "refused" else "info",
    )
