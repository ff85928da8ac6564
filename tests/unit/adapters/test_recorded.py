"""What the real model answered on twelve real pages, through the whole document layer.

The pages are reference material beside the checkout and are not part of it.
"""

from __future__ import annotations

import difflib
import functools
import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docling_core.types.doc import ContentLayer, DoclingDocument
from PIL import Image

from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.engines import Answer, DecodeConfig, Request
from mdiff_adapters.engines.replay import ReplayEngine
from mdiff_adapters.export import (
    draw_layout,
    from_json,
    to_docling,
    to_html,
    to_json,
    to_markdown,
    to_text,
)
from mdiff_adapters.export.markdown import escape_text
from mdiff_adapters.formulas import strip_delimiters, tidy_spacing, wrap_formula
from mdiff_adapters.layout import parse_layout
from mdiff_adapters.segmenters import PageImage, SegmenterOptions
from mdiff_adapters.segmenters.model import ModelSegmenter
from mdiff_adapters.sources import open_source
from mdiff_adapters.tables import parse_table_answer
from mdiff_adapters.testing import ScriptedEngine

NAMES = [
    "mineru_demo1_p0001", "mineru_demo2_p0002", "mineru_demo3_p0001", "mineru_demo3_p0003",
    "mineru_diffusion_paper_p0001", "mineru_diffusion_paper_p0002", "mineru_diffusion_paper_p0011",
    "mineru_diffusion_paper_p0033", "mineru_small_ocr_p0001", "mineru_small_ocr_p0002",
    "mineru_unit_test_p0001", "ragflow_doc1_p0001",
]  # fmt: skip
each_page = pytest.mark.parametrize("name", NAMES)

SPECIAL = re.compile(r"<\||\|>")
OTSL_TAG = re.compile(r"<(?:[felux]cel|[cr]hed|srow|nl)>")
PARTIAL_TAG = re.compile(r"<(?:[felux]|[felux]c|[felux]ce|[felux]cel|n|nl|\|\w*\|?)?\Z")


@functools.cache
def image_of(folder: Path, name: str) -> PageImage:
    with open_source(folder / f"{name}.jpg") as source:
        return source.load(0)


@functools.cache
def page_of(folder: Path, name: str, tables: str = "recorded") -> ParsedPage:
    with ReplayEngine(folder, tables=tables) as engine:  # type: ignore[arg-type]
        (page,) = ModelSegmenter().read(
            [image_of(folder, name)], engine, DecodeConfig(), SegmenterOptions()
        )
    return page


