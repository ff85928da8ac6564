"""Image files and Pillow images as pages, whatever their mode."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from PIL import Image, UnidentifiedImageError

from mdiff_adapters.document import ErrorRecord
from mdiff_adapters.errors import (
    CorruptDocumentError,
    DocumentError,
    InputTooLargeError,
    MDiffError,
    PageError,
)
from mdiff_adapters.segmenters.base import PageImage
from mdiff_adapters.sources.base import DocumentSource, PageSelection, SourceLimits
from mdiff_adapters.sources.sniffing import HEAD_BYTES, refusal
from mdiff_core.imaging import exif_orientation, to_rgb, turn_upright

__all__ = ["ImageSource", "PillowImageSource"]

T = TypeVar("T")

# Pillow can read more, but EPS and WMF start other programs, and the rest are no documents.
_FORMATS = (
    "PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "JPEG2000", "PPM", "MPO", "DIB", "AVIF", "ICO",
    "PCX", "DCX", "PSD", "QOI", "SGI", "SUN",
)  # fmt: skip
_PAGED_FORMATS = ("TIFF", "GIF", "DCX")
"""Formats whose frames are pages; the frames of others are animation, previews or sizes."""
_MAX_FRAMES = 10_000
_DEFAULT_DPI = 200.0
_POINTS_PER_INCH = 72.0
_MAX_DECODED_PIXELS = 89_478_485
"""Pillow's own limit, used where an application has switched Pillow's off."""

_CLOCKWISE_DEGREES = {3: 180, 4: 180, 5: 90, 6: 90, 7: 270, 8: 270}
"""By EXIF orientation; the odd ones out also mirror."""
_SIDEWAYS = (5, 6, 7, 8)


class ImageSource(DocumentSource):
    """An open image file; the frames of TIFF, GIF and DCX are pages.

    Args:
        file: Seekable binary file, owned and closed by the source.
        source: Name of the document.
        stem: File stem.
        pages: Selected pages.
        limits: Pixel budget.

    Raises:
        CorruptDocumentError: If Pillow cannot open it.
        InputTooLargeError: If the image is larger than Pillow's limit.
        ConfigError: If the page selection is wrong.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        source: str,
        stem: str,
        pages: PageSelection,
        limits: SourceLimits,
    ) -> None:
        self._file = file
        self._limits = limits
        self._lock = threading.Lock()
        self._closed = False
        image = _guard(lambda: _open(file, source), source, None)
        paged = image.format in _PAGED_FORMATS
        num_pages = _guard(lambda: _count_frames(image), source, None) if paged else 1
        # Kept only where frames are found one from the other: a decoded image keeps its pixels.
        self._frames = image if num_pages > 1 else None
        super().__init__(source=source, stem=stem, num_pages=num_pages, metadata={}, pages=pages)

    def load(self, index: int) -> PageImage:
        """Decode one page; see :meth:`DocumentSource.load`."""
        with self._lock:
            if self._closed:
                raise DocumentError("the document is closed", source=self.source)
            return _guard(lambda: self._load(index), self.source, index)

    def _load(self, index: int) -> PageImage:
        if self._frames is None:
            image = _open(self._file, self.source)
        else:
            image = self._frames
            image.seek(index)
            _check_pixels(image, self.source, index)
        size = image.size
        if size[0] * size[1] > self._limits.max_pixels:
            # JPEG decodes at a half, a quarter or an eighth, never below the budget.
            shrink = math.sqrt(self._limits.max_pixels / (size[0] * size[1]))
            image.draft(None, (round(size[0] * shrink), round(size[1] * shrink)))
        return _page_image(image, size, index, self.source, self.stem, self._limits)

    def close(self) -> None:
        """Close the image and the file under it."""
        with self._lock:
            self._closed = True
            self._frames = None
        self._file.close()


class PillowImageSource(DocumentSource):
    """A Pillow image that the caller owns: one page, the frame it shows.

    Args:
        image: The image; it is neither changed nor closed.
        source: Name of the document.
        stem: File stem.
        pages: Selected pages.
        limits: Pixel budget.
    """

    def __init__(
        self,
        image: Image.Image,
        *,
        source: str,
        stem: str,
        pages: PageSelection,
        limits: SourceLimits,
    ) -> None:
        self._image = image
        self._limits = limits
        super().__init__(source=source, stem=stem, num_pages=1, metadata={}, pages=pages)

    def load(self, index: int) -> PageImage:
        """Return the image as a page; see :meth:`DocumentSource.load`."""
        return _guard(
            lambda: _page_image(
                self._image, self._image.size, index, self.source, self.stem, self._limits
            ),
            self.source,
            index,
        )

    def close(self) -> None:
        """Do nothing: the image belongs to the caller."""


