"""Drawn pages, printed and scanned in several ways, through detector, crops and checkpoint.

``python -m tests.benchmarks.bench_pages [--engine tiny] [--pages 6] [--air 0.05 0.11]``

Constants of the line crops are judged here, on pages that nobody owns, and not on the real files
whose figures are reported. Text: the words of Python's language reference. Fonts: every regular
face found that a book or a magazine would be set in; which ones is printed, since others give other
figures. The last stdout line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from rapidfuzz.distance import Levenshtein

from mdiff_adapters.engines import DecodeConfig, open_engine
from mdiff_adapters.segmenters import PageImage, SegmenterOptions, crops
from mdiff_adapters.segmenters.detection import LineDetector
from mdiff_adapters.segmenters.lines import LineSegmenter
from mdiff_core.training.data import effects
from mdiff_core.training.data.fonts import Font, font_set
from mdiff_core.training.data.regions import wrap
from mdiff_core.training.data.sample import generator, to_gray
from mdiff_core.training.data.texts import prose_words

Gray = npt.NDArray[np.uint8]
Rng = np.random.Generator

FACES = ("serif-regular", "sans-regular", "termes-regular", "pagella-regular", "schola-regular",
         "heros-regular", "linlibertine_r.", "garamond12-regular", "caladea-regular",
         "carlito-regular", "lato-regular", "c059-roman", "p052-roman", "nimbusroman-regular",
         "dejavuserif.", "dejavusans.")  # fmt: skip
SIZE_PX = (1500, 1300)
MARGIN_PX = 100
POINTS = (8.5, 9.0, 9.5, 10.0, 11.0)
DPI = 300


def _grain(gray: Gray, rng: Rng, levels: float, radius_px: float) -> Gray:
    return to_gray(gray + cv2.GaussianBlur(rng.normal(0, levels, gray.shape), (0, 0), radius_px))


def clean(page: Gray, rng: Rng, line_px: float) -> Gray:
    """Born digital."""
    return page


def gray_scan(page: Gray, rng: Rng, line_px: float) -> Gray:
    """A grey scan, a little soft and noisy, as JPEG."""
    for effect in (effects.blur, effects.noise, effects.jpeg):
        page = effect(page, rng, 0.5, line_px)
    return page


def low_resolution(page: Gray, rng: Rng, line_px: float) -> Gray:
    """A grey scan at 150 dpi."""
    half = Image.fromarray(page).resize(
        (page.shape[1] // 2, page.shape[0] // 2), Image.Resampling.BOX
    )
    page = effects.blur(np.asarray(half), rng, 0.4, line_px / 2)
    return effects.noise(page, rng, 0.4, line_px / 2)


def bilevel(page: Gray, rng: Rng, line_px: float) -> Gray:
    """Black and white, thin strokes broken here and there."""
    return effects.bilevel(effects.blur(page, rng, 0.5, line_px), rng, 0.3, line_px)


def magazine(page: Gray, rng: Rng, line_px: float) -> Gray:
    """Black and white, with much ink and ragged edges."""
    if rng.random() < 0.6:
        page = np.asarray(cv2.erode(page, np.ones((2, 2), np.uint8)))
    page = _grain(effects.blur(page, rng, 0.6, line_px), rng, 110, 1.0)
    return effects.bilevel(page, rng, 0.4, line_px)


SCANS: dict[str, Callable[[Gray, Rng, float], Gray]] = {
    "clean": clean,
    "grey": gray_scan,
    "150 dpi": low_resolution,
    "bilevel": bilevel,
    "magazine": magazine,
}


def draw(font: Font, words: tuple[str, ...], scan: str, number: int) -> tuple[Image.Image, str]:
    """Return a page of one column and its text."""
    rng = generator(7, number)
    size_px = round(float(rng.choice(POINTS)) * DPI / 72)
    lead = round(size_px * float(rng.choice([1.1, 1.2, 1.3])))
    width, height = SIZE_PX
    start = int(rng.integers(len(words) - 1000))
    text = [w for w in words[start : start + 1000] if w.isascii() and font.draws(w)]
    lines = wrap(text, font.at(size_px), width - 2 * MARGIN_PX)
    lines = lines[: (height - 2 * MARGIN_PX) // lead]
    image = Image.new("L", SIZE_PX, 255)
    pen = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        pen.text((MARGIN_PX, MARGIN_PX + row * lead), " ".join(line), 15, font.at(size_px))
    gray = SCANS[scan](np.asarray(image), rng, 1.2 * size_px)
    return Image.fromarray(gray).convert("RGB"), " ".join(" ".join(line) for line in lines)


class Remembering(LineDetector):
    """The detector, asked once about each page: only what comes after it differs between runs."""

    def __init__(self) -> None:
        super().__init__(os.cpu_count())
        self._found: dict[bytes, npt.NDArray[np.float32]] = {}

    def detect(self, rgb: Gray) -> npt.NDArray[np.float32]:
        """Return the boxes of a page."""
        key = hashlib.sha256(rgb.tobytes()).digest()
        if key not in self._found:
            self._found[key] = super().detect(rgb)
        return self._found[key]


def error(engine: str, detector: LineDetector, pages: list[tuple[Image.Image, str]]) -> float:
    """Return characters wrong / characters over whole pages, line ends being spaces."""
    segmenter, opened = LineSegmenter(detector), open_engine(engine)
    wrong = total = 0
    for index, (image, truth) in enumerate(pages):
        page = PageImage(index=index, label=str(index + 1), image=image, size_pt=image.size)
        [read] = segmenter.read([page], opened, DecodeConfig(), SegmenterOptions())
        lines = [line.text for region in read.regions for line in region.lines]
        wrong += Levenshtein.distance(" ".join(lines), truth)
        total += len(truth)
    return wrong / total


def main(argv: list[str] | None = None) -> None:
    """Print a table and one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="tiny")
    parser.add_argument("--pages", type=int, default=len(FACES), help="pages of each scan")
    parser.add_argument("--air", type=float, nargs="+", default=[crops.AIR_SHARE])
    parser.add_argument("--fonts", type=Path, nargs="*", help="folders; default: the system's")
    parser.add_argument("--show", type=Path, help="write the first page of each scan here")
    options = parser.parse_args(argv)

    folders = tuple(map(str, options.fonts)) if options.fonts else None
    found = font_set(folders, ()).fonts
    names = {face: [f for f in found if face in Path(f.path).name.lower()] for face in FACES}
    faces = [fonts[0] for fonts in names.values() if fonts] or list(found[:4])
    print("fonts:", ", ".join(Path(font.path).stem for font in faces))
    words = prose_words()
    pages = {
        scan: [draw(faces[i % len(faces)], words, scan, i) for i in range(options.pages)]
        for scan in SCANS
    }
    for scan, drawn in pages.items():
        if options.show:
            drawn[0][0].save(options.show / f"{scan.replace(' ', '_')}.png")
    results, detector = [], Remembering()
    print("air    " + "  ".join(f"{scan:>8}" for scan in SCANS) + "       all")
    for air in options.air:
        crops.AIR_SHARE = air
        errors = {scan: error(options.engine, detector, drawn) for scan, drawn in pages.items()}
        errors["all"] = float(np.mean(list(errors.values())))
        print(f"{air:.3f}  " + "  ".join(f"{value:8.2%}" for value in errors.values()), flush=True)
        results.append({"air": air, "character_error": errors})
    print(json.dumps({"engine": options.engine, "pages_each": options.pages, "results": results}))


if __name__ == "__main__":
    main()
