"""Drawn regions of pages: paragraphs, tables and formulas, each with its exact answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mdiff_core.config import Task
from mdiff_core.errors import ConfigError
from mdiff_core.training.config import require
from mdiff_core.training.data.effects import GRADES, damage
from mdiff_core.training.data.fonts import Font
from mdiff_core.training.data.lines import (
    DEFAULT_TEXTS,
    LineOptions,
    choose_font,
    shuffle_words,
)
from mdiff_core.training.data.sample import Boxes, Gray, Sample, generator
from mdiff_core.training.data.texts import TextMix

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOptions(LineOptions):
    """Settings of drawn regions, on top of those of lines.

    Attributes:
        width_px: Narrowest and widest region in px.
        max_lines: Most lines of a paragraph.
        max_rows: Most rows of a table.
        max_cols: Most columns of a table.
    """

    texts: Mapping[str, float] = field(default_factory=lambda: {**DEFAULT_TEXTS, "prose": 2.0})
    sizes_px: tuple[int, int] = (16, 32)
    width_px: tuple[int, int] = (280, 1000)
    max_lines: int = 8
    max_rows: int = 7
    max_cols: int = 6

    def __post_init__(self) -> None:
        # A slotted dataclass is rebuilt, which breaks the argument-free super().
        LineOptions.__post_init__(self)
        object.__setattr__(self, "width_px", tuple(self.width_px))
        low, high = self.width_px
        require("data", "width_px", self.width_px, 56 <= low <= high, "[low, high], at least 56")
        for name in ("max_lines", "max_rows", "max_cols"):
            require("data", name, getattr(self, name), getattr(self, name) >= 1, ">= 1")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn region on white.

    Attributes:
        gray: Grey values.
        text: Its answer.
        task: The task it answers.
        line_px: Height of its text lines in px.
        boxes: Boxes of the answer's characters in px, where answer and picture have the same.
    """

    gray: Gray
    text: str
    task: Task
    line_px: int
    boxes: Boxes | None = None


def draw_paragraph(
    words: Sequence[str], font: ImageFont.FreeTypeFont, width: int, rng: Rng, *, max_lines: int
) -> Drawing:
    """Set words as a paragraph: left-aligned or justified, with or without an indent.

    Args:
        words: Words; those that do not fit into ``max_lines`` are left out.
        font: Font.
        width: Width in px.
        rng: Random stream, for the style.
        max_lines: Most lines.

    Returns:
        The region; its text is one line with single spaces.
    """
    ascent, descent = font.getmetrics()
    leading = round((ascent + descent) * float(rng.uniform(1.0, 1.4)))
    indent = round(ascent * float(rng.uniform(1, 2))) if rng.random() < 0.3 else 0
    justified = bool(rng.random() < 0.5)
    lines = wrap(words, font, width, indent)[:max_lines]
    image = Image.new("L", (width, leading * len(lines)), 255)
    pen = ImageDraw.Draw(image)
    text = ""
    boxes: list[tuple[float, float, float, float]] = []
    space = font.getlength(" ")
    for row, line in enumerate(lines):
        natural = font.getlength(" ".join(line))
        start = float(indent) if row == 0 else 0.0
        gap = space
        if justified and row < len(lines) - 1 and len(line) > 1:
            gap += max(0.0, width - start - natural) / (len(line) - 1)
        x, y = start, row * leading
        for position, word in enumerate(line):
            if text:
                # The space belongs to the end of the line before where a line begins.
                edge = boxes[-1][2]
                boxes.append((edge, boxes[-1][1], min(edge + gap, width), boxes[-1][3]))
                text += " "
            pen.text((x, y), word, font=font, fill=0)
            edges = [x + font.getlength(word[:i]) for i in range(len(word) + 1)]
            boxes.extend((left, y, right, y + ascent + descent) for left, right in pairwise(edges))
            text += word
            x = edges[-1] + (gap if position < len(line) - 1 else 0)
    found = np.array(boxes, np.float32).reshape(-1, 4)
    return Drawing(np.asarray(image), text, "text", ascent + descent, found)


def wrap(
    words: Sequence[str], font: ImageFont.FreeTypeFont, width: int, indent: int = 0
) -> list[list[str]]:
    """Break words into lines of at most ``width`` px; a word that is too long is cut."""
    lines: list[list[str]] = [[]]
    room = float(width - indent)
    for word in words:
        while len(word) > 1 and font.getlength(word) > width - indent:
            word = word[:-1]
        needed = font.getlength(word if not lines[-1] else " " + word)
        if lines[-1] and needed > room:
            lines.append([])
            room, needed = float(width), font.getlength(word)
        lines[-1].append(word)
        room -= needed
    return lines if lines[0] else []


