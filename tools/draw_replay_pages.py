"""Draw the recorded pages that tests and examples replay: two pages with every kind of region.

Run from the repository root: ``python tools/draw_replay_pages.py [FOLDER]``. The text is our own;
the answers are what a model that makes no mistakes would say, in the form of a recorded folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE_PX = (850, 1100)
FOLDER = Path("tests/data/replay")
ROTATIONS = {0: "up", 90: "right", 180: "down", 270: "left"}


@dataclass(frozen=True)
class Part:
    """One region: type, box in thousandths of the page, the model's answer, and what is drawn."""

    type: str
    box: tuple[int, int, int, int]
    content: str | None
    drawn: str | None = None
    size_px: int = 15
    angle: int = 0

    @property
    def box_px(self) -> tuple[int, int, int, int]:
        """The box in pixels."""
        width, height = SIZE_PX
        x0, y0, x1, y1 = self.box
        return (x0 * width // 1000, y0 * height // 1000, x1 * width // 1000, y1 * height // 1000)


LEFT = (
    "Tide gauges along the coast have been read by hand since 1912. The readings stand in bound "
    "volumes, one line an hour, and nobody had compared the volumes with each other. We did: of "
    "the 61 320 lines of the year 1938, 214 differ between the station's book and the copy."
)
RIGHT = (
    "Most of the differences are single digits. They are not spread evenly over the year: two "
    "thirds of them were written between 22 and 4 o'clock, and a copy made on a Monday holds "
    r"\(1.8\) times as many as one made on a Friday. A second reading costs $40 a volume."
)
ITEMS = (
    "Read every page twice, by two readers.",
    "Compare the readings line by line.",
    "Look at the page again where they differ.",
)
HOURS = [["Station", "Lines", "Errors"], ["North pier", "8 760", "31"], ["Lock", "8 760", "12"]]

PAGE_1 = [
    Part("header", (100, 40, 500, 60), "Notes on reading old tables", size_px=13),
    Part("title", (100, 85, 900, 120), "What two copies of one book say", size_px=28),
    Part("text", (100, 150, 485, 320), LEFT),
    Part("title", (100, 335, 400, 358), "1 Method", size_px=20),
    Part("text", (110, 370, 485, 390), ITEMS[0]),
    Part("text", (110, 392, 485, 412), ITEMS[1]),
    Part("text", (110, 414, 485, 434), ITEMS[2]),
    Part("list", (110, 370, 485, 434), "\n".join(ITEMS), drawn=""),
    Part("equation", (110, 460, 480, 500), "\\[\ne = \\frac {n _ {d}}{n} \\tag {1}\n\\]",
         drawn="e = n_d / n          (1)", size_px=20),
    Part("text", (515, 150, 900, 320), RIGHT),
    Part("image", (530, 345, 880, 560), None, drawn="chart"),
    Part("image_caption", (530, 570, 880, 592), "Figure 1: Differences by hour of the day."),
    Part("table_caption", (100, 640, 900, 660), "Table 1: Lines and differences, 1938."),
    Part("table", (100, 665, 900, 760),
         "".join("<fcel>" + "<fcel>".join(row) + "<nl>" for row in HOURS), drawn="table"),
    Part("table_footnote", (100, 765, 900, 785), "Errors: lines that differ in any digit.",
         size_px=13),
    Part("page_footnote", (100, 900, 900, 920), "* The volumes are kept in the town archive.",
         size_px=13),
    Part("page_number", (490, 950, 510, 968), "1", size_px=13),
]  # fmt: skip

SPANNED = (
    "<ched>Volume<ched>Night<lcel><nl><ucel><ched>22-24<ched>0-4<nl>"
    "<rhed>I<fcel>17<fcel>a < b<nl><rhed>II<ecel><fcel>9<nl>"
)
CODE = "for line in first:\n    if line != second[line.hour]:\n        report(line)"

PAGE_2 = [
    Part("header", (100, 40, 500, 60), "Notes on reading old tables", size_px=13),
    Part("title", (100, 85, 500, 110), "2 Results", size_px=20),
    Part("table", (100, 140, 300, 480), SPANNED, drawn="table", angle=90),
    Part("text", (120, 200, 280, 240), "17 a < b", drawn=""),
    Part("code_caption", (350, 140, 900, 160), "Listing 1: The comparison."),
    Part("code", (350, 165, 900, 250), CODE),
    Part("equation_block", (350, 280, 900, 380), None, drawn=""),
    Part("equation", (350, 280, 900, 328), "\\[\na = b + c \\tag {2}\n\\]",
         drawn="a = b + c          (2)", size_px=20),
    Part("equation", (350, 330, 900, 380), "\\[\nb < \\left( d \\right)\n\\]",
         drawn="b < (d)", size_px=20),
    Part("text", (350, 410, 900, 490),
         "The same hand wrote both copies. H<sub>0</sub> is rejected: a sleepy writer\n"
         "is not an un-\nusual one."),
    Part("text", (350, 410, 900, 490), "the second answer to the same box", drawn=""),
    Part("text", (100, 520, 900, 545), "The same words stand here."),
    Part("text", (100, 560, 900, 585), "The same words stand here."),
    Part("ref_text", (100, 640, 900, 680), "[1] Harbour office, Book of the tides, volume 27."),
    Part("aside_text", (930, 300, 965, 600), "Draft of 3 May", angle=270, size_px=20),
    Part("wibble", (100, 720, 900, 745), "A kind of region nobody told us about."),
    Part("page_number", (490, 950, 510, 968), "2", size_px=13),
]  # fmt: skip


def draw_page(parts: list[Part]) -> Image.Image:
    """Return the picture of a page."""
    page = Image.new("RGB", SIZE_PX, "white")
    for part in parts:
        x0, y0, x1, y1 = part.box_px
        upright = (x1 - x0, y1 - y0) if part.angle in (0, 180) else (y1 - y0, x1 - x0)
        patch = Image.new("RGB", upright, "white")
        if part.drawn == "":
            continue
        draw_part(ImageDraw.Draw(patch), part, upright)
        # The model's angle turns a crop upright, so the page has it turned the other way.
        page.paste(patch.rotate(-part.angle, expand=True), (x0, y0))
    return page


def draw_part(draw: ImageDraw.ImageDraw, part: Part, size: tuple[int, int]) -> None:
    """Draw one region upright on its own patch."""
    font = ImageFont.load_default(size=part.size_px)
    if part.drawn == "chart":
        draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline="black")
        for hour in range(24):
            height = (9 if hour < 4 or hour > 21 else 3) * size[1] // 12
            left = 6 + hour * (size[0] - 12) // 24
            draw.rectangle((left, size[1] - height, left + 8, size[1] - 2), fill="#446688")
        return
    if part.drawn == "table":
        rows = [row.replace("<lcel>", "<fcel>").replace("<ucel>", "<fcel>")
                for row in (part.content or "").split("<nl>") if row]  # fmt: skip
        for r, row in enumerate(rows):
            cells = row.replace("<ched>", "<fcel>").replace("<rhed>", "<fcel>")
            cells = cells.replace("<ecel>", "<fcel>")
            names = cells.split("<fcel>")[1:]
            top = r * size[1] // len(rows)
            draw.line((0, top, size[0], top), fill="black")
            for c, name in enumerate(names):
                draw.text((4 + c * size[0] // len(names), top + 6), name, fill="black", font=font)
        draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline="black")
        return
    text = part.drawn if part.drawn is not None else part.content or ""
    line_px = round(part.size_px * 1.35)
    top = 0
    for paragraph in text.split("\n"):
        indent = 8 * (len(paragraph) - len(paragraph.lstrip()))
        line = ""
        for word in paragraph.split():
            if line and font.getlength(f"{line} {word}") > size[0] - indent:
                draw.text((indent, top), line, fill="black", font=font)
                top += line_px
                line = ""
            line = f"{line} {word}".strip()
        draw.text((indent, top), line, fill="black", font=font)
        top += line_px


def recorded(name: str, parts: list[Part]) -> dict[str, object]:
    """Return a page in the form of a recorded folder."""
    layout = "\n".join(
        "<|box_start|>{:03d} {:03d} {:03d} {:03d}<|box_end|>".format(*part.box)
        + f"<|ref_start|>{part.type}<|ref_end|><|rotate_{ROTATIONS[part.angle]}|>"
        for part in parts
    )
    regions = [
        {
            "type": part.type,
            "bbox": [value / 1000 for value in part.box],
            "angle": part.angle,
            "content": part.content,
            "confidence": round(0.999 - 0.0007 * position, 4),
            "num_tokens": len(part.content or "") // 4,
        }
        for position, part in enumerate(parts)
    ]
    return {"page": name, "layout_output": layout, "regions": regions}


def main(folder: Path) -> None:
    """Write the pages to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, parts in enumerate((PAGE_1, PAGE_2), start=1):
        name = f"report_p{number:04d}"
        draw_page(parts).save(folder / f"{name}.jpg", quality=85)
        text = json.dumps(recorded(name, parts), ensure_ascii=False, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
