"""Engine ``replay:DIR``: recorded answers, found by page and region. No weights, no device.

A folder holds one ``NAME.json`` a page, with the model's layout answer and what it said to each
region; :mod:`mdiff_adapters.engines.record` writes such folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mdiff_adapters.document import FinishReason
from mdiff_adapters.engines.answers import failed
from mdiff_adapters.engines.base import Answer, Capabilities, Request
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, EngineError, EngineUnavailableError
from mdiff_adapters.tables import parse_table_answer

__all__ = ["ReplayEngine"]

_Stamp = tuple[int, int] | None

BOX_TOLERANCE = 0.005
"""How far corners may be apart, as a fraction of the page, for two boxes to be the same region."""


class ReplayEngine(SpecEngine):
    """Answers from a folder of recorded pages.

    The page is found by the stem of the document's file name: page 3 of ``report.pdf`` is
    ``report_p0003.json``, the single page of ``scan.png`` may also be ``scan.json``. The region is
    found by its box, else by its position in the layout answer. The pixels are not looked at.

    Args:
        folder: The folder.
        tables: ``recorded`` gives table answers as they were recorded, ``otsl`` rewrites them to
            OTSL as the model itself writes it.

    Raises:
        ConfigError: If ``tables`` is unknown.
        EngineUnavailableError: If there is no such folder, or no recorded page in it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        tables: Literal["recorded", "otsl"] = "recorded",
    ) -> None:
        if tables not in ("recorded", "otsl"):
            raise ConfigError(f"tables = {tables!r} is unknown", hint="recorded or otsl")
        self._folder = Path(folder)
        self._tables = tables
        options = (("tables", tables),) if tables != "recorded" else ()
        super().__init__(EngineSpec(f"replay:{self._folder}", options))
        self._pages = self._find_pages()
        if not self._pages:
            what = "no recorded page in" if self._folder.is_dir() else "no folder"
            raise EngineUnavailableError(
                f"{what} {str(self._folder)!r}",
                hint="`mdiff-adapters record` writes a folder of recorded pages",
                adapter=self.name,
            )
        self._loaded: dict[str, tuple[_Stamp, _Page]] = {}

    def _find_pages(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(self._folder.glob("*.json"))}

    @property
    def capabilities(self) -> Capabilities:
        """All four tasks, on regions."""
        return Capabilities()

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in order.

        A page or region that was not recorded, or is malformed, is an answer with an error that
        names file and field.

        Raises:
            EngineError: If the engine is closed.
        """
        self._check_open()
        return (self._answer(request) for request in requests)

    def close(self) -> None:
        """Refuse further calls."""
        super().close()
        self._loaded = {}

    def _answer(self, request: Request) -> Answer:
        try:
            page = self._page(request.origin)
            return self._recorded(request, page)
        except EngineError as error:
            error.adapter = self.name
            return failed(request.id, error)

    def _page(self, origin: Mapping[str, Any]) -> _Page:
        stem, index = str(origin.get("stem") or ""), int(origin.get("page") or 0)
        names = [f"{stem}_p{index + 1:04d}", *([stem] if index == 0 else [])]
        name = next((name for name in names if name in self._pages), None)
        if name is None:
            # The engine is shared in the process, and a page may be recorded while it lives.
            self._pages = self._find_pages()
            name = next((name for name in names if name in self._pages), None)
        if name is None:
            raise EngineError(
                f"no recorded page {' or '.join(map(repr, names))}",
                hint="a page is found by the stem of its document's file name",
                page=index,
            )
        path = self._pages[name]
        stamp = _stamp(path)
        loaded = self._loaded.get(name)
        if loaded is None or loaded[0] != stamp:
            # Two threads may both read it; the second result replaces an equal one.
            loaded = self._loaded[name] = (stamp, _read_page(path))
        return loaded[1]

    def _recorded(self, request: Request, page: _Page) -> Answer:
        origin = request.origin
        if request.task == "layout":
            layout = page.part(page.data, "layout")
            return _to_answer(request.id, page.data["layout_output"], layout, f"{page}: layout")
        if origin.get("order") is None and origin.get("bbox") is None:
            whole = page.part(page.data, "whole_page")
            field = f"whole_page.{request.task}"
            if whole.get(request.task) is None:
                raise EngineError(
                    f"no whole-page answer to the task {request.task!r} was recorded",
                    page=origin.get("page"),
                )
            recorded = page.part(whole, request.task, field)
            content = recorded.get("content")
            _check(f"{page}: {field}.content", content, isinstance(content, str), "text")
            return _to_answer(request.id, content, recorded, f"{page}: {field}")
        where, region = _find_region(page, origin)
        content = region.get("content", _MISSING)
        known = content is None or isinstance(content, str)
        _check(f"{where}.content", content, known, "text or null")
        content = content or ""
        if request.task == "table" and self._tables == "otsl":
            table = parse_table_answer(content).table
            content = table.to_otsl() if table is not None else content
        return _to_answer(request.id, content, region, where)


@dataclass(frozen=True, slots=True)
class _Page:
    """A recorded page whose ``layout_output`` is text and whose ``regions`` are a list.

    What is below that is checked when it is asked for: one bad region does not cost the others.
    """

    file: str
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return f"recorded page {self.file!r}"

    def part(self, parent: Mapping[str, Any], name: str, field: str | None = None) -> Any:
        """Return the object at ``name``; an empty one where there is none."""
        value = parent.get(name)
        _check(f"{self}: {field or name}", value, value is None or _is_object(value), "an object")
        return value or {}


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()
_FINISH_REASONS = get_args(FinishReason)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(field: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise EngineError(f"{field} is {repr(value)[:80]}", hint=f"expected: {expected}")


def _to_answer(request_id: str, text: str, recorded: Mapping[str, Any], where: str) -> Answer:
    if recorded.get("error"):
        return failed(request_id, EngineError(f"recorded error: {recorded['error']}"))
    reason, confidence = recorded.get("finish_reason"), recorded.get("confidence")
    _check(
        f"{where}.finish_reason",
        reason,
        reason is None or reason in _FINISH_REASONS,
        f"null or one of {', '.join(_FINISH_REASONS)}",
    )
    _check(
        f"{where}.confidence",
        confidence,
        confidence is None or (_is_number(confidence) and 0 <= confidence <= 1),
        "null or a number in [0, 1]",
    )
    counts: dict[str, int] = {}
    for name in ("num_tokens", "num_forwards"):
        count = recorded.get(name)
        is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        _check(f"{where}.{name}", count, count is None or is_count, "null or an integer >= 0")
        counts[name] = count or 0
    return Answer(
        id=request_id,
        text=text,
        finish_reason=reason or ("stop" if text else "empty"),
        confidence=confidence,
        num_tokens=counts["num_tokens"],
        num_forwards=counts["num_forwards"],
    )


def _find_region(page: _Page, origin: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the region that is asked for, and where it stands, for errors."""
    regions, box = page.data["regions"], origin.get("bbox")
    order: Any = origin.get("order")
    names = [f"{page}: regions[{index}]" for index in range(len(regions))]
    faults: dict[int, EngineError] = {}
    for index, region in enumerate(regions):
        try:
            _check_region(region, names[index])
        except EngineError as error:
            faults[index] = error
    has_order = order is not None and 0 <= order < len(regions)
    # Two regions may share a box, as a list with one item does; the position tells them apart.
    if (
        has_order
        and order not in faults
        and (box is None or _distance(regions[order]["bbox"], box) <= BOX_TOLERANCE)
    ):
        return names[order], regions[order]
    if box is not None:
        good = [index for index in range(len(regions)) if index not in faults]
        near = min(good, key=lambda index: _distance(regions[index]["bbox"], box), default=None)
        if near is not None and _distance(regions[near]["bbox"], box) <= BOX_TOLERANCE:
            return names[near], regions[near]
    if has_order and order in faults:
        raise faults[order]
    raise EngineError(
        f"no recorded region for box {box} at position {order}",
        # The region may be the one that cannot be compared.
        hint=str(next(iter(faults.values()))) if faults else None,
        page=origin.get("page"),
        region=origin.get("region"),
    )


def _check_region(region: object, where: str) -> None:
    _check(where, region, _is_object(region), "an object")
    box = region.get("bbox", _MISSING)  # type: ignore[attr-defined]  # checked above
    # A box further outside of the page is near none that is asked for.
    low, high = -BOX_TOLERANCE, 1 + BOX_TOLERANCE
    usable = (
        isinstance(box, list)
        and len(box) == 4
        and all(_is_number(corner) and low <= corner <= high for corner in box)
    )
    _check(f"{where}.bbox", box, usable, "four fractions of the page")


def _distance(a: Iterable[float], b: Iterable[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _stamp(path: Path) -> _Stamp:
    """Return what differs once the file was written again; None where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read_page(path: Path) -> _Page:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(
            f"recorded page {path.name!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    page = _Page(path.name, data)
    _check(str(page), data, _is_object(data), "an object")
    layout, regions = data.get("layout_output", _MISSING), data.get("regions", _MISSING)
    _check(f"{page}: layout_output", layout, isinstance(layout, str), "text")
    _check(f"{page}: regions", regions, isinstance(regions, list), "a list")
    return page