def _guard(action: Callable[[], T], source: str, page: int | None) -> T:
    """Run a call into Pillow and turn what it raises on damaged bytes into typed errors."""
    try:
        return action()
    except MDiffError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputTooLargeError(
            f"the image is too large to decode: {error}", hint="scale it down", source=source,
            page=page,
        ) from error  # fmt: skip
    except Exception as error:  # Pillow's decoders raise anything on damaged bytes
        reason = str(error) or type(error).__name__
        if page is None:
            raise CorruptDocumentError(
                f"the image is damaged: {reason}", hint="open it elsewhere and save it again",
                source=source,
            ) from error  # fmt: skip
        raise PageError(
            f"the image cannot be decoded: {reason}", hint="the other pages are kept",
            source=source, page=page,
        ) from error  # fmt: skip


def _open(file: BinaryIO, source: str) -> Image.Image:
    Image.init()
    file.seek(0)
    try:
        image = Image.open(file, formats=[name for name in _FORMATS if name in Image.OPEN])
    except UnidentifiedImageError as error:
        file.seek(0)
        head = file.read(HEAD_BYTES)
        if b"\0" not in head:  # text that happens to begin like an image
            raise refusal(head, source) from error
        raise CorruptDocumentError(
            "the image is damaged: it begins like one, but cannot be decoded",
            hint="check that the download is complete",
            source=source,
        ) from error
    _check_pixels(image, source, None)
    return image


def _count_frames(image: Image.Image) -> int:
    # Pillow ends at a loop in the chain of frames; the cap is for chains that are merely endless.
    return max(1, min(int(getattr(image, "n_frames", 1)), _MAX_FRAMES))


def _check_pixels(image: Image.Image, source: str, page: int | None) -> None:
    """Refuse an image before it is decoded; Pillow itself only warns up to twice its limit."""
    pixels = image.width * image.height
    limit = Image.MAX_IMAGE_PIXELS or _MAX_DECODED_PIXELS
    if pixels > limit:
        raise InputTooLargeError(
            f"the image has {image.width} x {image.height} px, more than the {limit} px that are "
            "decoded",
            hint="scale it down",
            source=source,
            page=page,
        )


def _page_image(
    image: Image.Image,
    size: tuple[int, int],
    index: int,
    source: str,
    stem: str,
    limits: SourceLimits,
) -> PageImage:
    """Return the page of a decoded frame; ``size`` is the file's own, before any draft."""
    orientation = exif_orientation(image)
    dpi_x, dpi_y = _dpi(image)
    image.load()
    rgb = to_rgb(image)
    if orientation in _SIDEWAYS:
        size, dpi_x, dpi_y = (size[1], size[0]), dpi_y, dpi_x
    if image.format == "TIFF":  # Pillow turns it while loading, and tells its upright size
        size = image.size
    else:
        rgb = turn_upright(rgb, orientation)
    size_pt = (size[0] * _POINTS_PER_INCH / dpi_x, size[1] * _POINTS_PER_INCH / dpi_y)
    rgb = _square_pixels(rgb, dpi_x, dpi_y)
    rgb, warnings = _fit(rgb, limits, index)
    if rgb is image:
        rgb = image.copy()
    return PageImage(
        index=index,
        label=str(index + 1),
        image=rgb,
        size_pt=size_pt,
        rotation=_CLOCKWISE_DEGREES.get(orientation, 0),
        source=source,
        stem=stem,
        warnings=warnings,
    )


def _dpi(image: Image.Image) -> tuple[float, float]:
    """Return the resolution of both axes, the default where the file has none worth believing."""
    value: Any = image.info.get("dpi")
    try:
        x, y = (float(v) for v in value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return _DEFAULT_DPI, _DEFAULT_DPI
    if not all(math.isfinite(v) and 30 <= v <= 4800 for v in (x, y)):
        return _DEFAULT_DPI, _DEFAULT_DPI
    return x, y


def _square_pixels(image: Image.Image, dpi_x: float, dpi_y: float) -> Image.Image:
    """Stretch a fax (204 x 98 dpi) to equal resolutions, without which its letters are squashed."""
    ratio = dpi_x / dpi_y
    if 0.8 < ratio < 1.25 or not 0.2 < ratio < 5:
        return image
    width, height = image.size
    size = (width, round(height * ratio)) if ratio > 1 else (round(width / ratio), height)
    return image.resize(size, Image.Resampling.BICUBIC)


def _fit(
    image: Image.Image, limits: SourceLimits, index: int
) -> tuple[Image.Image, tuple[ErrorRecord, ...]]:
    width, height = image.size
    scale = min(
        1.0,
        math.sqrt(limits.max_pixels / (width * height)),
        limits.max_side_px / max(width, height),
    )
    if scale == 1.0:
        return image, ()
    size = (max(1, int(width * scale)), max(1, int(height * scale)))
    record = ErrorRecord(
        kind=InputTooLargeError.__name__,
        message=f"scaled from {width} x {height} px to {size[0]} x {size[1]} px to stay within "
        f"{limits.max_pixels} pixels",
        stage="render",
        page=index,
        severity="info",
    )
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0), (record,)
