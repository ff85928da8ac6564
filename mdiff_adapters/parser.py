"""The document parser: a source, a segmenter and an engine, page by page.

Pages are rendered in windows: the first page alone, so that it arrives before the second one is
drawn, then a few at a time, so that their requests share the engine's batches. No more page images
than one window are alive at any time.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Literal

import mdiff_core.errors as error_types
from mdiff_adapters.document import ErrorRecord, ParsedDocument, ParsedPage
from mdiff_adapters.engines import DecodeConfig, Engine, EngineSpec, open_engine
from mdiff_adapters.engines.registry import check_options, setting_names
from mdiff_adapters.errors import ConfigError, DocumentError, MDiffError, PageError
from mdiff_adapters.segmenters import (
    PageImage,
    Segmenter,
    SegmenterOptions,
    choose_segmenter,
    get_segmenter,
)
from mdiff_adapters.sources import DocumentSource, SourceLimits, open_source
from mdiff_adapters.sources.base import PageSelection, check_page_selection
from mdiff_adapters.sources.opening import SourceInput
from mdiff_core.closing import ClosedOnExit
from mdiff_core.config import check_count

__all__ = ["DocumentParser", "DocumentStream", "OnError"]

OnError = Literal["record", "raise", "skip"]
_LIMITS = SourceLimits()
_ON_ERROR: tuple[OnError, ...] = ("record", "raise", "skip")


class DocumentParser:
    """Parses documents into pages of typed, ordered regions.

    Holds settings only; the engine is opened on first use and shared in the process. Safe to use
    from many threads, and picklable where ``engine`` is a spec.

    Args:
        engine: Spec string such as ``tiny``, an :class:`EngineSpec`, or an engine object.
        segmenter: ``auto`` (by what the engine can be asked), a registered name, or an object.
        threshold: Confidence limit of the decoding, in [0, 1]; overrides the one in ``decode``.
        decode: Decoding settings.
        pages: Default page selection, ``"1-3,7"`` (1-based) or 0-based integers.
        password: Default password for encrypted PDFs; never shown or stored in results.
        dpi: Resolution for PDF pages.
        window: Pages whose requests go to the engine together, at least 1.
        max_pixels: Most pixels of a page image.
        on_error: ``record`` keeps failed pages as pages of status ``failed``; ``skip`` leaves them
            out, but for the one at which a document is given up; ``raise`` raises the first error
            of a page, its layout or a region. A document that cannot be opened always raises.
        images: ``embed`` keeps figure crops in the result, where the segmenter knows figures.
        max_failed_pages: Pages failing one after the other at which a document is given up; a
            damaged file may claim any number of pages.
        **engine_options: Options of the engine spec (``device``, ``dtype``, …).

    Raises:
        ConfigError: If a setting is out of its range, or neither the parser nor the engine has it.
    """

    def __init__(
        self,
        engine: str | EngineSpec | Engine = "tiny",
        *,
        segmenter: str | Segmenter = "auto",
        threshold: float | None = None,
        decode: DecodeConfig | None = None,
        pages: PageSelection = None,
        password: str | None = None,
        dpi: float = _LIMITS.dpi,
        window: int = 4,
        max_pixels: int = _LIMITS.max_pixels,
        on_error: OnError = "record",
        images: Literal["none", "embed"] = "none",
        max_failed_pages: int = 10,
        **engine_options: Any,
    ) -> None:
        if on_error not in _ON_ERROR:
            raise ConfigError(f"on_error = {on_error!r} is unknown", hint=f"allowed: {_ON_ERROR}")
        check_count("DocumentParser", "window", window)
        check_count("DocumentParser", "max_failed_pages", max_failed_pages)
        check_page_selection(pages)
        if not isinstance(password, (str, type(None))):
            raise ConfigError(f"password is of type {type(password).__name__}", hint="give a str")
        check_options("DocumentParser", _SETTINGS, engine, engine_options)
        decode = decode or DecodeConfig()
        if threshold is not None:
            decode = dataclasses.replace(decode, threshold=threshold)
        self.decode = decode
        self.pages = pages
        self.window = window
        self.on_error: OnError = on_error
        self.limits = SourceLimits(dpi=dpi, max_pixels=max_pixels)
        self.options = SegmenterOptions(images=images)
        self.max_failed_pages = max_failed_pages
        self._engine = engine
        self._engine_options = engine_options
        self._segmenter = segmenter
        self._password = password

    @property
    def engine(self) -> Engine:
        """The engine, opened on first use."""
        return open_engine(self._engine, **self._engine_options)

    @property
    def segmenter(self) -> Segmenter:
        """The segmenter that pages go through; ``auto`` opens the engine to decide."""
        if not isinstance(self._segmenter, str):
            return self._segmenter
        if self._segmenter == "auto":
            return get_segmenter(choose_segmenter(self.engine.capabilities))
        return get_segmenter(self._segmenter)

    def open(
        self,
        source: SourceInput,
        *,
        password: str | None = None,
        pages: PageSelection = None,
        fs: Any = None,
        name: str | None = None,
    ) -> DocumentStream:
        """Open a document; its pages are read when they are asked for.

        Args:
            source: Path, URL, bytes, binary file object or PIL image.
            password: Overrides the parser's.
            pages: Overrides the parser's.
            fs: fsspec file system that ``source`` is a path on.
            name: What to call the document in results and errors.

        Returns:
            A context manager and an iterator of pages.

        Raises:
            DocumentError: If the document cannot be opened; see
                :func:`mdiff_adapters.sources.open_source`.
            ConfigError: If the page selection is wrong.
        """
        opened = open_source(
            source,
            password=self._password if password is None else password,
            pages=self.pages if pages is None else pages,
            limits=self.limits,
            fs=fs,
            name=name,
        )
        return DocumentStream(self, opened)

    def stream(self, source: SourceInput, **options: Any) -> Iterator[ParsedPage]:
        """Yield the pages of a document, each as soon as it is read.

        Page 1 is yielded before page 2 is rendered. Closing the iterator closes the document.

        Args:
            source: See :meth:`open`.
            **options: Keyword arguments of :meth:`open`.

        Yields:
            Pages in document order.

        Raises:
            MDiffError: As :meth:`open`, on the first step; what the engine as a whole raises; with
                ``on_error="raise"`` the first error of a page or region.
        """
        with self.open(source, **options) as document:
            yield from document

    def parse(self, source: SourceInput, **options: Any) -> ParsedDocument:
        """Parse a whole document.

        Args:
            source: See :meth:`open`.
            **options: Keyword arguments of :meth:`open`.

        Returns:
            The document.

        Raises:
            MDiffError: As :meth:`stream`.
        """
        with self.open(source, **options) as document:
            return ParsedDocument(
                source=document.source,
                pages=tuple(document),
                num_pages=document.num_pages,
                metadata=document.metadata,
            )

    def __repr__(self) -> str:
        # Without the password, and without engine options, which may hold a key.
        return f"{type(self).__name__}(engine={self._engine!r}, segmenter={self._segmenter!r})"


_SETTINGS = setting_names(DocumentParser)


class DocumentStream(ClosedOnExit, Iterator[ParsedPage]):
    """An open document: its facts at once, its pages as they are read. Use it in ``with``.

    Attributes:
        source: The document's path, URL or name.
        num_pages: Pages the file claims to have, also those not selected.
        metadata: Flat strings from the file.
        page_indices: The selected pages, 0-based.
    """

    def __init__(self, parser: DocumentParser, source: DocumentSource) -> None:
        self._opened = source
        self.source = source.source
        self.num_pages = source.num_pages
        self.metadata: Mapping[str, str] = source.metadata
        self.page_indices = source.page_indices
        self._is_closed = False
        self._pages = _read_pages(parser, source)

    def __next__(self) -> ParsedPage:
        if self._is_closed:
            raise DocumentError(
                "the document is closed", hint="read its pages inside of with", source=self.source
            )
        return next(self._pages)

    def close(self) -> None:
        """Close the document; calling it twice is fine."""
        self._is_closed = True
        self._pages.close()
        self._opened.close()


def _read_pages(
    parser: DocumentParser, source: DocumentSource
) -> Generator[ParsedPage, None, None]:
    """Yield the selected pages in order; at most one window of page images is alive."""
    indices = iter(source.page_indices)
    # The first page alone, so that it arrives before the second one is rendered.
    size = 1
    failed_in_a_row = 0
    while chunk := list(itertools.islice(indices, size)):
        size = parser.window
        images: list[PageImage] = []
        failed: dict[int, ParsedPage] = {}
        given_up_at: int | None = None
        to_raise: DocumentError | None = None
        for index in chunk:
            try:
                images.append(source.load(index))
                failed_in_a_row = 0
            except DocumentError as error:
                if parser.on_error == "raise":
                    # After the good pages before it, which are read first.
                    to_raise = error
                    break
                failed_in_a_row += 1
                gives_up = failed_in_a_row >= parser.max_failed_pages
                failed[index] = _failed_page(source, index, error, gives_up=gives_up)
                if gives_up:
                    given_up_at = index
                    indices = iter(())
                    break
        read = _read_window(parser, images) if images else {}
        # The pixels are not needed while the caller looks at the pages.
        images.clear()
        for index in chunk:
            page = read.pop(index, None) or failed.pop(index, None)
            if page is None:
                continue  # not tried: the document was given up
            if parser.on_error == "raise":
                _raise_first_error(page, source.source)
            # The pages behind it are lost as well, which no caller may miss.
            if page.status != "failed" or parser.on_error != "skip" or index == given_up_at:
                yield page
        if to_raise is not None:
            raise to_raise


def _read_window(parser: DocumentParser, images: list[PageImage]) -> dict[int, ParsedPage]:
    pages = parser.segmenter.read(images, parser.engine, parser.decode, parser.options)
    found: dict[int, ParsedPage] = {}
    for image, page in zip(images, pages, strict=True):
        if image.warnings:
            page = dataclasses.replace(page, warnings=(*image.warnings, *page.warnings))
        found[image.index] = page
    return found


def _failed_page(
    source: DocumentSource, index: int, error: DocumentError, *, gives_up: bool
) -> ParsedPage:
    error.page = index if error.page is None else error.page
    error.source = error.source or source.source
    message = str(error)
    if gives_up:
        message += "; too many pages failed one after the other"
        if left := len(source.page_indices) - source.page_indices.index(index) - 1:
            message += f", the last {left} were not tried"
    return ParsedPage(
        index=index,
        label=source.label(index),
        size_px=(0, 0),
        size_pt=(0.0, 0.0),
        status="failed",
        error=ErrorRecord(kind=type(error).__name__, message=message, stage="render", page=index),
    )


def _raise_first_error(page: ParsedPage, source: str) -> None:
    """Raise what a page, its layout or a region recorded, as the typed error it was."""
    if not page.errors:
        return
    record = page.errors[0]
    known = getattr(error_types, record.kind, None)
    kind = known if isinstance(known, type) and issubclass(known, MDiffError) else PageError
    error = kind("", source=source, page=page.index, region=record.region)
    # The record's text says where already; the attributes say it again when the error is shown.
    error.message = record.message.removeprefix(str(error))
    raise error
