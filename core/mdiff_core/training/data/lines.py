"""Drawn text lines, and the pieces of them that a ``segment`` checkpoint reads.

A line goes through the same preparation as in inference (:mod:`mdiff_core.segments`), so what is
learned is what will be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mdiff_core.config import Capabilities
from mdiff_core.segments import LEFT_MARGIN_PX, RIGHT_MARGIN_PX, cut_line, prepare_piece
from mdiff_core.training.config import require
from mdiff_core.training.data.effects import GRADES, damage
from mdiff_core.training.data.fonts import Font, FontSet, font_set
from mdiff_core.training.data.sample import Boxes, Gray, Sample, generator
from mdiff_core.training.data.texts import TextMix, prose_words

Rng = np.random.Generator

DEFAULT_TEXTS: Mapping[str, float] = {
    "prose": 0.4, "words": 0.2, "numbers": 0.17, "random": 0.15, "confusable": 0.08
}  # fmt: skip
SPARE_PX = 12
"""Room kept on the canvas for kerning that a reordering of words changes."""


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
        self._fonts = options.open_fonts()
        self._texts = options.open_texts()

    @property
    def fingerprint(self) -> str:
        """What the drawn data depend on besides the settings."""
        return f"{self._fonts.fingerprint}, {len(self._texts.words)} words"

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        rng = generator(seed, index)
        kind, text = self._texts.draw(rng, self.options.max_chars)
        size = int(rng.integers(self.options.sizes_px[0], self.options.sizes_px[1] + 1))
        text, font = choose_font(text, self._fonts, rng)
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
        if found is None:
            # Damage can take all contrast away; what nobody could read teaches nothing.
            found, effects = self._prepare(gray, boxes), []
        if found is None:
            raise ValueError(f"line {text!r} in {font.path} has no ink")
        origin = {"kind": kind, "font": font.path, "grade": GRADES[grade], "effects": effects}
        return Sample(image=found[0], text=text, boxes=found[1], origin=origin)

    def _fit(self, text: str, font: ImageFont.FreeTypeFont, style: LineStyle) -> str:
        """Cut a text to what the canvas of a piece holds: at a word where it has several."""
        if self._capabilities.segment_px is None:
            return text
        width, height = self._capabilities.segment_px
        room = width - LEFT_MARGIN_PX - RIGHT_MARGIN_PX - SPARE_PX
        scale = height / style.height(font) * self._capabilities.stretch
        words = text.split(" ")
        while len(words) > 1 and style.width(font, " ".join(words)) * scale > room:
            words.pop()
        text = " ".join(words)
        while len(text) > 1 and style.width(font, text) * scale > room:
            text = text[:-1]
        return text

    def _prepare(self, gray: Gray, boxes: Boxes) -> tuple[Image.Image, Boxes] | None:
        unit = self._capabilities
        if unit.segment_px is None:
            return Image.fromarray(gray).convert("RGB"), boxes
        pieces = cut_line(gray, segment_px=unit.segment_px, stretch=unit.stretch)
        if len(pieces) != 1:
            return None
        height = unit.segment_px[1]
        width = max(1, round(gray.shape[1] * height / gray.shape[0] * unit.stretch))
        # Air before the ink may have been cut off; a single piece always ends with the line.
        start = width - pieces[0].pixels.shape[1]
        scaled = boxes * np.array([width / gray.shape[1], height / gray.shape[0]] * 2, np.float32)
        scaled[:, [0, 2]] += LEFT_MARGIN_PX - start
        return prepare_piece(pieces[0], segment_px=unit.segment_px), scaled


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a line is cropped, spaced and inked.

    Attributes:
        above: Air above the ascender, as a share of the font's height.
        below: Air below the descender.
        left: Air before the text, as a share of the font's height.
        right: Air after it.
        spread: Horizontal scale of the glyphs.
        ink: Grey value of the text.
        paper: Grey value of the background.
        neighbours: Whether parts of the lines above and below look into the crop.
    """

    above: float
    below: float
    left: float
    right: float
    spread: float
    ink: int
    paper: int
    neighbours: bool

    @classmethod
    def draw(cls, rng: Rng) -> LineStyle:
        """Draw a style."""
        paper = int(rng.integers(225, 256)) if rng.random() < 0.7 else int(rng.integers(150, 256))
        ink = int(rng.integers(0, max(1, min(paper - 70, 110))))
        # Tight crops cut into the air of the font, wide ones add to it.
        above, below = rng.uniform(-0.08, 0.2, 2)
        left, right = rng.uniform(0.0, 0.45, 2)
        return cls(
            above=float(above),
            below=float(below),
            left=float(left),
            right=float(right),
            spread=float(rng.uniform(0.85, 1.2)) if rng.random() < 0.3 else 1.0,
            ink=ink,
            paper=paper,
            neighbours=bool(rng.random() < 0.1),
        )

    def height(self, font: ImageFont.FreeTypeFont) -> int:
        """Return the height in px of a line in ``font``."""
        ascent, descent = font.getmetrics()
        return max(8, round((ascent + descent) * (1 + self.above + self.below)))

    def width(self, font: ImageFont.FreeTypeFont, text: str) -> float:
        """Return the width in px of a line with ``text``."""
        air = sum(font.getmetrics()) * (self.left + self.right)
        return font.getlength(text) * self.spread + air


def choose_font(text: str, fonts: FontSet, rng: Rng) -> tuple[str, Font]:
    """Return a random font that can draw ``text``, and what of ``text`` it draws.

    Where no font has every character, the characters that the drawn font lacks are left out.
    """
    covering = fonts.covering(text)
    if covering:
        return text, covering[int(rng.integers(len(covering)))]
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
        rng: For what stands above and below.

    Returns:
        Grey values and the (len(text), 4) boxes of the characters in px.
    """
    ascent, descent = font.getmetrics()
    full = ascent + descent
    height = style.height(font)
    natural = max(1, round(style.width(font, text) / style.spread))
    image = Image.new("L", (natural, height), style.paper)
    pen = ImageDraw.Draw(image)
    left, top = full * style.left / style.spread, round(full * style.above)
    pen.text((left, top), text, font=font, fill=style.ink)
    if style.neighbours:
        order = "".join(rng.permutation(list(text)))
        step = round(full * float(rng.uniform(0.95, 1.1)))
        for offset in (-step, step):
            pen.text((left, top + offset), order, font=font, fill=style.ink)
    width = max(1, round(natural * style.spread))
    if width != natural:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    edges = np.array([left + font.getlength(text[:i]) for i in range(len(text) + 1)]) * (
        width / natural
    )
    boxes = np.empty((len(text), 4), np.float32)
    boxes[:, 0], boxes[:, 2] = edges[:-1], edges[1:]
    boxes[:, 1], boxes[:, 3] = top, top + full
    return np.asarray(image), boxes


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
