"""PDF pages through PDFium.

PDFium is not thread-safe, so one lock of the process guards every call into it. The lock is held
for one call or one page, never while a caller looks at a page.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, BinaryIO

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_raw

from mdiff_adapters.document import ErrorRecord
from mdiff_adapters.errors import (
    CorruptDocumentError,
    DocumentError,
    EmptyDocumentError,
    InputTooLargeError,
    PageError,
    PasswordRequiredError,
    WrongPasswordError,
)
from mdiff_adapters.forks import ForkSafeLock
from mdiff_adapters.segmenters.base import PageImage
from mdiff_adapters.sources.base import DocumentSource, PageSelection, SourceLimits

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["PDFIUM_LOCK", "PdfSource", "iso_date"]

PDFIUM_LOCK = ForkSafeLock()
"""Held around every call into PDFium; reentrant, since closing may happen inside another call."""

_POINTS_PER_INCH = 72.0
_DATE = re.compile(
    r"(?:D:)?\s*(\d{4})(\d{2})?(\d{2})?(\d{2})?(\d{2})?(\d{2})?"
    r"\s*(?:(Z)|([+-])(\d{2})'?(\d{2})?)?"
)


class PdfSource(DocumentSource):
    """An open PDF.

    Args:
        file: Seekable binary file, owned and closed by the source.
        source: Name of the document.
        stem: File stem.
        password: Password for an encrypted document.
        pages: Selected pages.
        limits: Resolution and pixel budget.

    Raises:
        EmptyDocumentError: If it has no pages.
        PasswordRequiredError: If it is encrypted and no password was given.
        WrongPasswordError: If the password does not open it.
        CorruptDocumentError: If PDFium cannot open it.
        ConfigError: If the page selection is wrong.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        source: str,
        stem: str,
        password: str | None,
        pages: PageSelection,
        limits: SourceLimits,
    ) -> None:
        self._limits = limits
        self._file = file
        with PDFIUM_LOCK:
            self._pdf: Any = _open_pdf(file, password, source)
            try:
                num_pages = len(self._pdf)
                if num_pages < 1:
                    raise EmptyDocumentError("the PDF has no pages", source=source)
                with contextlib.suppress(pdfium.PdfiumError):
                    # Without it, filled-in form fields are left out of the page image.
                    self._pdf.init_forms()
                metadata = _read_metadata(self._pdf)
                super().__init__(
                    source=source, stem=stem, num_pages=num_pages, metadata=metadata, pages=pages
                )
            except BaseException:
                self._pdf.close()
                raise

    def label(self, index: int) -> str:
        """Return the page label of the PDF, the 1-based number where it has none."""
        with PDFIUM_LOCK, contextlib.suppress(pdfium.PdfiumError, UnicodeDecodeError):
            label = str(self._open_document().get_page_label(index)).strip()
            if label:
                return label
        return super().label(index)

    def load(self, index: int) -> PageImage:
        """Render one page; see :meth:`DocumentSource.load`."""
        label = self.label(index)
        with PDFIUM_LOCK:
            pdf = self._open_document()
            try:
                page = pdf[index]
            except pdfium.PdfiumError as error:
                raise PageError(
                    "the page cannot be loaded: its entry in the PDF is missing or damaged",
                    hint="the other pages are kept; save the PDF again to repair it",
                    source=self.source,
                    page=index,
                ) from error
            try:
                size_pt = self._size_pt(page, index)
                scale = self._scale(size_pt, index)
                image = self._render(page, scale, index)
                rotation = int(page.get_rotation())
            finally:
                page.close()
        return PageImage(
            index=index,
            label=label,
            image=image,
            size_pt=size_pt,
            rotation=rotation,
            source=self.source,
            stem=self.stem,
            warnings=tuple(self._resolution_warning(scale, index)),
        )

    def close(self) -> None:
        """Close the document and the file under it."""
        with PDFIUM_LOCK:
            if self._pdf is not None:
                self._pdf.close()
                self._pdf = None
        self._file.close()

    def _open_document(self) -> Any:
        if self._pdf is None:
            raise DocumentError("the document is closed", source=self.source)
        return self._pdf

    def _size_pt(self, page: Any, index: int) -> tuple[float, float]:
        # PDFium's frame: CropBox clipped to MediaBox, turned by /Rotate.
        width, height = (float(side) for side in page.get_size())
        if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
            raise PageError(
                f"the page has no area ({width:g} x {height:g} pt)",
                hint="its CropBox lies outside its MediaBox, or one of them is empty",
                source=self.source,
                page=index,
            )
        return width, height

    def _scale(self, size_pt: tuple[float, float], index: int) -> float:
        """Return pixels per point, lowered so that the page fits the budget before it is drawn."""
        width, height = size_pt
        limits = self._limits
        wanted = limits.dpi / _POINTS_PER_INCH
        # The bitmap's sides are rounded up, so the budget is solved for one pixel more a side:
        # (width * scale + 1) * (height * scale + 1) = max_pixels.
        area, half = width * height, (width + height) / 2
        fitting = (math.sqrt(half * half + area * (limits.max_pixels - 1)) - half) / area
        scale = min(wanted, fitting, (limits.max_side_px - 1) / max(width, height))
        dpi = scale * _POINTS_PER_INCH
        if dpi < min(limits.min_dpi, limits.dpi):
            raise InputTooLargeError(
                f"the page measures {width:.4g} x {height:.4g} pt: within {limits.max_pixels} "
                f"pixels it could only be drawn at {dpi:.2g} dpi",
                hint="raise max_pixels, or check the page size in the PDF",
                source=self.source,
                page=index,
            )
        return scale

    def _render(self, page: Any, scale: float, index: int) -> Image.Image:
        _remove_links(page)
        try:
            bitmap = page.render(scale=scale, rev_byteorder=True)
        except (pdfium.PdfiumError, ValueError, MemoryError, RuntimeError) as error:
            raise PageError(
                f"the page cannot be drawn: {error}", source=self.source, page=index
            ) from error
        try:
            image = bitmap.to_pil()
            # A conversion or a copy: the image must outlive PDFium's buffer.
            rgb: Image.Image = image.copy() if image.mode == "RGB" else image.convert("RGB")
            return rgb
        finally:
            bitmap.close()

    def _resolution_warning(self, scale: float, index: int) -> Iterator[ErrorRecord]:
        dpi = scale * _POINTS_PER_INCH
        if dpi < self._limits.dpi * 0.99:
            yield ErrorRecord(
                kind=InputTooLargeError.__name__,
                message=f"drawn at {dpi:.0f} dpi in place of {self._limits.dpi:g} to stay within "
                f"{self._limits.max_pixels} pixels",
                stage="render",
                page=index,
                severity="info",
            )


