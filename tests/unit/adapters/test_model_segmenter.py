"""Two-stage parsing: what is asked about a page, what is told of it, and what happens to faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from PIL import Image, ImageDraw

from mdiff_adapters.document import ParsedPage, Region
from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Request
from mdiff_adapters.errors import ConfigError, EngineError, EngineTimeoutError
from mdiff_adapters.segmenters import PageImage, SegmenterOptions
from mdiff_adapters.segmenters.model import ModelSegmenter
from mdiff_adapters.testing import ScriptedEngine

Box = tuple[int, int, int, int]
WHOLE = (0, 0, 1000, 1000)


def record(box: Box, label: str = "text", turn: str = "up") -> str:
    corners = " ".join(f"{value:03d}" for value in box)
    return f"<|box_start|>{corners}<|box_end|><|ref_start|>{label}<|ref_end|><|rotate_{turn}|>"


def page_image(index: int = 0, size: tuple[int, int] = (400, 500)) -> PageImage:
    """A page with a pattern everywhere, so that no crop of it is blank."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for x in range(0, size[0], 4):
        draw.line((x, 0, x, size[1]), fill="black")
    return PageImage(
        index=index, label=str(index + 1), image=image, size_pt=(288.0, 360.0), source="a.pdf",
        stem="a",
    )  # fmt: skip


def read(
    layout: str | Callable[[Request], str | Answer],
    answers: Callable[[Request], str | Answer] = lambda request: f"said {request.id}",
    pages: Sequence[PageImage] | None = None,
    images: str = "none",
) -> tuple[list[ParsedPage], ScriptedEngine, list[Request]]:
    requests: list[Request] = []

    def script(request: Request) -> str | Answer:
        requests.append(request)
        if request.task == "layout":
            return layout if isinstance(layout, str) else layout(request)
        return answers(request)

    engine = ScriptedEngine(script)
    parsed = ModelSegmenter().read(
        pages or [page_image()], engine, DecodeConfig(), SegmenterOptions(images=images)  # type: ignore[arg-type]
    )  # fmt: skip
    return parsed, engine, requests


def regions(*records: str, **options: object) -> tuple[Region, ...]:
    (page,), _, _ = read("\n".join(records), **options)  # type: ignore[arg-type]
    return page.regions


def test_layout_is_asked_on_the_square_page_and_crops_at_native_size() -> None:
    layout = "\n".join(
        [record((100, 100, 500, 200), "title"), record((100, 300, 900, 500), "table"),
         record((100, 600, 900, 700), "equation"), record((100, 800, 900, 900), "image")]
    )  # fmt: skip
    (page,), engine, requests = read(layout)
    assert engine.num_calls == 2
    assert [(r.task, r.image.size) for r in requests] == [
        ("layout", (1036, 1036)),
        ("text", (160, 50)),
        ("table", (320, 100)),
        ("formula", (320, 50)),
    ]
    assert {r.image.mode for r in requests} == {"RGB"}
    assert [r.id for r in page.regions] == ["p0r0", "p0r1", "p0r2", "p0r3"]
    assert page.regions[3].finish_reason is None
    assert requests[1].origin == {
        "source": "a.pdf", "stem": "a", "page": 0, "region": "p0r0", "type": "title", "order": 0,
        "bbox": (0.1, 0.1, 0.5, 0.2),
    }  # fmt: skip
    assert page.size_px == (400, 500)
    assert page.size_pt == (288.0, 360.0)


def test_two_calls_for_a_window_and_answers_in_any_order() -> None:
    class Reversing(ScriptedEngine):
        def answer(self, requests):  # type: ignore[no-untyped-def]
            return iter(list(super().answer(requests))[::-1])

    def script(request: Request) -> str:
        if request.task == "layout":
            return record((0, 0, 1000, 400)) + record((0, 500, 1000, 900))
        return f"said {request.id}"

    engine = Reversing(script)
    pages = ModelSegmenter().read(
        [page_image(index) for index in (3, 4, 7)], engine, DecodeConfig(), SegmenterOptions()
    )
    assert engine.num_calls == 2
    assert [page.index for page in pages] == [3, 4, 7]
    assert [[region.text for region in page.regions] for page in pages] == [
        ["said p3r0", "said p3r1"], ["said p4r0", "said p4r1"], ["said p7r0", "said p7r1"],
    ]  # fmt: skip