def draw_table(
    font: ImageFont.FreeTypeFont,
    draw_text: Callable[[int], str],
    width: int,
    rng: Rng,
    *,
    max_rows: int,
    max_cols: int,
) -> Drawing:
    """Draw a table with spans, in one of three styles of rules.

    Args:
        font: Font.
        draw_text: Returns a text of at most so many characters.
        width: Width in px.
        rng: Random stream.
        max_rows: Most rows.
        max_cols: Most columns.

    Returns:
        The region; its text is OTSL.
    """
    full = sum(font.getmetrics())
    most = max(1, min(max_cols, width // (3 * full)))
    rows = int(rng.integers(1, max_rows + 1))
    cols = int(rng.integers(min(2, most), most + 1))
    spans = _draw_spans(rows, cols, rng)
    left = np.linspace(0, width - 1, cols + 1).round().astype(int)
    step = round(full * float(rng.uniform(1.2, 1.9)))
    image = Image.new("L", (width, step * rows + 1), 255)
    pen = ImageDraw.Draw(image)
    tags = [["" for _ in range(cols)] for _ in range(rows)]
    style = int(rng.integers(3))
    pad = max(2, full // 5)
    for row, col, height, breadth in spans:
        x0, x1 = int(left[col]), int(left[col + breadth])
        y0, y1 = row * step, (row + height) * step
        chars = int((x1 - x0 - 2 * pad) / max(1.0, font.getlength("n")))
        text = "" if rng.random() < 0.08 or chars < 1 else draw_text(min(chars, 24))
        while text and font.getlength(text) > x1 - x0 - 2 * pad:
            text = text[:-1].rstrip()
        if style == 0:
            pen.rectangle((x0, y0, x1, y1), outline=0)
        spare = x1 - x0 - 2 * pad - font.getlength(text)
        x = x0 + pad + spare * float(rng.choice([0.0, 0.5, 1.0]))
        pen.text((x, y0 + (y1 - y0 - full) / 2), text, font=font, fill=0)
        for r in range(row, row + height):
            for c in range(col, col + breadth):
                tags[r][c] = "<lcel>" if r == row else "<ucel>" if c == col else "<xcel>"
        tags[row][col] = f"<fcel>{text}" if text else "<ecel>"
    if style == 1:
        for y in (0, step, rows * step):
            pen.line((0, y, width, y), fill=0, width=2 if y != step else 1)
    otsl = "".join("".join(row) + "<nl>" for row in tags)
    return Drawing(np.asarray(image), otsl, "table", full)


def _draw_spans(rows: int, cols: int, rng: Rng) -> list[tuple[int, int, int, int]]:
    """Return (row, col, height, width) of cells that cover a grid."""
    free = np.ones((rows, cols), bool)
    cells = []
    joins = rng.random() < 0.4
    for row in range(rows):
        for col in range(cols):
            if not free[row, col]:
                continue
            height = breadth = 1
            if joins and rng.random() < 0.25:
                height = int(rng.integers(1, min(3, rows - row) + 1))
                breadth = int(rng.integers(1, min(3, cols - col) + 1))
                if not free[row : row + height, col : col + breadth].all():
                    height = breadth = 1
            free[row : row + height, col : col + breadth] = False
            cells.append((row, col, height, breadth))
    return cells


_GREEK = ["alpha", "beta", "gamma", "delta", "lambda", "mu", "pi", "sigma", "theta", "omega"]
_RELATIONS = ["=", r"\leq", r"\geq", r"\approx", r"\in", r"\rightarrow", "<", ">"]


def draw_latex(rng: Rng, depth: int = 3) -> str:
    """Return a random formula of the LaTeX subset that matplotlib sets."""
    sides = [_terms(rng, depth) for _ in range(int(rng.integers(1, 3)))]
    return f" {rng.choice(_RELATIONS)} ".join(sides)


def _terms(rng: Rng, depth: int) -> str:
    signs = ["+", "-", r"\cdot", r"\times"]
    parts = [_factor(rng, depth) for _ in range(int(rng.integers(1, 4)))]
    text = parts[0]
    for part in parts[1:]:
        text += f" {rng.choice(signs)} {part}"
    return text


def _factor(rng: Rng, depth: int) -> str:
    kind = int(rng.integers(10)) if depth > 0 else int(rng.integers(4))
    if kind < 2:
        return str(rng.choice(list("abcdefghijklmnpqrstuvwxyzABCDEFGHKLMNPQRSTUVWXYZ")))
    if kind == 2:
        return f"\\{rng.choice(_GREEK)}"
    if kind == 3:
        return str(int(rng.integers(0, 100)))
    inner = _terms(rng, depth - 1) if kind < 8 else ""
    if kind == 4:
        return f"\\frac{{{inner}}}{{{_terms(rng, depth - 1)}}}"
    if kind == 5:
        return f"\\sqrt{{{inner}}}"
    if kind == 6:
        return f"{_factor(rng, 0)}^{{{inner}}}"
    if kind == 7:
        return f"\\left({inner}\\right)"
    index = _factor(rng, 0)
    if kind == 8:
        return f"{_factor(rng, 0)}_{{{index}}}"
    return f"\\sum_{{{index}=1}}^{{{_factor(rng, 0)}}} {_factor(rng, depth - 1)}"


def draw_formula(latex: str, size_px: int) -> Drawing:
    """Set a formula with matplotlib.

    Args:
        latex: LaTeX of the subset that matplotlib knows.
        size_px: Font size in px per em.

    Returns:
        The region; its text is ``latex``.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.font_manager import FontProperties
        from matplotlib.mathtext import MathTextParser
    except ImportError as error:
        raise ConfigError(
            "drawing formulas needs matplotlib", hint='pip install "mdiff-core[train]"'
        ) from error
    # 72 dpi: a point is a pixel.
    parsed = MathTextParser("agg").parse(
        f"${latex}$", dpi=72, prop=FontProperties(size=size_px, math_fontfamily="cm")
    )
    ink = np.asarray(parsed.image, dtype=np.uint8)
    pad = max(2, size_px // 6)
    return Drawing(255 - np.pad(ink, pad), latex, "formula", round(1.2 * size_px))


class RegionSource:
    """Drawn paragraphs, tables or formulas as crops of a page.

    Args:
        kind: ``paragraphs``, ``tables`` or ``formulas``.
        options: Settings.
    """

    def __init__(self, kind: str, options: RegionOptions) -> None:
        self.name, self.options = kind, options
        self._fonts = options.open_fonts()
        self._texts = options.open_texts()

    @property
    def fingerprint(self) -> str:
        """What the drawn data depend on besides the settings."""
        return f"{self._fonts.fingerprint}, {len(self._texts.words)} words"

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        rng = generator(seed, index)
        drawing = self.draw(rng, generator(seed, index, 1))
        return finish(drawing, rng, self.options.grades)

    def draw(self, rng: Rng, shuffle_rng: Rng) -> Drawing:
        """Draw one region on clean paper."""
        options = self.options
        size = int(rng.integers(options.sizes_px[0], options.sizes_px[1] + 1))
        width = int(rng.integers(options.width_px[0], options.width_px[1] + 1))
        if self.name == "formulas":
            return draw_formula(draw_latex(rng), size)
        font, texts = self._face(rng), self._texts
        if self.name == "tables":
            return draw_table(
                font.at(size),
                lambda chars: drawable(texts.draw(rng, chars)[1], font),
                width,
                rng,
                max_rows=options.max_rows,
                max_cols=options.max_cols,
            )
        words = running_text(texts, font, rng, 16 * options.max_lines)
        lines = int(rng.integers(1, options.max_lines + 1))
        kept = [word for line in wrap(words, font.at(size), width)[:lines] for word in line]
        if options.shuffle:
            kept = shuffle_words(" ".join(kept), options.shuffle, shuffle_rng).split(" ")
        # Another order or an indent may need a line more, but no word may be lost.
        return draw_paragraph(kept, font.at(size), width, rng, max_lines=lines + 2)

    def _face(self, rng: Rng) -> Font:
        return choose_font("A", self._fonts, rng)[1]


def drawable(text: str, font: Font) -> str:
    """Return what of a text a font can draw; ``-`` where nothing is left."""
    kept = "".join(char for char in text if char == " " or font.draws(char))
    return " ".join(kept.split()) or "-"


def running_text(texts: TextMix, font: Font, rng: Rng, num_words: int) -> list[str]:
    """Return about ``num_words`` words of one kind of text that ``font`` can draw."""
    _, text = texts.draw(rng, 7 * num_words)
    while len(text.split()) < num_words // 2:
        text += " " + texts.draw(rng, 7 * num_words)[1]
    return drawable(text, font).split(" ")


def finish(drawing: Drawing, rng: Rng, grades: tuple[float, ...]) -> Sample:
    """Put air around a region, damage it, and make it a sample."""
    air = rng.integers(0, 13, 4)
    gray = np.pad(drawing.gray, ((air[0], air[1]), (air[2], air[3])), constant_values=255)
    boxes = np.zeros((0, 4), np.float32) if drawing.boxes is None else drawing.boxes
    boxes = boxes + np.array([air[2], air[0]] * 2, np.float32)
    paper, ink = int(rng.integers(215, 256)), int(rng.integers(0, 90))
    toned = np.rint(ink + (paper - ink) * (gray / 255.0)).astype(np.uint8)
    grade = int(rng.choice(len(GRADES), p=np.array(grades) / sum(grades)))
    damaged, moved, effects = damage(toned, boxes, rng, grade, drawing.line_px)
    return Sample(
        image=Image.fromarray(damaged).convert("RGB"),
        text=drawing.text,
        task=drawing.task,
        boxes=None if drawing.boxes is None else moved,
        origin={"grade": GRADES[grade], "effects": effects},
    )