def _open_pdf(file: BinaryIO, password: str | None, source: str) -> Any:
    # PDFium sets no error where it finds no page, and the one of an earlier document stays. A file
    # that does not exist sets one that our own files never do.
    pdfium_raw.FPDF_LoadDocument(b"", None)
    try:
        try:
            return pdfium.PdfDocument(file)
        except pdfium.PdfiumError:
            if password is None:
                raise
            # After a try without: where none is needed to read, PDFium refuses a wrong one.
            return pdfium.PdfDocument(file, password=password)
    except pdfium.PdfiumError as error:
        raise _open_error(error, password is not None, source) from error
    except (ValueError, OSError) as error:  # a password with a zero byte, a failing file system
        raise CorruptDocumentError(f"the PDF cannot be read: {error}", source=source) from error


def _open_error(error: pdfium.PdfiumError, has_password: bool, source: str) -> DocumentError:
    code = getattr(error, "err_code", None)
    if code is None:  # pypdfium2 4 has only the message
        code = pdfium_raw.FPDF_GetLastError()
    if code == pdfium_raw.FPDF_ERR_PASSWORD:
        if has_password:
            return WrongPasswordError(
                "the password does not open this PDF", hint="check it, case counts", source=source
            )
        return PasswordRequiredError(
            "the PDF is encrypted", hint="give its password with password=", source=source
        )
    if code in (pdfium_raw.FPDF_ERR_SUCCESS, pdfium_raw.FPDF_ERR_FILE):
        return EmptyDocumentError(
            "the PDF has no pages that can be read",
            hint="its page tree is empty or damaged; save it again from the program that made it",
            source=source,
        )
    if code == pdfium_raw.FPDF_ERR_SECURITY:
        return CorruptDocumentError(
            "the PDF is encrypted in a way that PDFium does not know",
            hint="save it without encryption",
            source=source,
        )
    return CorruptDocumentError(
        "the PDF is damaged: it begins like one, but its structure cannot be read",
        hint="check that the download is complete, or save it again",
        source=source,
    )


def _remove_links(page: Any) -> None:
    """Take links off a loaded page: viewers draw a frame around them, paper does not.

    All other annotations (form fields, stamps, notes) are content. The file is not touched.
    """
    for number in reversed(range(pdfium_raw.FPDFPage_GetAnnotCount(page.raw))):
        annotation = pdfium_raw.FPDFPage_GetAnnot(page.raw, number)
        if not annotation:
            continue
        kind = pdfium_raw.FPDFAnnot_GetSubtype(annotation)
        pdfium_raw.FPDFPage_CloseAnnot(annotation)
        if kind == pdfium_raw.FPDF_ANNOT_LINK:
            pdfium_raw.FPDFPage_RemoveAnnot(page.raw, number)


def _read_metadata(pdf: Any) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for key in ("Title", "Author", "Subject", "Keywords", "Creator", "Producer"):
        text = _metadata_text(pdf, key)
        if text:
            metadata[key.lower()] = text
    for key in ("CreationDate", "ModDate"):
        date = iso_date(_metadata_text(pdf, key))
        if date:
            metadata[key.lower()] = date
    return metadata


def _metadata_text(pdf: Any, key: str) -> str:
    try:
        text = str(pdf.get_metadata_value(key))
    except (pdfium.PdfiumError, UnicodeDecodeError):
        return ""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8").strip()


def iso_date(text: str) -> str | None:
    """Return a PDF date (``D:20240131120000+01'00'``) in ISO 8601, None where it is no date."""
    match = _DATE.match(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (
        int(value) if value else default
        for value, default in zip(match.groups()[:6], (0, 1, 1, 0, 0, 0), strict=True)
    )
    zone: timezone | None = None
    if match[7]:
        zone = timezone.utc
    try:
        if match[8]:
            offset = timedelta(hours=int(match[9]), minutes=int(match[10] or 0))
            zone = timezone(offset if match[8] == "+" else -offset)
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone).isoformat()
    except ValueError:
        return None
