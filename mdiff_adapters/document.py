"""The document model: pages, regions, boxes. Knows no engine, no file format and no framework.

Coordinates are fractions of the page in the upright frame that is rendered: x to the right, y down,
origin at the top left corner. ``ParsedPage.size_pt`` turns them into PDF points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mdiff_adapters.tables import Table

if TYPE_CHECKING:
    from os import PathLike

RegionType = Literal[
    "text", "title", "header", "footer", "page_number", "page_footnote", "aside_text", "image",
    "image_caption", "image_footnote", "table", "table_caption", "table_footnote", "equation",
    "equation_block", "list", "code", "code_caption", "algorithm", "ref_text", "phonetic",
    "unknown", "other",
]  # fmt: skip
"""Closed set of region types; ``other`` keeps the model's own word in ``Region.raw_label``."""

FinishReason = Literal["stop", "length", "loop", "empty", "error", "timeout"]
PageStatus = Literal["ok", "blank", "partial", "layout_failed", "failed"]
Severity = Literal["error", "warning", "info"]
CUT_SHORT: frozenset[FinishReason] = frozenset({"length", "loop", "timeout"})
"""How an answer ends before its own end."""


@dataclass(frozen=True, slots=True)
class BBox:
    """A box in fractions of the page: ``0 <= x0 <= x1 <= 1`` and the same for y.

    Raises:
        ValueError: If a coordinate is not finite, out of [0, 1], or the corners are reversed.
    """

    x0: float
    y0: float
    x1: float
    y1: float

    def __post_init__(self) -> None:
        values = (self.x0, self.y0, self.x1, self.y1)
        if not all(math.isfinite(v) and 0.0 <= v <= 1.0 for v in values):
            raise ValueError(f"box {values} is not inside the page (fractions in [0, 1])")
        if self.x0 > self.x1 or self.y0 > self.y1:
            raise ValueError(f"box {values} has reversed corners")

    @classmethod
    def from_px(cls, box: tuple[float, float, float, float], size_px: tuple[int, int]) -> BBox:
        """Return the box of pixel corners ``(x0, y0, x1, y1)``, clamped to the page."""
        width, height = size_px
        x0, x1 = sorted(min(max(v / width, 0.0), 1.0) for v in (box[0], box[2]))
        y0, y1 = sorted(min(max(v / height, 0.0), 1.0) for v in (box[1], box[3]))
        return cls(x0, y0, x1, y1)

    @property
    def width(self) -> float:
        """Width as a fraction of the page."""
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        """Height as a fraction of the page."""
        return self.y1 - self.y0

    @property
    def area(self) -> float:
        """Area as a fraction of the page."""
        return self.width * self.height

    def scaled(self, size: tuple[float, float]) -> tuple[float, float, float, float]:
        """Return ``(x0, y0, x1, y1)`` in the units of ``size`` (px or pt), origin top left."""
        return (self.x0 * size[0], self.y0 * size[1], self.x1 * size[0], self.y1 * size[1])

    def pixels(self, size_px: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return whole-pixel corners that cover the box, inside the image, at least 1 px a side."""
        width, height = size_px
        # Fractions of whole pixels come back with float noise, which must not add a pixel.
        x0, y0, x1, y1 = (round(v, 6) for v in self.scaled(size_px))
        left = min(math.floor(x0), width - 1)
        top = min(math.floor(y0), height - 1)
        return (left, top, max(min(math.ceil(x1), width), left + 1),
                max(min(math.ceil(y1), height), top + 1))  # fmt: skip

    def intersection(self, other: BBox) -> float:
        """Return the area shared with ``other``."""
        w = min(self.x1, other.x1) - max(self.x0, other.x0)
        h = min(self.y1, other.y1) - max(self.y0, other.y0)
        return w * h if w > 0 and h > 0 else 0.0

    def covered_by(self, other: BBox) -> float:
        """Return the share of this box that lies inside ``other``, in [0, 1]."""
        return self.intersection(other) / self.area if self.area > 0 else 0.0

    def union(self, other: BBox) -> BBox:
        """Return the smallest box that holds both."""
        return BBox(min(self.x0, other.x0), min(self.y0, other.y0),
                    max(self.x1, other.x1), max(self.y1, other.y1))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An error kept as data: what failed where, so that the rest can go on.

    Attributes:
        kind: Name of the error class.
        message: Its text, which says where and what to do.
        stage: ``render``, ``layout``, ``segment``, ``read`` or ``parse``.
        page: 0-based page index, or None.
        region: Region id, or None.
        severity: ``error`` (it failed), ``warning`` (something is missing or cut short) or ``info``
            (something was repaired or scaled; nothing is missing).
    """

    kind: str
    message: str
    stage: str = "read"
    page: int | None = None
    region: str | None = None
    severity: Severity = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One text line of a region: its text, box and confidence in [0, 1] (None where unknown)."""

    text: str
    bbox: BBox
    confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A typed box on a page with what was read in it.

    Attributes:
        id: Unique in the document, ``p<page index>r<order>``.
        order: Position in the model's reading order, from 0.
        type: One of :data:`RegionType`.
        bbox: Box on the upright page.
        raw_label: The model's own word for the type where ``type`` is ``other``.
        angle: Degrees (0, 90, 180, 270) that a counter-clockwise rotation needs to make the crop
            upright (PIL ``rotate(angle, expand=True)``).
        text: Clean plain text; for formulas and tables empty.
        table: The table, for type ``table``.
        latex: Bare LaTeX without delimiters, for ``equation``.
        lines: Text lines with their boxes where the segmenter knows them.
        confidence: Mean token confidence in [0, 1]; None where nothing was read.
        finish_reason: How the answer ended; None where nothing was asked.
        parent: Id of the figure or table this caption or footnote belongs to, of the list or block
            of equations it is an item of, or of the table that tells its content.
        raw: The engine's answer before any cleaning; empty where nothing was asked.
        error: What failed, if something did; the rest of the page is kept.
        flags: Remarks for quality checks, for example ``truncated`` or ``special_tokens=2``.
        image: PNG bytes of the crop where images were asked for.
    """

    id: str
    order: int
    type: RegionType
    bbox: BBox
    raw_label: str | None = None
    angle: int = 0
    text: str = ""
    table: Table | None = None
    latex: str | None = None
    lines: tuple[TextLine, ...] = ()
    confidence: float | None = None
    finish_reason: FinishReason | None = None
    parent: str | None = None
    raw: str = ""
    error: ErrorRecord | None = None
    flags: tuple[str, ...] = ()
    image: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPage:
    """One page of a document, in the document's own numbering.

    Attributes:
        index: 0-based index in the document, also when only some pages were asked for.
        label: Page label as printed (``iv``, ``12``); the 1-based number where there is none.
        size_px: Width and height of the rendered page image, 0 where it could not be rendered.
        size_pt: Width and height in PDF points (1/72 inch) of the upright page.
        rotation: ``/Rotate`` of the PDF page or the EXIF turn already applied, in degrees.
        regions: In reading order.
        status: ``ok``; ``blank`` (nothing on it); ``partial`` (some region failed or was cut
            short); ``layout_failed`` (read as one text); ``failed`` (nothing could be read).
        error: Why the page failed; None unless ``failed``.
        warnings: What was refused or repaired, with the raw text.
        num_tokens: Tokens confirmed for this page.
        num_forwards: Network forwards this page's requests took part in, summed over requests.
    """

    index: int
    label: str
    size_px: tuple[int, int]
    size_pt: tuple[float, float]
    rotation: int = 0
    regions: tuple[Region, ...] = ()
    status: PageStatus = "ok"
    error: ErrorRecord | None = None
    warnings: tuple[ErrorRecord, ...] = ()
    num_tokens: int = 0
    num_forwards: int = 0

    @property
    def problems(self) -> tuple[ErrorRecord, ...]:
        """What failed, is missing or was cut short on the page; nothing that was only repaired."""
        found = [] if self.error is None else [self.error]
        found += [record for record in self.warnings if record.severity != "info"]
        for region in self.regions:
            if region.error is not None:
                # A page of which nothing could be read says it once.
                found += [] if self.error is not None else [region.error]
            elif region.finish_reason in CUT_SHORT:
                found.append(
                    ErrorRecord(
                        kind="RegionError",
                        message=f"region {region.id}: the answer is cut short "
                        f"({region.finish_reason})",
                        page=self.index,
                        region=region.id,
                        severity="warning",
                    )
                )
        return tuple(found)

    @property
    def errors(self) -> tuple[ErrorRecord, ...]:
        """The problems that are errors: of the page, its layout or its regions."""
        return tuple(record for record in self.problems if record.severity == "error")

    def to_markdown(self, **options: Any) -> str:
        """Return the page as markdown; options as in :func:`mdiff_adapters.export.to_markdown`."""
        from mdiff_adapters.export import page_to_markdown

        return page_to_markdown(self, **options)

    def to_text(self, **options: Any) -> str:
        """Return the page as plain text."""
        from mdiff_adapters.export import page_to_text

        return page_to_text(self, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDocument:
    """A parsed document.

    Attributes:
        source: What the caller gave: path, URL or a name for bytes.
        pages: The pages that were asked for, in order.
        num_pages: Pages in the document, also those that were not asked for.
        metadata: Flat strings from the file itself: title, author, producer, creator,
            creationdate, moddate (ISO 8601); keys absent where the file has none.
    """

    source: str
    pages: tuple[ParsedPage, ...]
    num_pages: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def regions(self) -> Iterator[Region]:
        """All regions in reading order."""
        return (region for page in self.pages for region in page.regions)

    @property
    def errors(self) -> tuple[ErrorRecord, ...]:
        """All errors of pages, layouts and regions, page by page."""
        return tuple(record for page in self.pages for record in page.errors)

    def to_markdown(self, **options: Any) -> str:
        """Return markdown; options as in :func:`mdiff_adapters.export.to_markdown`."""
        from mdiff_adapters.export import to_markdown

        return to_markdown(self, **options)

    def to_text(self, **options: Any) -> str:
        """Return plain text, pages joined by a form feed."""
        from mdiff_adapters.export import to_text

        return to_text(self, **options)

    def to_html(self, **options: Any) -> str:
        """Return a standalone HTML page."""
        from mdiff_adapters.export import to_html

        return to_html(self, **options)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return lossless JSON (schema in ``docs/document.schema.json``)."""
        from mdiff_adapters.export import to_json

        return to_json(self, indent=indent)

    @classmethod
    def from_json(cls, text: str | PathLike[str]) -> ParsedDocument:
        """Read what :meth:`to_json` wrote, from text or a file path."""
        from mdiff_adapters.export import from_json

        return from_json(text)

    def to_docling(self) -> Any:
        """Return a ``docling_core.types.doc.DoclingDocument``; needs the ``docling-core`` extra."""
        from mdiff_adapters.export import to_docling

        return to_docling(self)
