"""Drawn text lines, and the pieces of them that a ``segment`` checkpoint reads.

A line goes through the same preparation as in inference (:mod:`mdiff_core.segments`), so what is
learned is what will be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mdiff_core.config import Capabilities
from mdiff_core.segments import LEFT_MARGIN_PX, RIGHT_MARGIN_PX, cut_line, prepare_piece, trim_rows
from mdiff_core.training.config import check_types, require
from mdiff_core.training.data.effects import GRADES, damage
from mdiff_core.training.data.fonts import Font, FontSet, font_set
from mdiff_core.training.data.sample import Boxes, Gray, Sample, generator
from mdiff_core.training.data.texts import TextMix, prose_words

Rng = np.random.Generator
FloatArray = npt.NDArray[np.float64]

DEFAULT_TEXTS: Mapping[str, float] = {
    "prose": 0.4, "words": 0.2, "numbers": 0.17, "random": 0.15, "confusable": 0.08
}  # fmt: skip
SPARE_PX = 12
"""Room kept on the canvas for kerning that a reordering of words changes."""
FULL_SHARE = 0.35
"""Share of lines as long as they may be, which is what most pieces of a line's text are."""
FIXED_WIDTH_SHARE = 0.6
"""Share of code that is set in a font of fixed width."""
SCRIPTS_SHARE = 0.08
"""Share of lines in which some words end in a superscript or subscript."""
FRAMES_SHARE = 0.06
"""Share of lines with frames around some characters."""
MIN_TIGHT = 0.3
"""Least share of a line's height that ink must have for a crop to be tight around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """Settings of drawn lines.

    Attributes:
        texts: Share of each kind of text, see :data:`mdiff_core.training.data.texts.KINDS`.
        corpus: Text files or folders for prose; empty takes what is on every machine.
        fonts: Font folders; None takes the system's.
        exclude_fonts: Words in names of font files that are left out.
        sizes_px: Smallest and largest font size in px per em.
        grades: Share of each grade of damage: clean, light, medium, heavy.
        max_chars: Longest text; a piece is cut to what its canvas holds in any case.
        shuffle: Share of the words put in another order (Semantic Shuffle); labels follow.
    """

    texts: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_TEXTS))
    corpus: Sequence[str] = ()
    fonts: Sequence[str] | None = None
    exclude_fonts: Sequence[str] = ()
    sizes_px: tuple[int, int] = (16, 40)
    grades: tuple[float, ...] = (0.35, 0.4, 0.17, 0.08)
    max_chars: int = 48
    shuffle: float = 0.0

    def __post_init__(self) -> None:
        check_types("data", self)
        object.__setattr__(self, "sizes_px", tuple(self.sizes_px))
        object.__setattr__(self, "grades", tuple(self.grades))
        low, high = self.sizes_px
        require("data", "sizes_px", self.sizes_px, 6 <= low <= high, "[low, high], at least 6")
        ok = len(self.grades) == len(GRADES) and min(self.grades) >= 0 < sum(self.grades)
        require("data", "grades", self.grades, ok, f"{len(GRADES)} shares: {', '.join(GRADES)}")
        require("data", "max_chars", self.max_chars, self.max_chars >= 1, ">= 1")
        require("data", "shuffle", self.shuffle, 0 <= self.shuffle <= 1, "[0, 1]")

    def open_fonts(self) -> FontSet:
        """Return the fonts."""
        folders = None if self.fonts is None else tuple(self.fonts)
        return font_set(folders, tuple(self.exclude_fonts))

    def open_texts(self) -> TextMix:
        """Return the mix of texts."""
        return TextMix(dict(self.texts), prose_words(self.corpus))


class LineSource:
    """Drawn text lines; for a ``segment`` checkpoint each is one piece on its canvas.

    Args:
        options: Settings.
        capabilities: Of the checkpoint that is trained.
    """

    name = "lines"

    def __init__(self, options: LineOptions, capabilities: Capabilities) -> None:
        self.options, self._capabilities = options, capabilities
        # Character boxes move along with the trimming, so it is done here and not with the cutting.
        self._trimmed = replace(capabilities, line_air=None)
        self._fonts = options.open_fonts()
        self._texts = options.open_texts()

    @property
    def fingerprint(self) -> str:
        """What the drawn data depend on besides the settings."""
        return f"{self._fonts.fingerprint}, {len(self._texts.words)} words"

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        rng = generator(seed, index)
        kind, text = self._texts.draw(rng, self.options.max_chars, FULL_SHARE)
        size = int(rng.integers(self.options.sizes_px[0], self.options.sizes_px[1] + 1))
        fixed_width = kind == "code" and rng.random() < FIXED_WIDTH_SHARE
        text, font = choose_font(text, self._fonts, rng, fixed_width=fixed_width)
        style = LineStyle.draw(rng)
        text = self._fit(text, font.at(size), style)
        if self.options.shuffle:
            text = shuffle_words(text, self.options.shuffle, generator(seed, index, 1))
        gray, boxes = draw_line(text, font.at(size), style, rng)
        grade = int(
            rng.choice(len(GRADES), p=np.array(self.options.grades) / sum(self.options.grades))
        )
        damaged, moved, effects = damage(gray, boxes, rng, grade, gray.shape[0])
        found = self._prepare(damaged, moved)
        while found is None:
            # Damage can take all contrast away; what nobody could read teaches nothing. A text
            # whose drawn crop came out lower than foretold is too long for the canvas.
            found, effects = self._prepare(gray, boxes), []
            if found is None:
                if len(text) < 2:
                    raise ValueError(f"line {text!r} in {font.path} has no ink")
                text = text[:-1].rstrip()
                gray, boxes = draw_line(text, font.at(size), style, rng)
        origin = {"kind": kind, "font": font.path, "grade": GRADES[grade], "effects": effects}
        return Sample(image=found[0], text=text, boxes=found[1], origin=origin)

    def _fit(self, text: str, font: ImageFont.FreeTypeFont, style: LineStyle) -> str:
        """Cut a text to what the canvas of a piece holds: at a word where it has several."""
        if self._capabilities.segment_px is None:
            return text
        width, height = self._capabilities.segment_px
        room = width - LEFT_MARGIN_PX - RIGHT_MARGIN_PX - SPARE_PX
        stretch = height * self._capabilities.stretch

        def too_long(text: str) -> bool:
            rows = style.crop_height(font, text, self._capabilities.line_air)
            return style.width(font, text) * stretch / rows > room

        words = text.split(" ")
        while len(words) > 1 and too_long(" ".join(words)):
            words.pop()
        text = " ".join(words)
        while len(text) > 1 and too_long(text):
            text = text[:-1]
        return text

    def _prepare(self, gray: Gray, boxes: Boxes) -> tuple[Image.Image, Boxes] | None:
        unit = self._capabilities
        if unit.segment_px is None:
            return Image.fromarray(gray).convert("RGB"), boxes
        if unit.line_air is not None:
            rows = trim_rows(gray, unit.line_air)
            gray, boxes = gray[rows], boxes - np.array([0, rows.start] * 2, np.float32)
        pieces = cut_line(gray, self._trimmed)
        if len(pieces) != 1:
            return None
        height = unit.segment_px[1]
        width = max(1, round(gray.shape[1] * height / gray.shape[0] * unit.stretch))
        scaled = boxes * np.array([width / gray.shape[1], height / gray.shape[0]] * 2, np.float32)
        # Air before the ink and the middle of wide gaps may have been taken out.
        sides = np.searchsorted(pieces[0].columns, scaled[:, [0, 2]])
        scaled[:, [0, 2]] = LEFT_MARGIN_PX + sides
        return prepare_piece(pieces[0], unit), scaled


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a line is cropped, spaced and inked.

    Attributes:
        above: Air above the ascender, as a share of the font's height.
        below: Air below the descender.
        left: Air before the text, as a share of the font's height.
        right: Air after it.
        spread: Horizontal scale of the glyphs.
        gap: Width added to each space, as a share of the font's height: justified lines and the
            cells of a table's row.
        tight: Air above and below the ink itself, as a share of its height, for crops that were
            found by their ink; None where ``above`` and ``below`` hold.
        ink: Grey value of the text.
        paper: Grey value of the background.
        neighbours: Whether parts of the lines above and below look into the crop.
        scripts: Whether some words end in smaller characters, raised or lowered.
        frames: Whether thin frames stand around some characters, as around links.
    """

    above: float
    below: float
    left: float
    right: float
    spread: float
    gap: float
    tight: float | None
    ink: int
    paper: int
    neighbours: bool
    scripts: bool
    frames: bool

    @classmethod
    def draw(cls, rng: Rng) -> LineStyle:
        """Draw a style."""
        paper = int(rng.integers(225, 256)) if rng.random() < 0.7 else int(rng.integers(150, 256))
        ink = int(rng.integers(0, max(1, min(paper - 70, 110))))
        # Tight crops cut into the air of the font, wide ones add to it.
        above, below = rng.uniform(-0.08, 0.2, 2)
        left, right = rng.uniform(0.0, 0.45, 2)
        gap = float(rng.exponential(0.2)) if rng.random() < 0.3 else 0.0
        tight = float(rng.uniform(0.0, 0.1)) if rng.random() < 0.35 else None
        return cls(
            above=float(above),
            below=float(below),
            left=float(left),
            right=float(right),
            spread=float(rng.uniform(0.85, 1.2)) if rng.random() < 0.3 else 1.0,
            gap=min(gap, 1.0),
            tight=tight,
            ink=ink,
            paper=paper,
            neighbours=bool(rng.random() < 0.1),
            scripts=bool(rng.random() < SCRIPTS_SHARE),
            frames=bool(rng.random() < FRAMES_SHARE),
        )

    def height(self, font: ImageFont.FreeTypeFont) -> int:
        """Return the height in px of a line in ``font``."""
        ascent, descent = font.getmetrics()
        return max(8, round((ascent + descent) * (1 + self.above + self.below)))

    def crop_height(
        self, font: ImageFont.FreeTypeFont, text: str, line_air: float | None = None
    ) -> float:
        """Return about how high in px the crop of a line with ``text`` is: rarely less.

        Args:
            font: Its font.
            text: Its text.
            line_air: Air left where the crop is trimmed to its ink afterwards.
        """
        height, offset = self.height(font), round(sum(font.getmetrics()) * self.above)
        if self.tight is None and line_air is None:
            return height
        _, top, _, bottom = font.getbbox(text)
        ink = min(height, bottom + offset) - max(0, top + offset)
        # A row less, since what is drawn in halves between two rows may be too pale to count.
        least = ink - 1 if line_air is None else min(height, ink * (1 + line_air))
        return least if ink >= MIN_TIGHT * height else height

    def width(self, font: ImageFont.FreeTypeFont, text: str) -> float:
        """Return the width in px of a line with ``text``."""
        air = sum(font.getmetrics()) * (self.left + self.right + self.gap * text.count(" "))
        return font.getlength(text) * self.spread + air


