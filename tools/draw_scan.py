"""Draw examples/scan.png: a scanned letter page that belongs to nobody else.

``python tools/draw_scan.py [FONT.ttf BOLD.ttf]``; by default Liberation Serif, if it is installed.
The page is set at 200 dpi, then turned by 0.4 degrees, blurred, shaded and made noisy, all from
one seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

TARGET = Path(__file__).parent.parent / "examples" / "scan.png"
FONTS = Path("/usr/share/fonts/truetype/liberation")
SIZE = (1240, 1500)
MARGIN = 130

TITLE = "Notes on Reading Machines"
PARAGRAPHS = [
    """
    A reading machine looks at a page twice. First it finds where the lines are, then it names
    the letters in each of them. The older machines did the second part one letter after
    another, as a child spells a word. The newer ones fill in a whole line at a time: every
    letter they are sure of is written down at once, and the rest is tried again with those
    letters in view.
    """,
    """
    The gain is easy to see on paper. A line of sixty letters takes sixty looks in the old way
    and six or seven in the new. What is harder to see is the price. A letter that was written
    down too early stays, and so the machine must know how sure it is. A threshold of 95
    percent is a good place to begin.
    """,
]
HEADING = "What to keep in mind"
LIST = [
    "1. Scan at 200 dots per inch or more.",
    "2. Keep the page flat, and leave some margin.",
    "3. Look at the numbers first: 14 March 1987, 3.50, 20-25.",
    "4. Keep the picture beside the text, always.",
]
CLOSING = (
    "This page was drawn by a program, turned a little, and given the grey of an old copier. It is "
    "read by the small model that comes with the package, without a network."
)


def wrap(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Break a text into lines that fit ``width`` px."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if font.getlength(longer) > width and line:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def draw(regular: str, bold: str) -> Image.Image:
    """Set the page in black on white."""
    page = Image.new("L", SIZE, 255)
    pen = ImageDraw.Draw(page)
    text, title, heading = (
        ImageFont.truetype(name, size) for name, size in ((regular, 31), (bold, 52), (bold, 38))
    )
    y = 140

    def put(lines: list[str], font: ImageFont.FreeTypeFont, step: int, after: int) -> None:
        nonlocal y
        for line in lines:
            pen.text((MARGIN, y), line, font=font, fill=20)
            y += step
        y += after

    width = SIZE[0] - 2 * MARGIN
    put([TITLE], title, 70, 40)
    for paragraph in PARAGRAPHS:
        put(wrap(paragraph, text, width), text, 43, 36)
    put([HEADING], heading, 52, 22)
    put(LIST, text, 47, 36)
    put(wrap(CLOSING, text, width), text, 43, 0)
    return page


def scan(page: Image.Image) -> Image.Image:
    """Do what a copier does to a page."""
    rng = np.random.default_rng(7)
    turned = page.rotate(0.4, Image.Resampling.BICUBIC, fillcolor=255)
    blurred = np.asarray(turned.filter(ImageFilter.GaussianBlur(0.7)), dtype=np.float32)
    height, width = blurred.shape
    across, down = np.arange(width) / width, np.arange(height) / height
    shade = 238 - 18 * across[None, :] - 8 * down[:, None]
    grey = blurred / 255 * (shade - 40) + 40 + rng.normal(0, 2.5, blurred.shape)
    # Sixteen levels: what is left of noise after a copier, and a third of the file.
    return Image.fromarray(np.clip(np.round(grey / 16) * 16, 0, 255).astype(np.uint8))


def main() -> None:
    """Write the page."""
    names = sys.argv[1:3] or [
        str(FONTS / f"LiberationSerif-{style}.ttf") for style in ("Regular", "Bold")
    ]
    scan(draw(*names)).save(TARGET, optimize=True, dpi=(200, 200))


if __name__ == "__main__":
    main()