def test_a_blank_page_costs_no_call() -> None:
    blank = PageImage(index=0, label="1", image=Image.new("RGB", (50, 50), "white"), size_pt=(9, 9))
    (page,), engine, _ = read("", pages=[blank])
    assert (page.status, page.regions, engine.num_calls) == ("blank", (), 0)


def test_a_blank_crop_is_not_read() -> None:
    source = page_image()
    ImageDraw.Draw(source.image).rectangle((0, 0, 400, 250), fill="white")
    (page,), _, requests = read(
        record((0, 0, 1000, 400)) + record((0, 600, 1000, 900)), pages=[source]
    )
    assert [r.id for r in requests] == ["p0layout", "p0r1"]
    assert (page.regions[0].finish_reason, page.regions[0].flags) == ("empty", ("blank",))
    assert page.status == "ok"


@pytest.mark.parametrize(("turn", "corner"), [("up", (0, 0)), ("right", (0, -1)),
                                              ("down", (-1, -1)), ("left", (-1, 0))])  # fmt: skip
def test_crops_are_turned_upright_b11(turn: str, corner: tuple[int, int]) -> None:
    # A mark in the corner of the box that is the upper left one of the upright crop.
    angle = {"up": 0, "right": 90, "down": 180, "left": 270}[turn]
    upright = Image.new("RGB", (60, 40), "white")
    ImageDraw.Draw(upright).rectangle((0, 0, 9, 9), fill="black")
    lying = upright.rotate(-angle, expand=True)
    image = Image.new("RGB", (100, 100), "white")
    image.paste(lying, (20, 20))
    box = (200, 200, 200 + 10 * lying.width, 200 + 10 * lying.height)
    page = PageImage(index=0, label="1", image=image, size_pt=(100, 100))
    (parsed,), _, requests = read(record(box, turn=turn), pages=[page])
    crop = requests[1].image
    assert crop.size == (60, 40)
    assert crop.getpixel((2, 2)) == (0, 0, 0)
    assert crop.getpixel((57, 37)) == (255, 255, 255)
    assert parsed.regions[0].angle == angle


def test_every_box_is_cropped_b3() -> None:
    (page,), _, requests = read(
        record((398, 998, 606, 999)) + record((999, 0, 1000, 1000)) + record((5, 5, 5, 5)),
        pages=[page_image(size=(500, 500))],
    )
    assert all(min(r.image.size) >= 1 for r in requests)
    assert len(page.regions) == 3


def test_model_order_is_kept_b8() -> None:
    columns = [(0, 0, 450, 300), (0, 310, 450, 900), (500, 0, 950, 300), (500, 310, 950, 900)]
    found = regions(*[record(columns[i]) for i in (2, 3, 0, 1)])
    assert [r.bbox.x0 for r in found] == [0.5, 0.5, 0.0, 0.0]
    assert [r.order for r in found] == [0, 1, 2, 3]


def test_duplicates_are_merged_by_box_never_by_text_b7() -> None:
    (page,), _, _ = read(
        record((0, 0, 900, 100)) * 2 + record((0, 200, 900, 300))
        + record((0, 200, 900, 300), "title") + record((0, 400, 900, 500))
        + record((0, 600, 900, 700), "image")
        + record((0, 600, 900, 700)),
        lambda request: "the same words",
    )  # fmt: skip
    told = [r for r in page.regions if r.text]
    assert [r.order for r in told] == [0, 2, 4, 6]
    assert page.regions[3].type == "image"
    assert [w.message.split(":")[0] for w in page.warnings] == [
        "duplicate of an earlier box, merged"
    ] * 2


