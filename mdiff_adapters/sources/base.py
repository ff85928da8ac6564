"""What all sources share: numbering, page ranges, limits, the context manager."""

from __future__ import annotations

import operator
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mdiff_adapters.errors import ConfigError
from mdiff_adapters.segmenters.base import PageImage
from mdiff_core.closing import ClosedOnExit

__all__ = [
    "DocumentSource",
    "PageSelection",
    "SourceLimits",
    "check_page_selection",
    "parse_page_range",
]

PageSelection = str | Sequence[int] | None
"""``"1-3,7"`` (1-based) or 0-based integers; None takes all pages."""

_RANGE = re.compile(r"([0-9]+)(?:\s*(-)\s*([0-9]*))?")
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLimits:
    """Bounds within which pages are rendered.

    Attributes:
        dpi: Resolution at which PDF pages are rendered, in [20, 1200].
        max_pixels: Most pixels of a page image. PDF pages are rendered at a lower resolution to
            fit, larger images are scaled down after decoding.
        max_side_px: Most pixels of one side; image libraries stop at 2**15.
        min_dpi: A PDF page that would need a resolution below this is refused: nothing could be
            read on it.
    """

    dpi: float = 200.0
    max_pixels: int = 24_000_000
    max_side_px: int = 30_000
    min_dpi: float = 20.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("dpi", 20, 1200),
            ("max_pixels", 1_000, 1_000_000_000),
            ("max_side_px", 100, 32_000),
            ("min_dpi", 1, 1200),
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and low <= value <= high):
                raise ConfigError(f"{name} = {value!r} is out of range", hint=f"[{low}, {high}]")


def check_page_selection(pages: PageSelection) -> None:
    """Refuse what selects pages of no document, before one is opened.

    Args:
        pages: See :func:`parse_page_range`; an iterator is refused, it would serve one document
            only.

    Raises:
        ConfigError: If it is neither a string of pages and ranges nor 0-based integers, or selects
            nothing.
    """
    if pages is None:
        return
    if isinstance(pages, str):
        chosen: Sequence[object] = _ranges(pages, None)
    elif isinstance(pages, Iterator):
        raise ConfigError(
            f"pages = {pages!r} can be read once only", hint="give a list of 0-based integers"
        )
    else:
        chosen = _indices(pages, None)
    if not chosen:
        raise _nothing_selected(None)


def parse_page_range(pages: PageSelection, num_pages: int, source: str | None = None) -> list[int]:
    """Return the 0-based page indices that a selection names, in document order, each once.

    Args:
        pages: A string of 1-based pages and ranges such as ``"1-3,7"`` or ``"5-"`` (to the end), or
            0-based integers; None for all pages.
        num_pages: Pages of the document.
        source: Name of the document for errors.

    Returns:
        Sorted indices.

    Raises:
        ConfigError: If the syntax is wrong, a page is out of range, or nothing is selected.
    """
    if pages is None:
        return list(range(num_pages))
    if isinstance(pages, str):
        chosen = _parse_text(pages, num_pages, source)
    else:
        chosen = _check_indices(pages, num_pages, source)
    if not chosen:
        raise _nothing_selected(source)
    return sorted(chosen)


def _parse_text(text: str, num_pages: int, source: str | None) -> set[int]:
    chosen: set[int] = set()
    for low, last in _ranges(text, source):
        high = num_pages if last is None else last
        for number in (low, high):
            if not 1 <= number <= num_pages:
                raise _out_of_range(f"page {number}", num_pages, f"1 to {num_pages}", source)
        chosen.update(range(low - 1, high))
    return chosen


def _ranges(text: str, source: str | None) -> list[tuple[int, int | None]]:
    """Return first and last page of each range, counted from 1; None is the end."""
    ranges: list[tuple[int, int | None]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        # "-1" might mean the first page as well as the last one. No document has a page of ten
        # digits, and Python takes none of thousands.
        if match is None or max(map(len, match.groups(""))) > _MAX_DIGITS:
            raise ConfigError(
                f"{part[:40]!r} is not a page or a range of pages",
                hint='pages count from 1: "1-3,7" or "5-"',
                source=source,
            )
        low = int(match[1])
        high = (int(match[3]) if match[3] else None) if match[2] else low
        if high is not None and low > high:
            raise ConfigError(f"page range {part!r} runs backwards", source=source)
        if low < 1:
            raise ConfigError(
                f"page {low} is out of range", hint="pages count from 1", source=source
            )
        ranges.append((low, high))
    return ranges


def _check_indices(pages: Iterable[int], num_pages: int, source: str | None) -> set[int]:
    chosen = set(_indices(pages, source))
    for index in sorted(chosen):
        if index >= num_pages:
            raise _out_of_range(f"page index {index}", num_pages, f"0 to {num_pages - 1}", source)
    return chosen


def _indices(pages: Iterable[int], source: str | None) -> list[int]:
    hint = 'give 0-based integers in a list, or a string such as "1-3,7"'
    # Bytes and mappings can be iterated, but what they give was not meant as page numbers.
    try:
        values = None if isinstance(pages, (bytes, bytearray, memoryview, Mapping)) else list(pages)
    except TypeError:
        values = None
    if values is None:
        raise ConfigError(f"pages = {pages!r} selects no pages", hint=hint, source=source)
    indices: list[int] = []
    for page in values:
        try:
            if isinstance(page, bool):
                raise TypeError
            index = operator.index(page)
        except TypeError:
            raise ConfigError(
                f"page {page!r} is not an integer", hint=hint, source=source
            ) from None
        if index < 0:
            raise ConfigError(
                f"page index {index} is out of range", hint="indices count from 0", source=source
            )
        indices.append(index)
    return indices


def _nothing_selected(source: str | None) -> ConfigError:
    return ConfigError("no page is selected", hint='give pages such as "1-3,7"', source=source)


def _out_of_range(what: str, num_pages: int, allowed: str, source: str | None) -> ConfigError:
    count = "1 page" if num_pages == 1 else f"{num_pages} pages"
    return ConfigError(
        f"{what} is out of range: the document has {count}", hint=f"allowed: {allowed}",
        source=source,
    )  # fmt: skip


class DocumentSource(ClosedOnExit):
    """An open document whose pages can be rendered one at a time.

    Attributes:
        source: The document's path, URL or name.
        stem: File stem, safe as a file name.
        num_pages: Pages the file claims to have.
        metadata: Flat strings from the file: title, author, subject, keywords, creator, producer,
            creationdate, moddate (ISO 8601); keys absent where the file has none.
        page_indices: The selected pages, 0-based, in document order.
    """

    def __init__(
        self,
        *,
        source: str,
        stem: str,
        num_pages: int,
        metadata: Mapping[str, str],
        pages: PageSelection,
    ) -> None:
        self.source = source
        self.stem = stem
        self.num_pages = num_pages
        self.metadata = dict(metadata)
        self.page_indices = tuple(parse_page_range(pages, num_pages, source))

    def label(self, index: int) -> str:
        """Return the printed label of a page, its 1-based number where there is none."""
        return str(index + 1)

    @abstractmethod
    def load(self, index: int) -> PageImage:
        """Render one page.

        Args:
            index: 0-based page index.

        Returns:
            The page image, which the source does not keep.

        Raises:
            InputTooLargeError: If the page does not fit the pixel budget.
            PageError: If the page cannot be loaded or rendered.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the file. Calling it twice is fine."""

    def __repr__(self) -> str:
        # Never the password, whatever a source keeps.
        return f"{type(self).__name__}({self.source!r}, num_pages={self.num_pages})"