@functools.cache
def recording(folder: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return data


@pytest.fixture
def folder(shared_dir: Path) -> Path:
    return shared_dir / "recorded"


def document(page: ParsedPage) -> ParsedDocument:
    return ParsedDocument(source="recorded.pdf", pages=(page,), num_pages=1)


@each_page
def test_layout_records_are_the_recorded_regions(folder: Path, name: str) -> None:
    saved = recording(folder, name)
    result = parse_layout(saved["layout_output"])
    assert (result.refused, result.repaired, result.truncated) == ((), (), False)
    found = [
        {"type": r.type, "bbox": [r.bbox.x0, r.bbox.y0, r.bbox.x1, r.bbox.y1], "angle": r.angle}
        for r in result.records
    ]
    assert found == [{k: r[k] for k in ("type", "bbox", "angle")} for r in saved["regions"]]


def shown(page: ParsedPage) -> Iterator[str]:
    """What the markdown must hold of each region that is told, in the model's order."""
    for region in page.regions:
        if region.table is not None:
            yield region.table.to_html()
        elif region.latex is not None:
            yield wrap_formula(tidy_spacing(region.latex))
        elif region.text:
            yield escape_text(" ".join(region.text.split("\n")))


@each_page
def test_every_text_is_in_the_markdown_once_and_in_order(folder: Path, name: str) -> None:
    page = page_of(folder, name)
    assert page.status == "ok"
    out = to_markdown(document(page), include_furniture=True)
    left = []
    end = 0
    for text in shown(page):
        start = out.find(text, end)
        assert start >= 0, f"missing or out of order: {text[:60]!r}"
        left.append(out[end:start])
        end = start + len(text)
    left.append(out[end:])
    # Between the regions stands nothing but markup, so nothing was told twice.
    assert re.fullmatch(r"[\s#-]*", "".join(left)), left


@each_page
def test_every_recorded_answer_is_told(folder: Path, name: str) -> None:
    page = page_of(folder, name)
    by_order = {region.order: region for region in page.regions}
    for order, saved in enumerate(recording(folder, name)["regions"]):
        region = by_order[order]
        content = saved["content"]
        if content is None:
            assert region.type == "image"
        elif "told_by_items" in region.flags:
            items = [r.text for r in page.regions if r.parent == region.id]
            ratio = difflib.SequenceMatcher(
                None, "".join(content.split()), "".join("".join(items).split()), autojunk=False
            ).ratio()
            assert ratio > 0.85, (items, content)
        elif region.table is not None:
            cells = re.findall(r"<td[^>]*>(.*?)</td>", content, re.DOTALL)
            assert [c.text for c in region.table.cells] == [html.unescape(c).strip() for c in cells]
        elif region.latex is not None:
            assert region.latex == content.removeprefix("\\[").removesuffix("\\]").strip()
        else:
            assert "".join(region.text.split()) == "".join(content.split())


@each_page
def test_tables_have_all_their_cells_in_the_markdown(folder: Path, name: str) -> None:
    page = page_of(folder, name)
    out = to_markdown(document(page), include_furniture=True)
    found = [parse_table_answer(text).table for text in re.findall(r"<table>.*?</table>", out)]
    assert found == [region.table for region in page.regions if region.table is not None]


@each_page
def test_rebuilt_otsl_gives_the_same_tables(folder: Path, name: str) -> None:
    recorded, rebuilt = page_of(folder, name), page_of(folder, name, "otsl")
    assert [r.table for r in rebuilt.regions] == [r.table for r in recorded.regions]
    answers = [r.raw for r in rebuilt.regions if r.table is not None]
    assert all(OTSL_TAG.search(raw) and "<td" not in raw for raw in answers)


@each_page
def test_formulas_are_wrapped_once(folder: Path, name: str) -> None:
    page = page_of(folder, name)
    formulas = [region for region in page.regions if region.latex is not None]
    assert len(formulas) == sum(region.type == "equation" for region in page.regions)
    for delimiters, mark in (("brackets", "\\["), ("dollars", "$$"), ("none", None)):
        out = to_markdown(document(page), formula_delimiters=delimiters)  # type: ignore[arg-type]
        if mark is not None:
            assert out.count(mark) == len(formulas) * (2 if mark == "$$" else 1)
    assert not [region.flags for region in formulas if region.flags]


@each_page
def test_no_special_token_anywhere(folder: Path, name: str) -> None:
    doc = document(page_of(folder, name))
    for out in (to_markdown(doc, include_furniture=True), to_text(doc, include_furniture=True),
                to_html(doc, include_furniture=True), to_json(doc)):  # fmt: skip
        assert not SPECIAL.search(out)
        assert not OTSL_TAG.search(out)


@each_page
def test_json_and_docling_round_trips(folder: Path, name: str) -> None:
    page = page_of(folder, name)
    doc = document(page)
    assert from_json(to_json(doc)) == doc
    out = to_docling(doc)
    assert DoclingDocument.model_validate_json(out.model_dump_json()) == out
    layers = {ContentLayer.BODY, ContentLayer.FURNITURE}
    items = [item for item, _ in out.iterate_items(included_content_layers=layers)]
    assert len(out.tables) == sum(region.table is not None for region in page.regions)
    assert len(out.pictures) == sum(region.type == "image" for region in page.regions)
    texts = [item.text for item in items if getattr(item, "text", "")]
    told = [
        tidy_spacing(region.latex) if region.latex else region.text
        for region in page.regions
        if region.latex or region.text
    ]
    assert sorted(texts) == sorted(told)


def test_captions_of_the_recorded_pages(folder: Path) -> None:
    parents = {
        name: {r.order: r.parent for r in page_of(folder, name).regions
               if r.type.endswith(("_caption", "_footnote")) and r.type != "page_footnote"}
        for name in NAMES
    }  # fmt: skip
    assert parents["mineru_unit_test_p0001"] == {1: "p0r0", 4: "p0r5"}
    assert parents["mineru_diffusion_paper_p0011"] == {2: "p0r1"}
    assert parents["mineru_diffusion_paper_p0033"] == {8: "p0r7"}
    # a figure that the model took for tables: its caption goes with the last of them
    assert parents["mineru_demo3_p0003"] == {6: "p0r5", 7: "p0r5"}


@each_page
def test_layout_pictures_keep_the_page(folder: Path, name: str) -> None:
    source = image_of(folder, name).image
    drawn = draw_layout(source, page_of(folder, name))
    assert drawn.size == source.size
    assert drawn.tobytes() != source.convert("RGB").tobytes()


# Mutated answers. A cut can fall at any byte; damage inside an answer is done token by token,
# since a tag is one token of the model and cannot lose a letter.

TOKEN = re.compile(r"<\|\w+\|>|<\w+>|\w+|\s+|.", re.DOTALL)


@functools.cache
def answers_by_task(folder: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {"layout": [], "text": [], "table": [], "formula": []}
    for name in NAMES:
        saved = recording(folder, name)
        found["layout"].append(saved["layout_output"])
        for region in saved["regions"]:
            content = region["content"]
            if content is None:
                continue
            table = parse_table_answer(content).table if region["type"] == "table" else None
            if table is not None:
                found["table"] += [table.to_otsl(), content]
            else:
                found["formula" if region["type"] == "equation" else "text"].append(content)
    return {task: tuple(texts) for task, texts in found.items()}


def cuts(text: str, step: int, start: int) -> Iterator[str]:
    data = text.encode()
    for end in range(1 + start % step, len(data), step):
        yield data[:end].decode(errors="ignore")


def damages(text: str, others: tuple[str, ...], rng: random.Random, num: int) -> Iterator[str]:
    """Deletions and swaps of tokens, within an answer and with another one."""
    tokens, foreign = TOKEN.findall(text), TOKEN.findall(rng.choice(others))
    for _ in range(num):
        broken = list(tokens)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(broken)) if broken else 0
            action = rng.randrange(3)
            if action == 0:
                del broken[at : at + rng.randint(1, 6)]
            elif action == 1 and broken:
                other = rng.randrange(len(broken))
                broken[at], broken[other] = broken[other], broken[at]
            else:
                broken[at:at] = foreign[at : at + rng.randint(1, 6)]
        yield "".join(broken)


def check_layouts(page: PageImage, answers: list[tuple[str, bool]]) -> None:
    """Read layout answers, the flag saying whether the answer was cut by the limit."""
    for text, was_cut in answers:
        result = parse_layout(text)
        assert len(result.records) + len(result.refused) == result.num_marks
        if was_cut and (PARTIAL_TAG.search(text) or text.endswith("<|box_end|>")):
            assert result.truncated, text[-80:]
    # The whole way, for some of them: each page costs a resize.
    for text, was_cut in answers[:: max(1, len(answers) // 40)]:

        def script(request: Request, text: str = text, was_cut: bool = was_cut) -> str | Answer:
            if request.task != "layout":
                return "words"
            return Answer(id=request.id, text=text, finish_reason="length" if was_cut else "stop")

        (parsed,) = ModelSegmenter().read(
            [page], ScriptedEngine(script), DecodeConfig(), SegmenterOptions()
        )
        assert parsed.regions
        assert not SPECIAL.search(to_markdown(document(parsed), include_furniture=True))
        if was_cut:
            assert parsed.status in ("partial", "layout_failed")


LABELS = {"text": "text", "table": "table", "formula": "equation"}


def check_answers(page: PageImage, task: str, answers: list[tuple[str, bool]]) -> None:
    """Read answers as regions of one page, 200 at a time, and look at all that comes out."""
    for first in range(0, len(answers), 200):
        batch = answers[first : first + 200]
        layout = "".join(
            f"<|box_start|>{x} {y} {x + 49} {y + 99}<|box_end|>"
            + f"<|ref_start|>{LABELS[task]}<|ref_end|>"
            for x, y in [(50 * (i % 20), 100 * (i // 20)) for i in range(len(batch))]
        )

        def script(
            request: Request, layout: str = layout, batch: list[tuple[str, bool]] = batch
        ) -> str | Answer:
            if request.task == "layout":
                return layout
            text, was_cut = batch[request.origin["order"]]
            reason = "length" if was_cut else "stop" if text else "empty"
            return Answer(id=request.id, text=text, finish_reason=reason)  # type: ignore[arg-type]

        (parsed,) = ModelSegmenter().read(
            [page], ScriptedEngine(script), DecodeConfig(), SegmenterOptions()
        )
        assert len(parsed.regions) == len(batch)
        for region, (text, was_cut) in zip(parsed.regions, batch, strict=True):
            assert region.raw == text
            if was_cut:
                assert region.finish_reason in ("length", "loop")
                assert {"truncated", "loop"} & set(region.flags)
            if region.table is not None:
                cells = [cell.text for cell in region.table.cells]
                assert not any(OTSL_TAG.search(cell) for cell in cells), (text, cells)
                if was_cut:
                    assert not any(PARTIAL_TAG.search(cell) for cell in cells), text[-60:]
            elif region.latex is not None:
                assert strip_delimiters(region.latex) == region.latex
        doc = document(parsed)
        out = to_markdown(doc, include_furniture=True)
        assert not SPECIAL.search(out)
        assert from_json(to_json(doc)) == doc
        to_html(doc)
        to_text(doc)
        assert (parsed.status == "partial") == any(was_cut for _, was_cut in batch)


def check_mutations(folder: Path, cut_step: int, num_damages: int) -> int:
    """Read mutated answers of every task; returns how many."""
    rng = random.Random(7)
    # Stripes: no crop of it is blank.
    stripes = Image.new("RGB", (200, 200), "white")
    for x in range(0, 200, 4):
        stripes.paste("black", (x, 0, x + 2, 200))
    page = PageImage(index=0, label="1", image=stripes, size_pt=(144.0, 144.0))
    total = 0
    for task, texts in answers_by_task(folder).items():
        mutated = []
        for position, text in enumerate(texts):
            mutated += [(cut, True) for cut in cuts(text, cut_step, 13 * position)]
            mutated += [(broken, False) for broken in damages(text, texts, rng, num_damages)]
        total += len(mutated)
        if task == "layout":
            check_layouts(page, mutated)
        else:
            check_answers(page, task, mutated)
    return total


def test_mutated_answers(folder: Path) -> None:
    # A step of 1 reads every cut and takes minutes; a prime one varies the places.
    assert check_mutations(folder, cut_step=61, num_damages=5) >= 2000