def choose_font(
    text: str, fonts: FontSet, rng: Rng, *, fixed_width: bool = False
) -> tuple[str, Font]:
    """Return a random font that can draw ``text``, and what of ``text`` it draws.

    Where no font has every character, the characters that the drawn font lacks are left out; where
    none of fixed width has them, any other is taken.
    """
    listing = list(fonts.covering(text, fixed_width=fixed_width) or fonts.covering(text))
    while listing:
        font = listing.pop(int(rng.integers(len(listing))))
        if font.draws(text):
            return text, font
    font = fonts.fonts[int(rng.integers(len(fonts.fonts)))]
    kept = " ".join("".join(c for c in text if c == " " or font.draws(c)).split())
    return kept or "-", font


def draw_line(
    text: str, font: ImageFont.FreeTypeFont, style: LineStyle, rng: Rng
) -> tuple[Gray, Boxes]:
    """Draw one line.

    Args:
        text: What to draw.
        font: In which font.
        style: How.
        rng: For what stands above and below, for scripts and frames.

    Returns:
        Grey values and the (len(text), 4) boxes of the characters in px.
    """
    ascent, descent = font.getmetrics()
    full = ascent + descent
    height = style.height(font)
    natural = max(1, round(style.width(font, text) / style.spread))
    image = Image.new("L", (natural, height), style.paper)
    pen = ImageDraw.Draw(image)
    top = round(full * style.above)
    runs = _runs(text, font, rng, scripts=style.scripts)
    space = font.getlength(" ") + full * style.gap / style.spread
    edges = _edges(len(text), runs, full * style.left / style.spread, space)
    for run in runs:
        pen.text((edges[run.start], top + run.drop), run.text, font=run.font, fill=style.ink)
    rows = _tight_rows(np.asarray(image), style)
    if style.neighbours:
        order = "".join(rng.permutation(list(text)))
        step = round(full * float(rng.uniform(0.95, 1.1)))
        for offset in (-step, step):
            pen.text((edges[0], top + offset), order, font=font, fill=style.ink)
    if style.frames:
        _draw_frames(pen, runs, edges, top, style, rng)
    image = image.crop((0, rows.start, natural, rows.stop))
    width = max(1, round(natural * style.spread))
    if width != natural:
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    edges *= width / natural
    boxes = np.empty((len(text), 4), np.float32)
    boxes[:, 0], boxes[:, 2] = edges[:-1], edges[1:]
    boxes[:, 1], boxes[:, 3] = top - rows.start, top - rows.start + full
    return np.asarray(image), boxes


