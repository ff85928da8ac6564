"""Drawn pages with one or two columns of titles, paragraphs, tables, formulas and pictures.

A page gives a layout sample (the whole page, its regions as the answer), or one of its regions as
the crop that inference would cut out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mdiff_core.config import Task
from mdiff_core.protocol import LAYOUT_SIZE_PX, format_record
from mdiff_core.training.config import require
from mdiff_core.training.data.effects import GRADES, damage
from mdiff_core.training.data.fonts import Font
from mdiff_core.training.data.regions import (
    Drawing,
    RegionOptions,
    draw_formula,
    draw_latex,
    draw_paragraph,
    draw_table,
    drawable,
    running_text,
)
from mdiff_core.training.data.sample import Gray, Sample, generator

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions(RegionOptions):
    """Settings of drawn pages, on top of those of regions.

    Attributes:
        page_px: Width and height of a page in px; 150 dpi A4 by default.
        layout_px: Side of the square that a page is resized to for the layout task.
        layout_share: Share of samples that ask for the layout; the others are crops.
        formulas: Whether pages have formulas (needs matplotlib).
    """

    sizes_px: tuple[int, int] = (16, 24)
    page_px: tuple[int, int] = (1240, 1754)
    layout_px: int = LAYOUT_SIZE_PX
    layout_share: float = 0.5
    formulas: bool = True

    def __post_init__(self) -> None:
        RegionOptions.__post_init__(self)
        object.__setattr__(self, "page_px", tuple(self.page_px))
        require("data", "page_px", self.page_px, min(self.page_px) >= 300, "at least 300 px a side")
        require("data", "layout_px", self.layout_px, self.layout_px % 28 == 0, "multiple of 28")
        require("data", "layout_share", self.layout_share, 0 <= self.layout_share <= 1, "[0, 1]")


@dataclass(frozen=True, slots=True)
class PageRegion:
    """A region of a drawn page.

    Attributes:
        type: Region type in the words of the layout answer.
        box: x0, y0, x1, y1 in px of the page.
        text: What reading it should give; empty for pictures.
        task: The task that reads it; None for what is not read.
    """

    type: str
    box: tuple[int, int, int, int]
    text: str = ""
    task: Task | None = "text"


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page and its regions in reading order.

    Attributes:
        gray: Grey values.
        regions: The regions.
        line_px: Height of its text lines in px.
    """

    gray: Gray
    regions: tuple[PageRegion, ...]
    line_px: int

    @property
    def layout_text(self) -> str:
        """The layout answer."""
        height, width = self.gray.shape
        return "\n".join(
            layout_record(region.type, region.box, (width, height)) for region in self.regions
        )


def layout_record(
    kind: str,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    angle: int = 0,
) -> str:
    """Return one region in the words of the layout answer.

    Args:
        kind: Region type.
        box: x0, y0, x1, y1 in the units of ``size``.
        size: Width and height of the page.
        angle: Degrees counter-clockwise that make the region upright, as in :func:`format_record`.
    """
    limits = (*size, *size)
    corners = " ".join(
        f"{min(1000, max(0, round(value / limit * 1000))):03d}"
        for value, limit in zip(box, limits, strict=True)
    )
    return format_record(corners, kind, angle)