def test_regions_inside_a_table_that_tells_nothing_are_read_after_all() -> None:
    layout = (
        record((0, 0, 900, 400), "table") + record((10, 10, 800, 100))
        + record((10, 200, 800, 300), "equation")
        + record((0, 500, 900, 900), "table") + record((10, 510, 800, 600))
    )  # fmt: skip
    answers = {"p0r0": "", "p0r1": "words", "p0r2": "x^2", "p0r3": "<fcel>a<nl>"}
    (page,), engine, requests = read(layout, lambda request: answers[request.id])
    assert [request.id for request in requests[1:]] == ["p0r0", "p0r3", "p0r1", "p0r2"]
    assert engine.num_calls == 3
    words, formula = page.regions[1:3]
    assert (words.text, formula.latex) == ("words", "x^2")
    assert not words.flags and words.parent == "p0r0"
    assert (page.regions[4].text, page.regions[4].flags) == ("", ("inside_table",))
    assert page.status == "ok"


def test_regions_inside_tables_are_not_told_twice_b7_c11() -> None:
    found = regions(
        record((100, 100, 900, 500), "table"),
        record((110, 120, 300, 200)),
        record((500, 300, 700, 400), "equation"),
        record((700, 300, 890, 400), "image"),
        record((100, 90, 900, 112), "table_caption"),
        record((110, 420, 300, 560)),
        record((120, 130, 400, 300), "table"),
        answers=lambda r: "<fcel>a<nl>" if r.task == "table" else "words",
    )
    inside = [r.id for r in found if "inside_table" in r.flags]
    assert inside == ["p0r1", "p0r2", "p0r6"]
    assert all(r.parent == "p0r0" and not (r.text or r.table or r.latex)
               for r in found if r.id in inside)  # fmt: skip
    # a box that only touches the table, a caption and a picture stay what they are
    assert found[5].text == "words"
    assert found[4].text == "words"
    assert found[3].type == "image"


ITEMS = [(100, 100, 500, 120), (100, 122, 500, 160), (100, 163, 500, 183)]


def test_a_list_is_told_by_its_items_where_they_fill_it() -> None:
    (page,), _, requests = read("".join(map(record, ITEMS)) + record((100, 100, 500, 183), "list"))
    assert [r.id for r in requests[1:]] == ["p0r0", "p0r1", "p0r2"]
    assert [r.parent for r in page.regions] == ["p0r3"] * 3 + [None]
    assert page.regions[3].flags == ("told_by_items",)


@pytest.mark.parametrize("items", [ITEMS[:2], ITEMS[1:], [ITEMS[0], ITEMS[2]],
                                   [(100, 100, 200, 183)]])  # fmt: skip
def test_a_list_with_an_item_missing_is_read_as_a_whole(items: list[Box]) -> None:
    (page,), _, requests = read(
        record((100, 100, 500, 183), "list") + "".join(map(record, items)),
        lambda request: "one\ntwo",
    )
    assert [r.id for r in requests[1:]] == ["p0r0"]
    assert page.regions[0].text == "one\ntwo"
    assert all(r.text == "" and r.flags == ("inside_list",) for r in page.regions[1:])


def test_boxes_that_nearly_coincide_are_told_once() -> None:
    told = regions(
        record((100, 100, 500, 300), "table"), record((101, 100, 501, 300), "table"),
        record((99, 99, 501, 301)), record((100, 600, 500, 700), "list"),
        record((99, 599, 501, 701)), record((100, 601, 500, 701), "list"),
        answers=lambda r: "<fcel>a<nl>" if r.task == "table" else "words",
    )  # fmt: skip
    assert [r.id for r in told if r.text or r.table] == ["p0r0", "p0r4"]


def test_a_table_in_a_list_is_read() -> None:
    found = regions(
        record((0, 0, 1000, 900), "list"), record((0, 0, 1000, 100)),
        record((100, 200, 900, 400), "table"),
        answers=lambda r: "<fcel>a<nl>" if r.task == "table" else "words",
    )  # fmt: skip
    assert found[2].table is not None


def test_equation_blocks_are_never_dropped_d5() -> None:
    block = record((100, 100, 900, 300), "equation_block")
    alone = regions(block, answers=lambda request: r"\[ x \tag{1} \]")
    assert alone[0].latex == r"x \tag{1}"
    first, second = (100, 100, 900, 199), (100, 200, 900, 300)
    with_parts = regions(
        block, record(first, "equation"), record(second, "equation"), answers=lambda request: "x"
    )
    assert [r.latex for r in with_parts] == [None, "x", "x"]
    assert [r.parent for r in with_parts] == [None, "p0r0", "p0r0"]


