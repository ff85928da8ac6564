"""Pictures of a page with its regions, for looking at."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from mdiff_adapters.document import ParsedPage, Region, RegionType
from mdiff_adapters.export.structure import has_content

__all__ = ["draw_layout"]

_COLORS: dict[RegionType, str] = {
    "title": "#c2185b",
    "table": "#00796b",
    "image": "#6a1b9a",
    "equation": "#e65100",
    "equation_block": "#e65100",
    "list": "#2e7d32",
    "code": "#5d4037",
    "algorithm": "#5d4037",
    "ref_text": "#283593",
    "text": "#1565c0",
}
_Box = tuple[int, int, int, int]

_CAPTION_COLOR, _FURNITURE_COLOR = "#9e7700", "#616161"


def draw_layout(image: Image.Image, page: ParsedPage) -> Image.Image:
    """Draw boxes, types, order and confidence of a page's regions on its picture.

    Args:
        image: The page image, upright, of any size.
        page: The parsed page.

    Returns:
        A new RGB image of the same size. A label reads ``order type confidence``; a region that
        another one tells has a thin box, a region with an error a cross.
    """
    canvas = image.convert("RGB")
    draw = ImageDraw.Draw(canvas)
    unit = max(1, round(min(canvas.size) / 600))
    font = ImageFont.load_default(size=max(8.0, 10.0 * unit))
    boxes = [region.bbox.pixels(canvas.size) for region in page.regions]
    placed: list[_Box] = []
    for region, box in zip(page.regions, boxes, strict=True):
        # Pillow's rectangles include their lower right corner.
        corners = (box[0], box[1], box[2] - 1, box[3] - 1)
        color = _color(region)
        draw.rectangle(corners, outline=color, width=2 * unit if has_content(region) else unit)
        if region.error is not None:
            draw.line(corners, fill=color, width=unit)
            draw.line((corners[0], corners[3], corners[2], corners[1]), fill=color, width=unit)
    for region, box in zip(page.regions, boxes, strict=True):
        text = f"{region.order} {region.raw_label or region.type}"
        if region.confidence is not None:
            text += f" {region.confidence:.2f}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        size = (round(right - left) + 4, round(bottom - top) + 4)
        label = _place(box, size, canvas.size, boxes, placed)
        placed.append(label)
        draw.rectangle(label, fill=_color(region))
        draw.text((label[0] + 2 - left, label[1] + 2 - top), text, fill="white", font=font)
    return canvas


def _place(
    box: _Box,
    size: tuple[int, int],
    page_px: tuple[int, int],
    boxes: Sequence[_Box],
    placed: Sequence[_Box],
) -> _Box:
    """Return where a label hides least: above its box, beside it, or in a corner of it."""
    width, height = size
    corners = [
        (box[0], box[1] - height),
        (box[2] - width, box[1] - height),
        (box[0] - width, box[1]),
        (box[2], box[1]),
        (box[0], box[3]),
        (box[0], box[1]),
    ]
    labels = []
    for x, y in corners:
        left = max(0, min(x, page_px[0] - width))
        top = max(0, min(y, page_px[1] - height))
        labels.append((left, top, left + width, top + height))
    # Another label hidden is worse than some letters.
    return min(
        labels,
        key=lambda label: (
            sum(_overlap(label, other) for other in boxes)
            + 100 * sum(_overlap(label, other) for other in placed)
        ),
    )


def _overlap(a: _Box, b: _Box) -> int:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0


def _color(region: Region) -> str:
    if region.type.endswith(("_caption", "_footnote")):
        return _CAPTION_COLOR
    return _COLORS.get(region.type, _FURNITURE_COLOR)
