"""Engine ``replay:DIR``: recorded answers, found by page and region. No weights, no device.

A folder holds one ``NAME.json`` a page, with the model's layout answer and what it said to each
region; :mod:`mdiff_adapters.engines.record` writes such folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from mdiff_adapters.engines.answers import failed
from mdiff_adapters.engines.base import Answer, Capabilities, Request
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, EngineError, EngineUnavailableError
from mdiff_adapters.tables import parse_table_answer

__all__ = ["ReplayEngine"]

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
        self._pages = {path.stem: path for path in sorted(self._folder.glob("*.json"))}
        if not self._pages:
            what = "no recorded page in" if self._folder.is_dir() else "no folder"
            raise EngineUnavailableError(
                f"{what} {str(self._folder)!r}",
                hint="`mdiff-adapters record` writes a folder of recorded pages",
                adapter=self.name,
            )
        self._loaded: dict[str, Mapping[str, Any]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """All four tasks, on regions."""
        return Capabilities()

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in order.

        A page or region that was not recorded is an answer with an error.

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
            return failed(request.id, error)

    def _page(self, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        stem, index = str(origin.get("stem") or ""), int(origin.get("page") or 0)
        names = [f"{stem}_p{index + 1:04d}", *([stem] if index == 0 else [])]
        name = next((name for name in names if name in self._pages), None)
        if name is None:
            raise EngineError(
                f"no recorded page {' or '.join(map(repr, names))}",
                hint="a page is found by the stem of its document's file name",
                page=index,
                adapter=self.name,
            )
        if name not in self._loaded:
            # Two threads may both read it; the second result replaces an equal one.
            self._loaded[name] = _read_page(self._pages[name], self.name)
        return self._loaded[name]

    def _recorded(self, request: Request, page: Mapping[str, Any]) -> Answer:
        if request.task == "layout":
            return _to_answer(request.id, page["layout_output"], page.get("layout", {}))
        origin = request.origin
        if origin.get("order") is None and origin.get("bbox") is None:
            whole = page.get("whole_page", {}).get(request.task)
            if whole is None:
                raise EngineError(
                    f"no whole-page answer to the task {request.task!r} was recorded",
                    page=origin.get("page"),
                    adapter=self.name,
                )
            return _to_answer(request.id, whole["content"], whole)
        region = _find_region(page["regions"], origin)
        if region is None:
            raise EngineError(
                f"no recorded region for box {origin.get('bbox')} at position "
                f"{origin.get('order')}",
                page=origin.get("page"),
                region=origin.get("region"),
                adapter=self.name,
            )
        content = region["content"] or ""
        if request.task == "table" and self._tables == "otsl":
            table = parse_table_answer(content).table
            content = table.to_otsl() if table is not None else content
        return _to_answer(request.id, content, region)


def _to_answer(request_id: str, text: str, recorded: Mapping[str, Any]) -> Answer:
    if recorded.get("error"):
        return failed(request_id, EngineError(f"recorded error: {recorded['error']}"))
    return Answer(
        id=request_id,
        text=text,
        finish_reason=recorded.get("finish_reason") or ("stop" if text else "empty"),
        confidence=recorded.get("confidence"),
        num_tokens=recorded.get("num_tokens") or 0,
        num_forwards=recorded.get("num_forwards") or 0,
    )


def _find_region(
    regions: list[Mapping[str, Any]], origin: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    order, box = origin.get("order"), origin.get("bbox")
    at_order: Mapping[str, Any] | None = None
    if order is not None and 0 <= order < len(regions):
        at_order = regions[order]
    if box is None:
        return at_order
    # Two regions may share a box, as a list with one item does; the position tells them apart.
    if at_order is not None and _distance(at_order["bbox"], box) <= BOX_TOLERANCE:
        return at_order
    nearest = min(regions, key=lambda region: _distance(region["bbox"], box), default=None)
    if nearest is None or _distance(nearest["bbox"], box) > BOX_TOLERANCE:
        return None
    return nearest


def _distance(a: Iterable[float], b: Iterable[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _read_page(path: Path, adapter: str) -> Mapping[str, Any]:
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        usable = isinstance(page["layout_output"], str) and all(
            len(region["bbox"]) == 4 and "content" in region for region in page["regions"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"recorded page {path.name!r} cannot be read: {type(error).__name__}: {error}",
            adapter=adapter,
        ) from error
    if not usable:
        raise EngineError(f"recorded page {path.name!r} is of another form", adapter=adapter)
    return page  # type: ignore[no-any-return]  # checked above