class PageSource:
    """Drawn pages.

    Args:
        options: Settings.
    """

    name = "pages"

    def __init__(self, options: PageOptions) -> None:
        self.options = options
        self._fonts = options.open_fonts()
        self._texts = options.open_texts()

    @property
    def fingerprint(self) -> str:
        """What the drawn data depend on besides the settings."""
        return f"{self._fonts.fingerprint}, {len(self._texts.words)} words"

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        rng = generator(seed, index)
        page = self.draw_page(rng)
        grades = np.array(self.options.grades) / sum(self.options.grades)
        grade = int(rng.choice(len(GRADES), p=grades))
        none = np.zeros((0, 4), np.float32)
        gray, _, effects = damage(page.gray, none, rng, grade, page.line_px)
        origin = {"grade": GRADES[grade], "effects": effects}
        image = Image.fromarray(gray).convert("RGB")
        readable = [region for region in page.regions if region.task is not None]
        if rng.random() < self.options.layout_share or not readable:
            side = self.options.layout_px
            resized = image.resize((side, side), Image.Resampling.BICUBIC)
            return Sample(image=resized, text=page.layout_text, task="layout", origin=origin)
        region = readable[int(rng.integers(len(readable)))]
        task: Task = region.task or "text"
        return Sample(image=image.crop(region.box), text=region.text, task=task, origin=origin)

    def draw_page(self, rng: Rng) -> DrawnPage:
        """Draw one clean page."""
        width, height = self.options.page_px
        page = Image.new("L", (width, height), 255)
        face = self._fonts.covering("A")
        font = face[int(rng.integers(len(face)))]
        size = int(rng.integers(self.options.sizes_px[0], self.options.sizes_px[1] + 1))
        margin = round(width * float(rng.uniform(0.06, 0.12)))
        columns = 2 if rng.random() < 0.4 else 1
        gutter = round(width * 0.035)
        breadth = (width - 2 * margin - (columns - 1) * gutter) // columns
        top, bottom = round(height * 0.08), round(height * 0.93)
        regions: list[PageRegion] = []

        def put(kind: str, drawing: Drawing, x: int, y: int) -> int:
            box = _ink_box(drawing.gray)
            if box is None:
                return y
            page.paste(Image.fromarray(drawing.gray), (x, y))
            placed = (x + box[0], y + box[1], x + box[2], y + box[3])
            regions.append(PageRegion(kind, placed, drawing.text, drawing.task))
            return y + int(drawing.gray.shape[0])

        def text(words: int, scale: float, lines: int, room: int) -> Drawing:
            chosen = running_text(self._texts, font, rng, words)[:words]
            return draw_paragraph(chosen, font.at(round(size * scale)), room, rng, max_lines=lines)

        if rng.random() < 0.5:
            put("header", text(6, 0.8, 1, width - 2 * margin), margin, round(height * 0.03))
        if rng.random() < 0.5:
            title = text(int(rng.integers(3, 9)), 1.7, 2, width - 2 * margin)
            top = put("title", title, margin, top) + size
        for column in range(columns):
            x, y = margin + column * (breadth + gutter), top
            while y < bottom - 4 * size:
                kind, drawing = self._block(rng, font, size, breadth, text)
                if y + drawing.gray.shape[0] > bottom:
                    break
                if kind == "image":
                    box = (x, y, x + drawing.gray.shape[1], y + drawing.gray.shape[0])
                    page.paste(Image.fromarray(drawing.gray), (x, y))
                    regions.append(PageRegion("image", box, "", None))
                    y = box[3]
                else:
                    y = put(kind, drawing, x, y)
                y += round(size * float(rng.uniform(0.6, 1.6)))
        if rng.random() < 0.6:
            number = Drawing(
                *_one_line(str(int(rng.integers(1, 400))), font.at(round(size * 0.8))), "text", size
            )
            put("page_number", number, width // 2, round(height * 0.955))
        return DrawnPage(np.asarray(page), tuple(regions), round(1.2 * size))

    def _block(
        self,
        rng: Rng,
        font: Font,
        size: int,
        breadth: int,
        text: Callable[[int, float, int, int], Drawing],
    ) -> tuple[str, Drawing]:
        kind = str(rng.choice(["text", "title", "table", "equation", "image"],
                              p=[0.62, 0.12, 0.1, 0.1, 0.06]))  # fmt: skip
        if kind == "equation" and self.options.formulas:
            drawing = draw_formula(draw_latex(rng), size)
            if drawing.gray.shape[1] <= breadth:
                return kind, drawing
        if kind == "table":
            return kind, draw_table(
                font.at(size),
                lambda chars: drawable(self._texts.draw(rng, chars)[1], font),
                breadth,
                rng,
                max_rows=self.options.max_rows,
                max_cols=self.options.max_cols,
            )
        if kind == "image":
            shape = (round(breadth * float(rng.uniform(0.3, 0.7))), breadth)
            return kind, Drawing(_picture(shape, rng), "", "text", size)
        if kind == "title":
            return kind, text(int(rng.integers(2, 7)), 1.25, 1, breadth)
        lines = int(rng.integers(1, self.options.max_lines + 1))
        return "text", text(16 * lines, 1.0, lines, breadth)


def _one_line(text: str, font: ImageFont.FreeTypeFont) -> tuple[Gray, str]:
    size = (max(1, round(font.getlength(text))) + 2, sum(font.getmetrics()))
    image = Image.new("L", size, 255)
    ImageDraw.Draw(image).text((1, 0), text, font=font, fill=0)
    return np.asarray(image), text


def _picture(shape: tuple[int, int], rng: Rng) -> Gray:
    """Return something that is no text: a smooth random field, or bars."""
    coarse = rng.integers(30, 230, (int(rng.integers(3, 9)), int(rng.integers(3, 9))))
    method = Image.Resampling.BICUBIC if rng.random() < 0.5 else Image.Resampling.NEAREST
    image = Image.fromarray(coarse.astype(np.uint8)).resize((shape[1], shape[0]), method)
    return np.asarray(image)


def _ink_box(gray: Gray) -> tuple[int, int, int, int] | None:
    """Return the box of what is not white."""
    box = Image.fromarray(255 - gray).getbbox()
    return None if box is None else (box[0], box[1], box[2], box[3])