def test_captions_find_their_figure_or_table() -> None:
    found = regions(
        record((100, 50, 900, 80), "table_caption"),
        record((100, 90, 900, 300), "table"),
        record((100, 310, 900, 330), "table_footnote"),
        record((100, 400, 450, 600), "image"),
        record((550, 400, 900, 600), "image"),
        record((550, 610, 900, 640), "image_caption"),
        record((100, 610, 450, 640), "image_caption"),
        record((100, 700, 900, 720), "code_caption"),
        record((100, 725, 900, 800), "code"),
        record((100, 960, 900, 990), "table_caption"),
        answers=lambda r: "<fcel>a<nl>" if r.task == "table" else "words",
    )
    assert {r.id: r.parent for r in found if r.parent} == {
        "p0r0": "p0r1", "p0r2": "p0r1", "p0r5": "p0r4", "p0r6": "p0r3", "p0r7": "p0r8",
    }  # fmt: skip


@pytest.mark.parametrize("layout", ["]]<|txtMask fill:#>\n" * 50, "I cannot…", ""])
def test_garbage_layouts_fall_back_to_the_whole_page_b4(layout: str) -> None:
    (page,), engine, requests = read(layout, lambda request: "all\nof it")
    assert page.status == "layout_failed"
    assert [(r.type, r.text, r.flags) for r in page.regions] == [
        ("text", "all of it", ("whole_page",))
    ]
    assert requests[1].image.size == (400, 500)
    assert "order" not in requests[1].origin
    assert repr(layout) in page.warnings[-1].message
    assert engine.num_calls == 2


def test_a_page_that_cannot_be_read_is_failed_not_blank() -> None:
    def answers(request: Request) -> str:
        raise EngineError("lost the model")

    pages, engine, _ = read(lambda request: answers(request), answers,
                            [page_image(0), page_image(1)])  # fmt: skip
    assert [page.status for page in pages] == ["failed", "failed"]
    assert pages[1].error is not None
    assert (pages[1].error.message, pages[1].error.page) == ("lost the model", 1)
    assert engine.num_calls == 2


def test_a_bad_region_leaves_its_neighbours_alone() -> None:
    def answers(request: Request) -> str:
        if request.id == "p0r1":
            raise EngineTimeoutError("no answer in 5 s")
        return "words"

    (page,), _, _ = read("".join(record((0, y, 900, y + 90)) for y in (0, 100, 200)), answers)
    assert page.status == "partial"
    assert [r.text for r in page.regions] == ["words", "", "words"]
    error = page.regions[1].error
    assert error is not None
    assert (error.kind, error.stage, error.page, error.region) == (
        "EngineTimeoutError", "read", 0, "p0r1",
    )  # fmt: skip
    assert page.regions[1].finish_reason == "timeout"


def test_a_missing_answer_is_an_error() -> None:
    class Forgetful(ScriptedEngine):
        def answer(self, requests):  # type: ignore[no-untyped-def]
            return (a for a in super().answer(requests) if a.id != "p0r1")

    def script(request: Request) -> str:
        layout = record((0, 0, 900, 90)) + record((0, 100, 900, 190))
        return layout if request.task == "layout" else "words"

    (page,) = ModelSegmenter().read(
        [page_image()], Forgetful(script), DecodeConfig(), SegmenterOptions()
    )
    assert page.status == "partial"
    assert page.regions[1].error is not None
    assert "no answer" in page.regions[1].error.message


def limit(text: str) -> Callable[[Request], Answer]:
    return lambda request: Answer(
        id=request.id,
        text=text,
        finish_reason="length",
        confidence=0.5,
        num_tokens=7,
        num_forwards=3,
    )


def test_what_the_limit_cut_makes_the_page_partial_e5() -> None:
    (page,), _, _ = read(record(WHOLE), limit("The end is mis"))
    assert page.status == "partial"
    (region,) = page.regions
    assert (region.finish_reason, region.flags) == ("length", ("truncated",))
    assert (region.confidence, page.num_tokens, page.num_forwards) == (
        0.5,
        7 + len(record(WHOLE)),
        4,
    )


