"""Recording: runs an engine on a document and writes the folder that ``replay:DIR`` answers from.

A page ``NAME_p0003`` is a picture ``NAME_p0003.jpg`` and a file ``NAME_p0003.json``:

- ``layout_output``: the answer to the layout task, as decoded;
- ``regions``: its records in the model's order, each with ``type``, ``bbox`` (fractions of the
  page), ``angle`` and ``content``, the answer as decoded, null where nothing was asked;
- ``whole_page``: answers by task about the whole page, where the layout failed or there is nothing
  on the page;
- ``markdown``: the page as parsed; ``engine``, ``threshold``: how it was made.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdiff_adapters.document import ParsedPage, Region
from mdiff_adapters.engines.base import Answer, Capabilities, DecodeConfig, Engine, Request
from mdiff_adapters.engines.registry import open_engine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import ConfigError, DocumentError
from mdiff_adapters.exits import FailedPages
from mdiff_adapters.export import page_to_markdown
from mdiff_adapters.export.text import region_text
from mdiff_adapters.layout import parse_layout
from mdiff_adapters.segmenters import SegmenterOptions, choose_segmenter, get_segmenter
from mdiff_adapters.segmenters.model import KEEPS_LINES
from mdiff_adapters.sources import SourceLimits, open_source
from mdiff_adapters.sources.base import check_page_selection
from mdiff_adapters.sources.sniffing import display_name
from mdiff_adapters.text import unwrap_lines
from mdiff_core.closing import ClosedOnExit
from mdiff_core.protocol import format_record

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["RecordingEngine", "record", "record_command", "write_page"]

logger = logging.getLogger(__name__)

_JPEG_QUALITY = 95


class RecordingEngine(ClosedOnExit):
    """An engine that keeps what another one answers.

    Args:
        engine: The engine that is asked; closing the recorder leaves it open.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], list[tuple[Request, Answer]]] = {}

    @property
    def name(self) -> str:
        """The name of the engine that is asked."""
        return self._engine.name

    @property
    def capabilities(self) -> Capabilities:
        """What the engine that is asked knows."""
        return self._engine.capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield the answers of the engine and keep those that name their page."""
        asked: dict[str, Request] = {}

        def noted() -> Iterator[Request]:
            for request in requests:
                asked[request.id] = request
                yield request

        for answer in self._engine.answer(noted()):
            request = asked.pop(answer.id, None)
            if request is not None and "stem" in request.origin:
                key = (str(request.origin["stem"]), int(request.origin.get("page", 0)))
                with self._lock:
                    self._kept.setdefault(key, []).append((request, answer))
            yield answer

    def take(self, stem: str, page: int) -> list[tuple[Request, Answer]]:
        """Return what was asked about a page so far, and forget it.

        Args:
            stem: File stem of the document.
            page: 0-based page index.

        Returns:
            Requests with their answers, in the order of completion.
        """
        with self._lock:
            return self._kept.pop((stem, page), [])

    def close(self) -> None:
        """Forget what was kept; the engine that is asked stays open."""
        with self._lock:
            self._kept = {}


def record(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    engine: str | EngineSpec | Engine = "tiny",
    segmenter: str = "auto",
    decode: DecodeConfig | None = None,
    pages: Any = None,
    password: str | None = None,
    dpi: float = 200.0,
    on_failed: Callable[[str], None] = logger.warning,
    **engine_options: Any,
) -> Iterator[Path]:
    """Parse a document and write each page's answers, as soon as the page is read.

    Pages that cannot be rendered are left out; pages that fail later are recorded as failed. An
    engine without the layout task is recorded through what its segmenter found: the layout answer
    is written from the page's regions.

    Args:
        source: The document, see :func:`mdiff_adapters.sources.open_source`.
        folder: Where to write; made where it is missing.
        engine: The engine, see :func:`mdiff_adapters.engines.open_engine`.
        segmenter: ``auto``, ``model``, ``lines`` or a plugin's.
        decode: Decoding settings.
        pages: Selected pages, ``"1-3,7"`` (1-based) or 0-based integers.
        password: Password of an encrypted PDF.
        dpi: Resolution at which PDF pages are rendered.
        on_failed: Gets the reason for each page that cannot be read; else it is logged.
        **engine_options: Options of the engine.

    Yields:
        The path of each ``.json`` file written.

    Raises:
        ConfigError: If the folder cannot be written, or a setting is wrong.
        DocumentError: If the document cannot be opened.
        EngineError: If the engine as a whole cannot answer.
    """
    check_page_selection(pages)
    recorder = RecordingEngine(open_engine(engine, **engine_options))
    if segmenter == "auto":
        segmenter = choose_segmenter(recorder.capabilities)
    reader = get_segmenter(segmenter)
    decode = decode or DecodeConfig()
    limits = SourceLimits(dpi=dpi)
    with open_source(source, password=password, pages=pages, limits=limits) as document:
        for index in document.page_indices:
            try:
                image = document.load(index)
            except DocumentError as error:
                on_failed(f"page left out of the recording: {error}")
                continue
            (page,) = reader.read([image], recorder, decode, SegmenterOptions())
            if page.errors:
                on_failed("; ".join(record.message for record in page.errors))
            asked = recorder.take(image.stem, index)
            about = {"engine": recorder.name, "threshold": decode.threshold}
            name = f"{image.stem}_p{index + 1:04d}"
            yield write_page(folder, name, page, asked, image=image.image, about=about)


def write_page(
    folder: str | os.PathLike[str],
    name: str,
    page: ParsedPage,
    asked: Iterable[tuple[Request, Answer]],
    *,
    image: Image.Image | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write one recorded page.

    Args:
        folder: Where to write; made where it is missing.
        name: Name of the files without ending, ``NAME_p0001``.
        page: The page as parsed.
        asked: What was asked about it, with the answers.
        image: The page image, written as JPEG.
        about: More fields for the file, for example how it was made.

    Returns:
        The path of the ``.json`` file.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    data = {"page": name, **(about or {}), **_answers(page, list(asked))}
    data["markdown"] = page_to_markdown(page)
    path = Path(folder) / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if image is not None:
            image.save(path.with_suffix(".jpg"), quality=_JPEG_QUALITY)
        text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
        # Fields of the caller's may hold half of a surrogate pair, which no UTF-8 encoder takes.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"folder {os.fspath(folder)!r} cannot be written: {error}",
            hint="give a folder that can be written",
        ) from error
    return path


def _answers(page: ParsedPage, asked: list[tuple[Request, Answer]]) -> dict[str, Any]:
    layouts = [answer for request, answer in asked if request.task == "layout"]
    if not layouts:
        return _parsed_answers(page)
    layout = layouts[-1]
    by_order = {
        request.origin["order"]: answer
        for request, answer in asked
        if request.origin.get("order") is not None
    }
    data: dict[str, Any] = {"layout_output": layout.text, "layout": _measures(layout)}
    data["regions"] = []
    for order, found in enumerate(parse_layout(layout.text).records):
        box = found.bbox
        region = {
            "type": found.raw_label or found.type,
            "bbox": [box.x0, box.y0, box.x1, box.y1],
            "angle": found.angle,
            "content": None,
        }
        if order in by_order:
            answer = by_order[order]
            region |= {"content": answer.text, **_measures(answer)}
        data["regions"].append(region)
    whole = {
        request.task: {"content": answer.text, **_measures(answer)}
        for request, answer in asked
        if request.task != "layout" and request.origin.get("order") is None
    }
    return data | ({"whole_page": whole} if whole else {})


def _parsed_answers(page: ParsedPage) -> dict[str, Any]:
    """Return the answers that a page would be parsed from, for an engine that gives no layouts."""
    data: dict[str, Any] = {
        "layout_output": "\n".join(map(_layout_record, page.regions)),
        "regions": [_parsed_region(region) for region in page.regions],
    }
    if not page.regions:
        # An empty layout makes whoever plays it back ask about the whole page.
        whole: dict[str, Any] = {"content": ""}
        if page.error is not None:
            whole["error"] = page.error.message
        data["whole_page"] = {"text": whole}
    return data


def _measures(answer: Answer) -> dict[str, Any]:
    measures: dict[str, Any] = {
        "finish_reason": answer.finish_reason,
        "confidence": answer.confidence,
        "num_tokens": answer.num_tokens,
        "num_forwards": answer.num_forwards,
    }
    if answer.error is not None:
        measures["error"] = str(answer.error)
    return measures


def _layout_record(region: Region) -> str:
    box = region.bbox
    corners = " ".join(f"{round(value * 1000):03d}" for value in (box.x0, box.y0, box.x1, box.y1))
    return format_record(corners, region.raw_label or region.type, region.angle)


def _parsed_region(region: Region) -> dict[str, Any]:
    box = region.bbox
    content = region.table.to_otsl() if region.table is not None else region_text(region)
    if _is_plain_text(region) and unwrap_lines(content) != content:
        # Rows of a table or a form: a single line break would be taken for one of the page's and
        # the rows joined, a blank line keeps them apart.
        content = "\n\n".join(line for line in content.split("\n") if line.strip())
    data: dict[str, Any] = {
        "type": region.raw_label or region.type,
        "bbox": [box.x0, box.y0, box.x1, box.y1],
        "angle": region.angle,
        "content": content or None,
        "finish_reason": region.finish_reason,
        "confidence": region.confidence,
    }
    if region.error is not None:
        data["error"] = region.error.message
    return data


def _is_plain_text(region: Region) -> bool:
    return region.table is None and region.latex is None and region.type not in KEEPS_LINES


def record_command(
    source: Annotated[str, typer.Argument(help="PDF or image to record.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write the recorded pages to.")],
    engine: Annotated[str, typer.Option(help="Engine to record.")] = "tiny",
    segmenter: Annotated[str, typer.Option(help="auto, model, lines or a plugin's.")] = "auto",
    threshold: Annotated[float, typer.Option(help="Confidence that confirms a token.")] = 0.95,
    pages: Annotated[str | None, typer.Option(help='Pages, for example "1-3,7".')] = None,
    password: Annotated[str | None, typer.Option(help="Password of an encrypted PDF.")] = None,
    dpi: Annotated[float, typer.Option(help="Resolution of rendered PDF pages.")] = 200.0,
) -> None:
    """Record an engine's answers on a document, for `--engine replay:FOLDER`."""
    failed_pages = FailedPages()
    written = record(
        source,
        folder,
        engine=engine,
        segmenter=segmenter,
        decode=DecodeConfig(threshold=threshold),
        pages=pages,
        password=password,
        dpi=dpi,
        on_failed=failed_pages,
    )
    for path in written:
        typer.echo(display_name(str(path)))
    failed_pages.end_command()
