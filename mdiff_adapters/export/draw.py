"""Pictures of a page with its regions, for looking at."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from mdiff_adapters.document import ParsedPage, Region, RegionType

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
    for region in page.regions:
        box = region.bbox.pixels(canvas.size)
        # Pillow's rectangles include their lower right corner.
        corners = (box[0], box[1], box[2] - 1, box[3] - 1)
        color = _color(region)
        told = bool(region.text or region.table or region.latex or region.type == "image")
        draw.rectangle(corners, outline=color, width=2 * unit if told else unit)
        if region.error is not None:
            draw.line(corners, fill=color, width=unit)
            draw.line((corners[0], corners[3], corners[2], corners[1]), fill=color, width=unit)
        _draw_label(draw, font, region, corners, color, canvas.size)
    return canvas


def _draw_label(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    region: Region,
    corners: tuple[int, int, int, int],
    color: str,
    size_px: tuple[int, int],
) -> None:
    text = f"{region.order} {region.raw_label or region.type}"
    if region.confidence is not None:
        text += f" {region.confidence:.2f}"
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = right - left + 4, bottom - top + 4
    # Above the box, inside the page also for boxes at its edges.
    x = max(0, min(corners[0], size_px[0] - round(width)))
    y = max(0, corners[1] - round(height))
    draw.rectangle((x, y, x + width, y + height), fill=color)
    draw.text((x + 2 - left, y + 2 - top), text, fill="white", font=font)


def _color(region: Region) -> str:
    if region.type.endswith(("_caption", "_footnote")):
        return _CAPTION_COLOR
    return _COLORS.get(region.type, _FURNITURE_COLOR)
