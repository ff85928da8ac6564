"""Rendered pages: within a pixel budget, RGB, with the way back to docling's points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from docling.datamodel.base_models import InputFormat, Page
from docling.datamodel.document import ConversionResult
from docling_core.types.doc import BoundingBox, CoordOrigin, Size
from PIL import Image

from mdiff_adapters.document import BBox
from mdiff_adapters.errors import PageError
from mdiff_adapters.segmenters import PageImage


@dataclass(frozen=True, slots=True)
class Shot:
    """An image of a page.

    Attributes:
        image: The image as segmenters take it.
        box: What it shows, in page points, top left origin.
    """

    image: PageImage
    box: BoundingBox

    def only(self, boxes: Sequence[BoundingBox]) -> Shot:
        """Return the image with nothing but paper outside of some boxes.

        The image keeps its size: a line detector scales small crops up and then finds pieces of
        letters.

        Args:
            boxes: What stays, in page points, top left origin.
        """
        source = self.image.image
        x_scale, y_scale = source.width / self.box.width, source.height / self.box.height
        gray = source.convert("L")
        paper = int(np.median(np.asarray(gray)))
        kept = Image.new("RGB", source.size, (paper, paper, paper))
        for box in boxes:
            corner = (
                max(0, math.floor((box.l - self.box.l) * x_scale)),
                max(0, math.floor((box.t - self.box.t) * y_scale)),
            )
            opposite = (
                min(source.width, math.ceil((box.r - self.box.l) * x_scale)),
                min(source.height, math.ceil((box.b - self.box.t) * y_scale)),
            )
            if corner[0] < opposite[0] and corner[1] < opposite[1]:
                kept.paste(source.crop((*corner, *opposite)), corner)
        return replace(self, image=replace(self.image, image=kept))


def page_box(page: Page) -> BoundingBox:
    """Return the box of a whole page, top left origin."""
    size = page.size or Size(width=0.0, height=0.0)
    return BoundingBox(l=0.0, t=0.0, r=size.width, b=size.height, coord_origin=CoordOrigin.TOPLEFT)


def to_points(bbox: BBox, whole: BoundingBox) -> BoundingBox:
    """Return a box in fractions of ``whole`` as a box in points, top left origin."""
    return BoundingBox(
        l=whole.l + bbox.x0 * whole.width,
        t=whole.t + bbox.y0 * whole.height,
        r=whole.l + bbox.x1 * whole.width,
        b=whole.t + bbox.y1 * whole.height,
        coord_origin=CoordOrigin.TOPLEFT,
    )


def document_origin(conv_res: ConversionResult) -> dict[str, str]:
    """Return the names of a document under which engines and segmenters know it."""
    path = Path(conv_res.input.file)
    return {"source": path.name, "stem": path.stem}


def is_ready(page: Page) -> bool:
    """Return whether a page can be rendered; docling passes on pages that it could not load."""
    return page._backend is not None and page._backend.is_valid() and page.size is not None


def render(conv_res: ConversionResult, page: Page, *, scale: float, max_pixels: int) -> Shot:
    """Render a page without keeping the image in docling's cache.

    Args:
        conv_res: The conversion, for the names of the document.
        page: The page.
        scale: Pixels a point.
        max_pixels: Pixels the image may have; it is rendered smaller where they do not suffice.

    Returns:
        The whole page.

    Raises:
        PageError: If the page has no size or cannot be rendered.
    """
    size, backend = page.size, page._backend
    if size is None or backend is None or size.width <= 0 or size.height <= 0:
        raise PageError("the page has no size", page=page.page_no - 1)
    scale = min(scale, _native_scale(conv_res, page))
    scale = min(scale, math.sqrt(max_pixels / (size.width * size.height)))
    image = backend.get_page_image(scale=scale)
    if image is None or min(image.size) < 1:
        raise PageError("the page could not be rendered", page=page.page_no - 1)
    names = document_origin(conv_res)
    page_image = PageImage(
        index=page.page_no - 1,
        label=str(page.page_no),
        image=image.convert("RGB"),
        size_pt=(size.width, size.height),
        source=names["source"],
        stem=names["stem"],
    )
    return Shot(page_image, page_box(page))


def _native_scale(conv_res: ConversionResult, page: Page) -> float:
    """Return the scale beyond which an image document only repeats its pixels."""
    if conv_res.input.format != InputFormat.IMAGE:
        return math.inf
    # docling's image backend keeps the resolution to itself.
    dpi = getattr(page._backend, "_dpi", None)
    return float(max(dpi)) / 72.0 if dpi else math.inf