class _Run(NamedTuple):
    """Characters of one word that are drawn together, ``drop`` px lower than the line."""

    start: int
    text: str
    font: ImageFont.FreeTypeFont
    drop: float


def _runs(text: str, font: ImageFont.FreeTypeFont, rng: Rng, *, scripts: bool) -> list[_Run]:
    """Split a text into words, and with ``scripts`` the ends of some words off them."""
    runs, start = [], 0
    for word in text.split(" "):
        cut = len(word)
        if scripts and cut > 1 and rng.random() < 0.4:
            cut -= int(rng.integers(1, min(cut, 5)))
        runs.append(_Run(start, word[:cut], font, 0.0))
        if cut < len(word):
            small = font.font_variant(size=max(6, round(font.size * rng.uniform(0.58, 0.75))))
            ascent, lower = font.getmetrics()[0], small.getmetrics()[0]
            # Raised, the tops of the capitals are about level; lowered, the base sinks a little.
            raised = rng.uniform(-0.02, 0.1) * ascent
            lowered = ascent - lower + rng.uniform(0.08, 0.2) * ascent
            drop = raised if rng.random() < 0.5 else lowered
            runs.append(_Run(start + cut, word[cut:], small, round(float(drop))))
        start += len(word) + 1
    return runs


def _edges(length: int, runs: Sequence[_Run], left: float, space: float) -> FloatArray:
    """Return the (length + 1,) borders between the characters of a line in px."""
    edges = np.empty(length + 1)
    x, end = left, 0
    for run in runs:
        if run.start > end:
            x += space
        end = run.start + len(run.text)
        edges[run.start : end + 1] = [
            x + run.font.getlength(run.text[:i]) for i in range(len(run.text) + 1)
        ]
        x = edges[end]
    return edges


