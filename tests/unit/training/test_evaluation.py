"""Evaluation on folders: what is asked, how answers are joined and scored, what is written."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Request
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.evaluation.curve import (
    drawn_crops,
    plot_shuffle,
    plot_thresholds,
    threshold_curve,
)
from mdiff_adapters.evaluation.labels import draft_labels
from mdiff_adapters.evaluation.omnidocbench import (
    load_pages,
    parse_pages,
    score_pages,
    true_crops,
    write_predictions,
)
from mdiff_adapters.evaluation.reading import Crop, load_crops, read_crops, score
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.testing import ScriptedEngine
from mdiff_core.training.data.folder import read_labels

from .conftest import REGION, SEGMENT
from .test_folder import LONG, draw_text, write

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def test_crops_are_scored_by_their_task() -> None:
    truths = {
        "text": "kitten", "table": "<fcel>a<fcel>b<nl>", "formula": "x^2",
        "layout": "<|box_start|>000 000 500 1000<|box_end|><|ref_start|>text<|ref_end|>",
    }  # fmt: skip
    answers = {**truths, "text": "sitten<|im_end|>", "formula": "x_2"}
    crops = [Crop(t, draw_text(t), truth, t) for t, truth in truths.items()]  # type: ignore[arg-type]

    def script(request: Request) -> Answer:
        return Answer(id=request.id, text=answers[request.task], num_tokens=5, num_forwards=2)

    found = score(read_crops(ScriptedEngine(script), crops, DecodeConfig()))
    assert found.num_crops == 4 and found.num_errors == 0
    assert found.metrics["character_error"] == pytest.approx(1 / 6)
    assert found.metrics["exact"] == 0
    assert found.metrics["teds"] == found.metrics["teds_s"] == found.metrics["page_iou"] == 1
    assert found.metrics["formula_match"] == pytest.approx(0.5)
    # The end token of each answer was decoded too.
    assert (found.tokens, found.forwards) == (24, 8)
    assert found.to_dict()["tokens_per_forward"] == 3


def test_lines_are_cut_and_joined_for_segment_engines() -> None:
    asked: list[Request] = []

    def script(request: Request) -> str:
        asked.append(request)
        return f"piece{request.id}"

    engine = ScriptedEngine(script, capabilities=SEGMENT)
    blank = Image.new("L", (100, 30), 255)
    crops = [Crop("long", draw_text(LONG), ""), Crop("blank", blank, ""),
             Crop("short", draw_text("ab"), "")]  # fmt: skip
    readings = list(read_crops(engine, crops, DecodeConfig()))
    assert [r.crop.name for r in readings] == ["long", "blank", "short"]
    pieces = [request.id for request in asked if request.id.startswith("0.")]
    assert len(pieces) >= 3
    assert readings[0].answer == " ".join(f"piece{name}" for name in pieces)
    assert readings[1].answer == "" and readings[1].forwards == 0
    assert readings[2].answer == "piece2.0"
    assert {request.image.size for request in asked} == {(896, 28)}


def test_answers_out_of_order_come_in_the_order_of_the_crops() -> None:
    class Backwards(ScriptedEngine):
        def answer(self, requests: Any) -> Any:
            return iter(list(super().answer(requests))[::-1])

    crops = [Crop(str(i), draw_text("x"), str(i)) for i in range(5)]
    engine = Backwards(lambda request: request.id.split(".")[0])
    found = list(read_crops(engine, crops, DecodeConfig()))
    assert [r.answer for r in found] == ["0", "1", "2", "3", "4"]


def test_a_failing_request_is_counted() -> None:
    def script(request: Request) -> str:
        if request.id == "1.0":
            raise RuntimeError("no")
        return "x"

    crops = [Crop(str(i), draw_text("x"), "x") for i in range(3)]
    found = score(read_crops(ScriptedEngine(script), crops, DecodeConfig()))
    assert (found.num_crops, found.num_errors) == (3, 1)
    assert found.metrics["exact"] == pytest.approx(2 / 3)


def test_tiny_reads_real_lines(shared_dir: Path) -> None:
    from mdiff_adapters.engines import open_engine

    crops = list(load_crops(shared_dir / "lines", every=90))
    engine = open_engine("tiny", device="cpu", dtype="fp32")
    loose, strict = threshold_curve(engine, crops, [0.5, 0.95], DecodeConfig())
    # The handed checkpoint: 2.6 % at 19 tokens a forward, 1.5 % at 7; these are few lines.
    assert strict["character_error"] <= loose["character_error"] < 0.08
    assert strict["character_error"] < 0.04
    assert loose["tokens_per_forward"] > strict["tokens_per_forward"] > 4


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="plots need matplotlib")
def test_plots_are_written(tmp_path: Path) -> None:
    rows = [
        {"threshold": t, "shuffle": t, "character_error": 0.1 * t, "tokens_per_forward": 9.0}
        for t in (0.5, 0.9)
    ]
    plot_thresholds(rows, tmp_path / "a.png", label="tiny")
    plot_shuffle({"diffusion": rows, "autoregressive": rows}, tmp_path / "b.svg")
    with Image.open(tmp_path / "a.png") as image:
        assert np.asarray(image.convert("L")).std() > 10
    assert "<svg" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize("unit", [SEGMENT, REGION], ids=["segment", "region"])
def test_shuffled_text_has_the_same_words_at_every_share(
    unit: Capabilities, drawing: dict[str, Any]
) -> None:
    plain, half, full = (
        drawn_crops(unit, 8, shuffle=share, options=drawing) for share in (0.0, 0.5, 1.0)
    )
    for a, b, c in zip(plain, half, full, strict=True):
        assert sorted(a.truth.split()) == sorted(b.truth.split()) == sorted(c.truth.split())
    assert sum(a.truth != c.truth for a, c in zip(plain, full, strict=True)) >= 4
    heavy = drawn_crops(unit, 8, damage="heavy", options=drawing)
    for a, b in zip(plain, heavy, strict=True):
        assert (a.truth, a.image.size) == (b.truth, b.image.size)
        assert a.image.tobytes() != b.image.tobytes()


def page_image() -> Image.Image:
    """A page with ink everywhere: nothing is asked about blank pages and regions."""
    stripes = np.arange(600)[:, None, None] // 8 % 2 * 255
    return Image.fromarray(np.broadcast_to(stripes, (600, 400, 3)).astype(np.uint8))


def poly(x0: float, y0: float, x1: float, y1: float) -> list[float]:
    return [x0, y0, x1, y0, x1, y1, x0, y1]


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """One annotated page of 200 x 300 px, kept at half size."""
    (tmp_path / "images").mkdir()
    page_image().resize((100, 150)).save(tmp_path / "images" / "page.png")
    regions = [
        {"category_type": "text_block", "poly": poly(20, 100, 180, 140), "order": 2,
         "text": "second", "ignore": False},
        {"category_type": "title", "poly": poly(20, 20, 180, 60), "order": 1, "text": "first"},
        {"category_type": "table", "poly": poly(20, 150, 180, 200), "order": 3,
         "html": "<table><tr><td>a</td><td>b</td></tr></table>", "latex": "ignored"},
        {"category_type": "equation_isolated", "poly": poly(20, 210, 180, 240), "order": 4,
         "latex": "$$x^2$$"},
        {"category_type": "header", "poly": poly(20, 0, 180, 10), "order": None, "text": "head"},
        {"category_type": "text_mask", "poly": poly(0, 0, 1, 1), "ignore": True, "text": "no"},
    ]  # fmt: skip
    page = {
        "layout_dets": regions,
        "page_info": {"page_no": 0, "width": 200, "height": 300, "image_path": "page.png"},
        "extra": {"relation": []},
    }
    (tmp_path / "OmniDocBench.json").write_text(json.dumps([page]))
    return tmp_path


def test_omnidocbench_is_read_in_reading_order(bench: Path) -> None:
    (page,) = load_pages(bench)
    assert [r.category for r in page.regions] == [
        "title", "text_block", "table", "equation_isolated", "header",
    ]  # fmt: skip
    assert page.of("text") == ["first", "second"]
    crops = list(true_crops([page], ("text", "table")))
    assert [(c.task, c.image.size) for c in crops] == [
        ("text", (80, 20)), ("text", (80, 20)), ("table", (80, 25)),
    ]  # fmt: skip
    assert crops[2].truth.startswith("<table>")


def layout(*records: tuple[str, str]) -> str:
    return "\n".join(
        f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_up|>"
        for box, kind in records
    )


def test_omnidocbench_end_to_end(bench: Path, tmp_path: Path) -> None:
    said = layout(
        ("100 067 900 200", "title"), ("100 333 900 467", "text"), ("100 500 900 667", "table"),
        ("100 700 900 800", "equation"), ("100 000 900 033", "header"),
    )  # fmt: skip

    def script(request: Request) -> str:
        if request.task == "layout":
            return said
        if request.task == "table":
            return "<fcel>a<fcel>b<nl>"
        if request.task == "formula":
            return r"\[ x^{2} \]"
        order = request.origin.get("order")
        return {0: "first", 1: "secund"}.get(order, "head")

    pages = load_pages(bench)
    parser = DocumentParser(ScriptedEngine(script))
    written = write_predictions(parse_pages(parser, pages), tmp_path / "md")
    means, rows = score_pages(written)
    assert means["teds"] == means["teds_s"] == means["formula"] == 1
    assert means["page_iou"] > 0.97
    # The header is no body text, and neither is it in the answer's.
    assert means["text"] == pytest.approx(1 - 1 / len("first second"))
    assert means["overall"] == pytest.approx(100 * (means["text"] + 2) / 3)
    assert rows[0]["page"] == "page.png"
    assert "secund" in (tmp_path / "md" / "page.md").read_text()


def test_unmatched_tables_and_failed_pages_count_nothing(bench: Path) -> None:
    pages = load_pages(bench)

    def silent(request: Request) -> str:
        return layout(("100 067 900 200", "text")) if request.task == "layout" else "first second"

    means, _ = score_pages(parse_pages(DocumentParser(ScriptedEngine(silent)), pages))
    assert means["text"] == 1 and means["teds"] == means["formula"] == 0
    pages[0].image.write_bytes(b"broken")
    means, rows = score_pages(parse_pages(DocumentParser(ScriptedEngine(silent)), pages))
    assert means["text"] == means["teds"] == means["page_iou"] == 0
    assert "page.png" in rows[0]["error"]


def test_folders_without_annotations_are_named(tmp_path: Path) -> None:
    for other in (None, "[1, 2]", "{}", "[[]]"):
        if other is not None:
            (tmp_path / "a.json").write_text(other)
        with pytest.raises(ConfigError, match="no annotations"):
            load_pages(tmp_path)
    (tmp_path / "a.json").write_text('[{"layout_dets": [], "page_info": {}}]')
    with pytest.raises(ConfigError, match="not in OmniDocBench's format"):
        load_pages(tmp_path)
    page = {"layout_dets": [], "page_info": {"width": 1, "height": 1, "image_path": "no.png"}}
    (tmp_path / "a.json").write_text(json.dumps([page]))
    with pytest.raises(ConfigError, match=r"no\.png is not there"):
        load_pages(tmp_path)


def test_draft_labels_can_be_trained_on(tmp_path: Path) -> None:
    page_image().save(tmp_path / "page.png")
    said = layout(("100 100 900 200", "text"), ("100 300 900 400", "table"),
                  ("100 500 900 600", "image"))  # fmt: skip

    def script(request: Request) -> str:
        if request.task == "layout":
            return said
        return "<fcel>a<nl>" if request.task == "table" else "Read\nthis"

    parser = DocumentParser(ScriptedEngine(script))
    folder = tmp_path / "data"
    records = list(draft_labels(parser, [tmp_path / "page.png"], folder))
    assert len(records) == 1
    layout_record, text, table = read_labels(folder)
    assert layout_record.task == "layout" and layout_record.text.count("<|box_start|>") == 3
    assert (text.task, text.text, text.box) == ("text", "Read this", (0.1, 0.1, 0.9, 0.2))
    assert (table.task, table.text) == ("table", "<fcel>a<nl>")


def test_a_folder_of_crops_is_loaded(tmp_path: Path) -> None:
    records = [{"image": "a.png", "text": "a"}, {"image": "b.png", "text": "b", "task": "layout"}]
    write(tmp_path, records, a=draw_text("a"), b=draw_text("b"))
    first, second = load_crops(tmp_path)
    assert first.name == "a.png" and second.image.size == (1036, 1036)
    assert [crop.truth for crop in load_crops(tmp_path, every=2)] == ["a"]
    # An engine that knows no layouts is not asked for one.
    assert [crop.truth for crop in load_crops(tmp_path, tasks=("text",))] == ["a"]