def test_a_loop_is_trimmed_only_at_the_limit_e2() -> None:
    looping = "Once. " + "the cat " * 200
    (page,), _, _ = read(record(WHOLE), limit(looping))
    (region,) = page.regions
    assert region.text == "Once. the cat"
    assert (region.finish_reason, region.flags, region.raw) == ("loop", ("loop",), looping)
    assert page.status == "partial"
    (page,), _, _ = read(record(WHOLE), lambda request: looping)
    assert page.regions[0].text == looping.strip()
    assert page.status == "ok"


def test_a_layout_that_breaks_off_is_partial() -> None:
    layout = record((0, 0, 900, 90)) + "\n" + record((0, 100, 900, 190))[:40]
    (page,), _, _ = read(layout)
    assert page.status == "partial"
    assert len(page.regions) == 1
    assert any("ends inside the record" in w.message for w in page.warnings)
    assert any("cut short" in w.message for w in page.warnings)


def test_refused_records_are_warnings_and_the_page_is_partial_b2() -> None:
    (page,), _, _ = read(record((0, 0, 900, 90)) + record((0, 0, 5000, 90)))
    assert page.status == "partial"
    assert "outside of the page" in page.warnings[0].message


def test_special_tokens_are_removed_and_counted_e4() -> None:
    found = regions(
        record((0, 0, 900, 90)), record((0, 100, 900, 190), "table"),
        record((0, 200, 900, 290), "equation"), record((0, 300, 900, 390)),
        answers=lambda r: {
            "p0r0": "a<|MASK|>b<|im_end|>c",
            "p0r1": "<fcel>a<|MASK|><nl><|im_",
            "p0r2": r"\[x\]<|endoftext|>",
            "p0r3": "<|im_end|>",
        }[r.id],
    )  # fmt: skip
    assert found[0].text == "ab"
    assert found[1].table is not None
    assert found[1].table.rows() == [["a"]]
    assert found[2].latex == "x"
    assert (found[3].text, found[3].finish_reason) == ("", "empty")
    assert [r.flags[0] for r in found] == [
        "special_tokens=2", "special_tokens=2", "special_tokens=1", "special_tokens=1",
    ]  # fmt: skip


def test_formulas_and_tables_say_what_is_wrong_with_them() -> None:
    found = regions(
        record((0, 0, 900, 90), "equation"), record((0, 100, 900, 190), "table"),
        answers=lambda r: r"\frac{a}{b" if r.task == "formula" else "no table here",
    )  # fmt: skip
    assert found[0].latex == r"\frac{a}{b"
    assert found[0].flags[0].startswith("invalid_latex=unbalanced braces")
    assert (found[1].table, found[1].text) == (None, "no table here")
    assert "no_table" in found[1].flags


def test_lines_are_unwrapped_but_not_in_lists_and_code() -> None:
    found = regions(
        record((0, 0, 900, 90)), record((0, 100, 900, 190), "list"),
        record((0, 200, 900, 290), "code"), record((0, 300, 900, 390)),
        answers=lambda r: "a well-\nknown wor-\nd" if r.id == "p0r0" else (
            "is it well-known?" if r.id == "p0r3" else "  one\ntwo  "),
    )  # fmt: skip
    # The page itself is the word list that keeps the hyphen.
    assert found[0].text == "a well-known word"
    assert found[1].text == "  one\ntwo"
    assert found[2].text == "  one\ntwo"


def test_figures_come_as_png_on_request() -> None:
    layout = record((100, 100, 500, 300), "image", "right")
    (page,), _, _ = read(layout, images="embed")
    picture = page.regions[0].image
    assert picture is not None
    assert picture.startswith(b"\x89PNG")
    assert regions(layout)[0].image is None


@pytest.mark.parametrize(
    "capabilities",
    [Capabilities(tasks=("text",)), Capabilities(tasks=("layout",)),
     Capabilities(tasks=("layout", "text"), text_unit="segment", segment_px=(896, 28))],
)  # fmt: skip
def test_an_engine_of_another_kind_is_refused(capabilities: Capabilities) -> None:
    engine = ScriptedEngine(capabilities=capabilities)
    with pytest.raises(ConfigError, match="segmenter 'lines'"):
        ModelSegmenter().read([page_image()], engine, DecodeConfig(), SegmenterOptions())