def _draw_frames(
    pen: ImageDraw.ImageDraw,
    runs: Sequence[_Run],
    edges: FloatArray,
    top: int,
    style: LineStyle,
    rng: Rng,
) -> None:
    """Draw thin frames around a few characters of one to three words."""
    width = 1 if rng.random() < 0.6 else 2
    colour = int(rng.integers(style.ink, (style.ink + 2 * style.paper) // 3 + 1))
    for _ in range(int(rng.integers(1, 4))):
        run = runs[int(rng.integers(len(runs)))]
        first = int(rng.integers(len(run.text)))
        last = int(rng.integers(first, len(run.text)))
        left, ink_top, right, ink_bottom = run.font.getbbox(run.text[first : last + 1])
        air_x, air_y = rng.uniform(0.0, 0.12, 2) * run.font.size
        x, y = edges[run.start + first], top + run.drop
        pen.rectangle(
            (x + min(left, 0) - air_x - width, y + ink_top - air_y - width,
             x + right + air_x + width, y + ink_bottom + air_y + width),
            outline=colour, width=width,
        )  # fmt: skip


def _tight_rows(gray: Gray, style: LineStyle) -> slice:
    """Return the rows that the crop keeps: all, or the ink and a little air."""
    rows = np.flatnonzero((gray != style.paper).any(axis=1))
    if style.tight is None or not rows.size:
        return slice(0, gray.shape[0])
    first, last = int(rows[0]), int(rows[-1]) + 1
    # A lone dot or dash would be blown up to the height of a capital.
    if last - first < MIN_TIGHT * gray.shape[0]:
        return slice(0, gray.shape[0])
    air = max(1, round(style.tight * (last - first)))
    return slice(max(0, first - air), min(gray.shape[0], last + air))


def shuffle_words(text: str, share: float, rng: Rng) -> str:
    """Put a share of the words of a text in another order.

    Args:
        text: Words separated by single spaces.
        share: Share of the words that change places, in [0, 1].
        rng: Random stream.

    Returns:
        The same words; those that were drawn, permuted among their own places.
    """
    words = text.split(" ")
    count = round(len(words) * share)
    places = np.sort(rng.choice(len(words), count, replace=False))
    for place, source in zip(places, rng.permutation(places), strict=True):
        words[place] = text.split(" ")[source]
    return " ".join(words)
