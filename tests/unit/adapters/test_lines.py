"""Segmenter ``lines``: crops, requests, and what is made of the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mdiff_adapters.document import ParsedPage
from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Request
from mdiff_adapters.errors import EngineError
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.segmenters import PageImage, SegmenterOptions, choose_segmenter
from mdiff_adapters.segmenters.crops import crop_lines, split_crop
from mdiff_adapters.segmenters.detection import LineDetector, line_detector
from mdiff_adapters.segmenters.lines import LineSegmenter
from mdiff_adapters.testing import ScriptedEngine, sample_pdf

SEGMENT = Capabilities(tasks=("text",), text_unit="segment", segment_px=(896, 28), stretch=2.4)
FONT = ImageFont.load_default(30)


class FixedDetector(LineDetector):
    """Finds the given boxes (x0, y0, x1, y1) or quadrilaterals on every page."""

    def __init__(self, *boxes: Any, upside_down: float = 0.0) -> None:
        self.boxes = boxes
        self.upside_down = upside_down

    def detect(self, rgb: np.ndarray) -> np.ndarray:
        quads = [
            box if np.ndim(box) == 2 else [box[:2], (box[2], box[1]), box[2:], (box[0], box[3])]
            for box in self.boxes
        ]
        return np.array(quads, dtype=np.float32).reshape(-1, 4, 2)

    def upside_down_share(self, lines: Any) -> float:
        return self.upside_down


def draw(
    *texts: tuple[float, float, str], size: tuple[int, int] = (900, 400)
) -> tuple[Image.Image, list[tuple[float, float, float, float]]]:
    """A page with texts at (x, y), and the boxes that a detector would find around them."""
    page = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(page)
    boxes = []
    for x, y, text in texts:
        pen.text((x, y), text, font=FONT, fill="black")
        x0, y0, x1, y1 = pen.textbbox((x, y), text, font=FONT)
        boxes.append((x0 - 5, y0 - 5, x1 + 5, y1 + 5))
    return page, boxes


def page_image(image: Image.Image, index: int = 0) -> PageImage:
    return PageImage(
        index=index, label=str(index + 1), image=image, size_pt=(324.0, 144.0), source="a.pdf",
        stem="a",
    )  # fmt: skip


def read(
    image: Image.Image, detector: LineDetector, engine: ScriptedEngine, **decode: Any
) -> ParsedPage:
    [page] = LineSegmenter(detector).read(
        [page_image(image)], engine, DecodeConfig(**decode), SegmenterOptions()
    )
    return page


def scripted(script: Callable[[Request], str | Answer]) -> ScriptedEngine:
    return ScriptedEngine(script, capabilities=SEGMENT)


def ink_rows(gray: np.ndarray) -> tuple[int, int]:
    rows = np.flatnonzero((gray < 128).any(axis=1))
    return int(rows[0]), gray.shape[0] - 1 - int(rows[-1])


# --- crops


def test_a_crop_runs_from_above_the_ascenders_to_below_the_descenders() -> None:
    image, [box] = draw((50, 100, "Apply flags"))
    loose = np.array(
        [(box[0] - 4, box[1] - 9), (box[2] + 4, box[1] - 9), (box[2] + 4, box[3] + 12),
         (box[0] - 4, box[3] + 12)], dtype=np.float32,
    )  # fmt: skip
    [crop] = crop_lines(np.asarray(image.convert("L")), loose, line_px=40)
    above, below = ink_rows(crop.gray)
    assert 1 <= above <= 4
    assert 1 <= below <= 4
    assert crop.ink_px == crop.gray.shape[0] - above - below
    x0, y0 = crop.quad.min(axis=0)
    x1, y1 = crop.quad.max(axis=0)
    assert (x0, y0, x1, y1) == pytest.approx(
        ImageDraw.Draw(image).textbbox((50, 100), "Apply flags", font=FONT), abs=4
    )


def test_neighbours_specks_and_frames_are_left_out_of_a_crop() -> None:
    alone, [box] = draw((50, 100, "middle of a page"))
    crowded, _ = draw(
        (50, 100, "middle of a page"), (50, 66, "gypsy quay jig"), (50, 134, "Lift hall")
    )
    pen = ImageDraw.Draw(crowded)
    pen.rectangle((40, 60, 330, 180), outline="black", width=2)
    pen.line((40, 140, 330, 140), fill="black", width=2)
    pen.ellipse((200, 133, 203, 136), fill="black")
    crops = []
    for image in (alone, crowded):
        quad = FixedDetector(box).detect(np.asarray(image))[0]
        [crop] = crop_lines(np.asarray(image.convert("L")), quad, line_px=40)
        crops.append(crop.gray)
    assert crops[0].shape == pytest.approx(crops[1].shape, abs=2)
    height, width = (min(sides) for sides in zip(*(c.shape for c in crops), strict=True))
    differing = np.abs(crops[0][:height, :width].astype(int) - crops[1][:height, :width]) > 100
    assert differing.mean() < 0.01


def test_a_box_that_reaches_into_the_next_line_gives_its_own_line() -> None:
    image, boxes = draw((50, 100, "The title"), (10, 140, "MIDI SEQUENCE RECORDER"))
    (x0, y0, x1, _), below = boxes
    quad = FixedDetector((x0, y0, x1, below[1] + 20)).detect(np.asarray(image))[0]
    [crop] = crop_lines(np.asarray(image.convert("L")), quad, line_px=40)
    top, bottom = ImageDraw.Draw(image).textbbox((0, 0), "The title", font=FONT)[1::2]
    assert crop.ink_px == pytest.approx(bottom - top, abs=2)


@pytest.mark.parametrize("degrees", [-2.0, -0.8, 1.0, 2.0])
def test_a_sloping_line_is_made_level_even_in_a_level_box(degrees: float) -> None:
    image, _ = draw((100, 180, "a level line of text that is long enough"))
    matrix = cv2.getRotationMatrix2D((450, 200), degrees, 1.0)
    turned = cv2.warpAffine(np.asarray(image.convert("L")), matrix, (900, 400), borderValue=255)
    rows, columns = np.nonzero(turned < 128)
    x0, y0, x1, y1 = columns.min(), rows.min(), columns.max(), rows.max()
    quad = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], dtype=np.float32)
    level, _ = draw((100, 180, "a level line of text that is long enough"))
    _, top, _, bottom = ImageDraw.Draw(level).textbbox((0, 0), "a long line", font=FONT)
    [crop] = crop_lines(turned, quad, line_px=36)
    assert crop.ink_px <= bottom - top + 4


def test_a_letter_that_touches_the_next_line_does_not_stretch_the_crop() -> None:
    image, [box] = draw((50, 100, "surrogates"))
    free = FixedDetector(box).detect(np.asarray(image))[0]
    [alone] = crop_lines(np.asarray(image.convert("L")), free, line_px=40)
    ImageDraw.Draw(image).line((150, 125, 150, 150), fill="black", width=3)
    [touched] = crop_lines(np.asarray(image.convert("L")), free, line_px=40)
    assert touched.ink_px <= alone.ink_px + 4
    assert not (touched.gray[-1] < 128).any()


def test_a_crop_is_split_in_its_gutter_and_keeps_its_places() -> None:
    image, boxes = draw((50, 100, "left column"), (450, 100, "right column"))
    whole = FixedDetector((boxes[0][0], boxes[0][1], boxes[1][2], boxes[1][3]))
    [crop] = crop_lines(
        np.asarray(image.convert("L")), whole.detect(np.asarray(image))[0], line_px=40
    )
    split = split_crop(crop, 0.3, 0.8)
    assert split is not None
    for part, box in zip(split, boxes, strict=True):
        x0, x1 = part.quad[:, 0].min(), part.quad[:, 0].max()
        assert (x0, x1) == pytest.approx((box[0] + 5, box[2] - 5), abs=5)
        assert part.gray.shape[1] == pytest.approx(x1 - x0, abs=2)
    assert split_crop(crop, 0.0, 0.1) is None
    assert split_crop(crop, 0.9, 0.8) is None


def test_a_box_across_two_columns_becomes_two_lines() -> None:
    image, boxes = draw(*((x, 50 + 50 * n, "some words here") for n in range(3) for x in (40, 480)))
    across = (boxes[2][0], boxes[2][1], boxes[3][2], boxes[3][3])
    engine = scripted(lambda request: f"line {request.id[3:-2]}")
    page = read(image, FixedDetector(*boxes[:2], across, *boxes[4:]), engine)
    assert [line.text for region in page.regions for line in region.lines] == [
        f"line {n}" for n in (0, 2, 4, 1, 3, 5)
    ]


def test_a_box_around_two_lines_gives_both() -> None:
    image, _ = draw((50, 100, "the first line"), (50, 150, "and the second"))
    quad = FixedDetector((45, 95, 280, 190)).detect(np.asarray(image))[0]
    upper, lower = crop_lines(np.asarray(image.convert("L")), quad, line_px=38)
    assert upper.quad[:, 1].max() < lower.quad[:, 1].min() + 6
    assert upper.ink_px == pytest.approx(lower.ink_px, abs=8)


@pytest.mark.parametrize("shade", [0, 128, 255])
def test_an_empty_box_gives_no_crop(shade: int) -> None:
    page = np.full((100, 300), shade, dtype=np.uint8)
    quad = FixedDetector((20, 20, 200, 60)).detect(page)[0]
    assert crop_lines(page, quad, line_px=40) == []
    assert crop_lines(page, quad[:1].repeat(4, axis=0), line_px=40) == []


def test_a_box_that_reaches_out_of_the_page_is_no_trouble() -> None:
    image, _ = draw((0, 0, "corner"), size=(120, 40))
    quad = FixedDetector((-6, -6, 110, 38)).detect(np.asarray(image))[0]
    [crop] = crop_lines(np.asarray(image.convert("L")), quad, line_px=36)
    assert crop.gray.shape[0] > 14
    assert (crop.gray < 128).any()


def test_light_text_on_dark_paper_is_cropped_as_it_is() -> None:
    image, [box] = draw((50, 100, "Apply flags"))
    inverse = 255 - np.asarray(image.convert("L"))
    quad = FixedDetector(box).detect(inverse)[0]
    [dark] = crop_lines(255 - inverse, quad, line_px=40)
    [light] = crop_lines(inverse, quad, line_px=40)
    assert dark.gray.shape == light.gray.shape
    assert np.abs((255 - dark.gray.astype(int)) - light.gray).mean() < 3


# --- requests


def test_all_lines_of_all_pages_are_one_call() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 100, "another line"))
    engine = scripted(lambda request: request.id)
    pages = [page_image(image, index) for index in (3, 4)]
    result = LineSegmenter(FixedDetector(*boxes)).read(
        pages, engine, DecodeConfig(threshold=0.5), SegmenterOptions()
    )
    assert engine.num_calls == 1
    assert [page.index for page in result] == [3, 4]
    assert {asked.size_px for asked in engine.asked} == {(896, 28)}
    assert {asked.threshold for asked in engine.asked} == {0.5}
    assert [asked.origin["page"] for asked in engine.asked] == [3, 3, 4, 4]
    assert engine.asked[0].origin["stem"] == "a"


def test_an_engine_for_regions_gets_whole_lines() -> None:
    image, boxes = draw((50, 50, "one line that is rather long, longer than any canvas is wide"))
    engine = ScriptedEngine(lambda request: "text")
    page = read(image, FixedDetector(*boxes), engine)
    [asked] = engine.asked
    assert asked.size_px[0] > 600
    assert page.regions[0].text == "text"


def test_pieces_are_joined_by_spaces_only_at_gaps() -> None:
    image, boxes = draw((10, 50, "word " * 12))
    engine = scripted(lambda request: request.id[-1])
    page = read(image, FixedDetector(*boxes), engine)
    assert len(engine.asked) >= 2
    assert page.regions[0].text == " ".join(str(n) for n in range(len(engine.asked)))
    solid = Image.new("RGB", (900, 60), "white")
    ImageDraw.Draw(solid).rectangle((10, 20, 880, 24), fill="black")
    for x in range(10, 880, 3):
        ImageDraw.Draw(solid).line((x, 14, x, 30), fill="black")
    engine = scripted(lambda request: "x")
    page = read(solid, FixedDetector((8, 10, 884, 34)), engine)
    assert len(engine.asked) >= 2
    assert page.regions[0].text == "x" * len(engine.asked)


@pytest.mark.parametrize("image", [Image.new("RGB", (300, 200), c) for c in ("white", "gray")])
def test_a_blank_page_asks_nothing(image: Image.Image) -> None:
    engine = scripted(lambda request: "made up")
    page = read(image, FixedDetector((10, 10, 90, 40)), engine)
    assert (page.status, page.regions, engine.num_calls) == ("blank", (), 0)


def test_a_page_without_lines_is_blank() -> None:
    image, _ = draw((50, 50, "x"))
    engine = scripted(lambda request: "made up")
    assert read(image, FixedDetector(), engine).status == "blank"
    assert engine.num_calls == 0


class ShortSighted(FixedDetector):
    """Sees its boxes only in pictures that are no wider than ``limit_px``."""

    def __init__(self, limit_px: int, *boxes: Any) -> None:
        super().__init__(*boxes)
        self.limit_px = limit_px

    def detect(self, rgb: np.ndarray) -> np.ndarray:
        return super().detect(rgb)[: len(self.boxes) * (rgb.shape[1] <= self.limit_px)]


def test_a_few_words_on_a_huge_page_are_found_where_the_ink_is() -> None:
    image, [box] = draw((1500, 900, "a few words"), size=(3000, 2000))
    x0, y0, x1, y1 = box
    pad = 8
    inside = (pad, pad, pad + x1 - x0 - 10, pad + y1 - y0 - 10)
    page = read(image, ShortSighted(1000, inside), scripted(lambda request: "a few words"))
    [region] = page.regions
    left, top, right, bottom = region.bbox.scaled(image.size)
    assert (left, top) == pytest.approx((x0 + 5, y0 + 5), abs=12)
    assert (right, bottom) == pytest.approx((x1 - 5, y1 - 5), abs=12)


def test_ink_without_a_line_of_text_is_told() -> None:
    image, _ = draw((50, 50, "x"))
    page = read(image, FixedDetector(), scripted(lambda request: "made up"))
    assert page.status == "blank"
    assert "no text line was found" in page.warnings[0].message
    blank = read(Image.new("RGB", (300, 200), "white"), FixedDetector(), scripted(lambda r: "x"))
    assert blank.warnings == ()


@pytest.mark.parametrize("segmenter", ["lines", "model"])
def test_what_the_page_image_warned_of_is_told_once(segmenter: str) -> None:
    engine = ScriptedEngine(lambda request: "")
    parser = DocumentParser(engine, segmenter=segmenter, max_pixels=20_000)
    [page] = parser.parse(sample_pdf(1)).pages
    assert sum("dpi in place of" in warning.message for warning in page.warnings) == 1


# --- answers


def test_regions_lines_boxes_and_counts() -> None:
    image, boxes = draw(
        (50, 50, "The first line of a paragraph"), (50, 90, "and the second of it.")
    )
    texts = {"p0l0s0": "The first line of a para-", "p0l1s0": "graph and more"}
    engine = scripted(lambda request: texts.get(request.id, ""))
    page = read(image, FixedDetector(*boxes), engine)
    [region] = page.regions
    assert (region.id, region.order, region.type, region.angle) == ("p0r0", 0, "text", 0)
    assert region.text == "The first line of a paragraph and more"
    assert [line.text for line in region.lines] == ["The first line of a para-", "graph and more"]
    x0, y0, x1, y1 = region.bbox.scaled(image.size)
    assert (x0, y0) == pytest.approx((50, 55), abs=8)
    assert (x1, y1) == pytest.approx((boxes[0][2] - 5, boxes[1][3] - 5), abs=8)
    assert page.size_px == image.size
    assert page.status == "ok"
    assert page.num_tokens == sum(len(text) for text in texts.values())
    assert page.num_forwards == len(engine.asked)
    assert region.confidence == 1.0
    assert region.finish_reason == "stop"


def test_confidence_is_weighted_by_tokens() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 90, "another line"))

    def script(request: Request) -> Answer:
        first = request.id.startswith("p0l0")
        return Answer(
            id=request.id, text="one line" if first else "another line",
            confidence=0.5 if first else 1.0, num_tokens=1 if first else 3,
        )  # fmt: skip

    [region] = read(image, FixedDetector(*boxes), scripted(script)).regions
    assert region.confidence == pytest.approx((0.5 + 3 * 1.0) / 4)


def again(
    first: Answer, second: Answer, capabilities: Capabilities = SEGMENT
) -> tuple[ParsedPage, list[Request]]:
    """Read two lines of which one is answered ``first``, then ``second`` if it is asked again."""
    image, boxes = draw((50, 50, "a doubtful line"), (50, 90, "a sure line"))
    asked: list[Request] = []

    def script(request: Request) -> Answer:
        asked.append(request)
        given = {"p0l0s0": first, "p0l0agains0": second}.get(request.id)
        return (
            replace(given, id=request.id)
            if given
            else Answer(id=request.id, text="a sure line", confidence=0.999)
        )

    engine = ScriptedEngine(script, capabilities=capabilities)
    return read(image, FixedDetector(*boxes), engine), asked


DOUBTFUL = Answer(id="", text="a doubtfull line", confidence=0.9, num_tokens=16, num_forwards=5)
SURE = Answer(id="", text="a doubtful line", confidence=0.99, num_tokens=15, num_forwards=3)


@pytest.mark.parametrize("line_air", [None, 0.04, 0.97])
def test_a_doubtful_line_is_read_again_with_more_air_and_the_surer_reading_stays(
    line_air: float | None,
) -> None:
    page, asked = again(DOUBTFUL, SURE, replace(SEGMENT, line_air=line_air))
    [region] = page.regions
    assert [line.text for line in region.lines] == ["a doubtful line", "a sure line"]
    assert region.lines[0].confidence == 0.99
    assert [request.id for request in asked] == ["p0l0s0", "p0l1s0", "p0l0agains0"]
    assert asked[2].origin == asked[0].origin
    heights = [np.ptp(np.flatnonzero((np.asarray(r.image) < 128).any(axis=(1, 2)))) for r in asked]
    assert 1 <= heights[0] - heights[2] <= 5  # the letters are a little smaller
    # What was spent on both readings is the page's cost.
    assert (page.num_tokens, page.num_forwards) == (16 + 15, 5 + 3)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DOUBTFUL, replace(SURE, text="worse", confidence=0.8)),
        (DOUBTFUL, replace(SURE, text="", finish_reason="empty", confidence=1.0)),
        (DOUBTFUL, replace(SURE, text="cut", finish_reason="length")),
        (DOUBTFUL, Answer(id="", finish_reason="timeout", error=EngineError("too late"))),
    ],
)
def test_the_first_reading_stays_where_the_second_is_not_better(
    first: Answer, second: Answer
) -> None:
    page, asked = again(first, second)
    assert page.regions[0].lines[0].text == first.text
    assert len(asked) == 3 and page.status == "ok"


def test_a_loop_gives_way_to_a_reading_that_ends() -> None:
    looped = Answer(
        id="", text="the cat " * 20, finish_reason="length", confidence=0.999, num_tokens=96
    )
    page, _ = again(looped, replace(SURE, confidence=0.7))
    assert (page.regions[0].lines[0].text, page.status) == ("a doubtful line", "ok")


@pytest.mark.parametrize(
    "first",
    [
        replace(SURE, confidence=0.99),
        replace(SURE, confidence=None),
        Answer(id="", finish_reason="error", error=EngineError("broken")),
    ],
)
def test_a_sure_line_or_a_failed_one_is_not_read_again(first: Answer) -> None:
    _, asked = again(first, SURE)
    assert len(asked) == 2


def test_an_engine_that_reads_whole_regions_is_asked_once() -> None:
    image, boxes = draw((50, 50, "one line"))
    engine = ScriptedEngine(lambda request: replace(DOUBTFUL, id=request.id))
    read(image, FixedDetector(*boxes), engine)
    assert engine.num_calls == 1


def test_larger_print_is_a_title() -> None:
    page, boxes = draw(*((50, 120 + 44 * n, "an ordinary line of text") for n in range(5)))
    pen = ImageDraw.Draw(page)
    large = ImageFont.load_default(48)
    pen.text((50, 30), "A large Title", font=large, fill="black")
    x0, y0, x1, y1 = pen.textbbox((50, 30), "A large Title", font=large)
    engine = scripted(lambda r: "A large Title" if r.id == "p0l5s0" else "an ordinary line of type")
    result = read(page, FixedDetector(*boxes, (x0 - 6, y0 - 6, x1 + 6, y1 + 6)), engine)
    assert [region.type for region in result.regions] == ["title", "text"]
    assert result.regions[0].text == "A large Title"


@pytest.mark.parametrize(
    ("reason", "text", "expected", "status", "flags"),
    [
        ("stop", "some text", "some text", "ok", ()),
        ("length", "some text", "some text", "partial", ("truncated",)),
        ("length", "the cat " * 20, "the cat", "partial", ("truncated",)),
        ("stop", "ha ha ha <|im_end|>junk", "ha ha ha", "ok", ()),
        ("stop", "a<|MASK|>b", "ab", "ok", ()),
    ],
)
def test_how_an_answer_ended_is_kept(
    reason: Any, text: str, expected: str, status: str, flags: tuple[str, ...]
) -> None:
    image, boxes = draw((50, 50, "one line"))
    engine = scripted(
        lambda r: Answer(id=r.id, text=text, finish_reason=reason, confidence=0.9, num_tokens=9)
    )
    page = read(image, FixedDetector(*boxes), engine)
    [region] = page.regions
    assert (region.text.strip(), page.status, region.flags) == (expected, status, flags)
    assert region.raw == text


def test_a_line_that_fails_costs_only_itself() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 250, "another line"))

    def script(request: Request) -> str:
        if request.id == "p0l0s0":
            raise EngineError("out of memory")
        return "another line"

    page = read(image, FixedDetector(*boxes), scripted(script))
    failed, good = page.regions
    assert page.status == "partial"
    assert (failed.text, failed.finish_reason) == ("", "error")
    assert failed.error is not None
    assert (failed.error.kind, failed.error.region) == ("EngineError", "p0r0")
    assert "out of memory" in failed.error.message
    assert (good.text, good.error) == ("another line", None)


def test_a_page_none_of_whose_lines_can_be_read_has_failed() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 250, "another line"))

    def script(request: Request) -> str:
        raise EngineError("out of memory")

    page = read(image, FixedDetector(*boxes), scripted(script))
    assert page.status == "failed"
    assert page.error is not None
    assert "none of its 2 lines could be read" in page.error.message
    assert page.error.message.startswith("a.pdf, page 1: ")


def test_lines_that_read_as_nothing_are_left_out() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 250, "a smudge"))
    engine = scripted(lambda request: "" if request.id == "p0l1s0" else "one line")
    page = read(image, FixedDetector(*boxes), engine)
    assert [region.text for region in page.regions] == ["one line"]
    assert page.status == "ok"
    assert [note.message for note in page.warnings] == ["1 of 2 lines were read as nothing"]
    assert page.problems == ()


def test_a_page_whose_lines_all_read_as_nothing_is_no_ordinary_blank() -> None:
    image, boxes = draw((50, 50, "one line"), (50, 250, "another"))
    page = read(image, FixedDetector(*boxes), scripted(lambda request: ""))
    assert (page.status, page.regions) == ("blank", ())
    assert [note.message for note in page.problems] == ["2 of 2 lines were read as nothing"]


def test_a_detector_that_breaks_on_one_page_keeps_the_others() -> None:
    image, boxes = draw((50, 50, "one line"))

    class Moody(FixedDetector):
        def detect(self, rgb: np.ndarray) -> np.ndarray:
            if rgb.shape[1] == 901:
                raise RuntimeError("odd width")
            return super().detect(rgb)

    odd, _ = draw((50, 50, "one line"), size=(901, 400))
    pages = [page_image(odd, 0), page_image(image, 1)]
    engine = scripted(lambda request: "one line")
    bad, good = LineSegmenter(Moody(*boxes)).read(pages, engine, DecodeConfig(), SegmenterOptions())
    assert bad.status == "failed"
    assert bad.error is not None
    assert bad.error.stage == "segment"
    assert "odd width" in bad.error.message
    assert (good.status, good.regions[0].text) == ("ok", "one line")


# --- orientation


@pytest.mark.parametrize(("angle", "share"), [(0, 0.1), (90, 0.1), (180, 0.9), (270, 0.9)])
def test_turned_pages_are_read_upright_and_keep_their_frame(angle: int, share: float) -> None:
    texts = ("The first of two lines", "and here is the second")
    upright, _ = draw((80, 60, texts[0]), (80, 200, texts[1]), size=(700, 300))
    # The page as scanned: a counter-clockwise turn by `angle` makes it upright again.
    page = upright.rotate(-angle, expand=True)
    size = np.array(page.size)
    boxes = []
    for y, text in zip((60, 200), texts, strict=True):
        x0, y0, x1, y1 = ImageDraw.Draw(upright).textbbox((80, y), text, font=FONT)
        corners = np.array([(x0 - 5, y0 - 5), (x1 + 5, y1 + 5)], dtype=float) - (350, 150)
        turn = np.radians(angle)
        matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        (ax, ay), (bx, by) = corners @ matrix + size / 2
        boxes.append((min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)))
    seen: dict[str, np.ndarray] = {}

    def script(request: Request) -> str:
        seen[request.id] = np.asarray(request.image.convert("L"))
        return texts[int(request.id[3])]

    result = read(page, FixedDetector(*boxes, upside_down=share), scripted(script))
    assert [region.text for region in result.regions] == list(texts)
    assert {region.angle for region in result.regions} == {angle}
    for region, box in zip(result.regions, boxes, strict=True):
        assert region.bbox.scaled(page.size) == pytest.approx(box, abs=9)
    expected = read_pieces(upright, texts)
    for number, image in enumerate(expected):
        assert np.abs(seen[f"p0l{number}s0"].astype(int) - image).mean() < 5


def read_pieces(upright: Image.Image, texts: tuple[str, ...]) -> list[np.ndarray]:
    """The first piece of each line of an upright page."""
    pieces: dict[str, np.ndarray] = {}

    def script(request: Request) -> str:
        pieces[request.id] = np.asarray(request.image.convert("L")).astype(int)
        return "x"

    boxes = []
    for y, text in zip((60, 200), texts, strict=True):
        x0, y0, x1, y1 = ImageDraw.Draw(upright).textbbox((80, y), text, font=FONT)
        boxes.append((x0 - 5, y0 - 5, x1 + 5, y1 + 5))
    read(upright, FixedDetector(*boxes), scripted(script))
    return [pieces[f"p0l{n}s0"] for n in range(len(texts))]


def test_a_lone_digit_is_not_taken_for_sideways_text() -> None:
    image, boxes = draw((50, 50, "an ordinary line of text"), (50, 100, "1"))
    x0, y0, _, y1 = boxes[1]
    engine = scripted(lambda request: "1" if request.id == "p0l1s0" else "an ordinary line of text")
    page = read(image, FixedDetector(boxes[0], (x0 + 2, y0, x0 + 20, y1 + 2)), engine)
    assert {region.angle for region in page.regions} == {0}


def test_text_along_the_edge_of_a_page_comes_last() -> None:
    image, boxes = draw((200, 50, "an ordinary line of text"), (200, 90, "and another line of it"))
    edge, _ = draw((5, 5, "printed along the edge"), size=(340, 44))
    image.paste(edge.rotate(90, expand=True), (20, 20))
    engine = scripted(
        lambda request: "printed along the edge" if request.id.startswith("p0l0") else "a line"
    )
    page = read(image, FixedDetector((18, 30, 66, 356), *boxes), engine)
    assert page.regions[-1].text == "printed along the edge"
    assert page.regions[-1].angle == 90


# --- the real detector


def test_the_real_detector_finds_reads_and_stays_quiet(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    image, boxes = draw((60, 60, "Reading by the line"), (60, 120, "is what this is about."))
    quads = line_detector().detect(np.asarray(image))
    assert len(quads) == 2
    for quad, box in zip(sorted(quads.tolist(), key=lambda q: q[0][1]), boxes, strict=True):
        assert (*np.min(quad, axis=0), *np.max(quad, axis=0)) == pytest.approx(box, abs=14)
    assert line_detector() is line_detector()
    assert len(line_detector().detect(np.full((200, 300, 3), 255, np.uint8))) == 0
    upright = [np.asarray(image.crop(tuple(int(v) for v in box)).convert("L")) for box in boxes]
    assert line_detector().upside_down_share(upright) < 0.3
    assert line_detector().upside_down_share([np.rot90(crop, 2) for crop in upright]) > 0.7
    assert line_detector().upside_down_share([]) == 0.0
    assert capfd.readouterr() == ("", "")


def test_a_page_is_looked_at_once_and_small_print_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = line_detector()
    looked_at: list[int] = []
    inner = detector._ocr

    def watched(image: np.ndarray, **options: Any) -> Any:
        looked_at.append(max(image.shape))
        return inner(image, **options)

    monkeypatch.setattr(detector, "_ocr", watched)
    page = Image.new("RGB", (1600, 300), "white")
    pen = ImageDraw.Draw(page)
    pen.text((100, 100), "large enough", font=ImageFont.load_default(60), fill="black")
    assert len(detector.detect(np.asarray(page))) == 1
    assert looked_at == [1280]
    pen.rectangle((0, 0, 1600, 300), fill="white")
    pen.text((100, 100), "small print", font=ImageFont.load_default(12), fill="black")
    detector.detect(np.asarray(page))
    assert looked_at == [1280, 1280, 1600]


def test_the_segmenter_follows_from_the_engine() -> None:
    assert choose_segmenter(SEGMENT) == "lines"
    assert choose_segmenter(Capabilities()) == "model"
    assert choose_segmenter(Capabilities(tasks=("text", "table"))) == "lines"
