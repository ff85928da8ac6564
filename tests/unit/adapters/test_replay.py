"""Recorded pages: found by page and region, written by a recorder, played back to the same page."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mdiff_adapters.document import BBox, ErrorRecord, ParsedDocument, ParsedPage, Region
from mdiff_adapters.engines import Answer, DecodeConfig, Engine, Request, open_engine
from mdiff_adapters.engines.record import RecordingEngine, record, write_page
from mdiff_adapters.engines.replay import ReplayEngine
from mdiff_adapters.errors import ConfigError, EngineError, EngineUnavailableError
from mdiff_adapters.export import to_markdown
from mdiff_adapters.segmenters import SegmenterOptions
from mdiff_adapters.segmenters.model import ModelSegmenter
from mdiff_adapters.sources import open_source
from mdiff_adapters.tables import Table
from mdiff_adapters.testing import ScriptedEngine

FOLDER = Path(__file__).parents[2] / "data" / "replay"


@pytest.fixture(scope="module")
def report_tiff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn pages as one document named like their recording."""
    path = tmp_path_factory.mktemp("report") / "report.tiff"
    pages = [Image.open(FOLDER / f"report_p{n:04d}.jpg").convert("RGB") for n in (1, 2)]
    pages[0].save(path, save_all=True, append_images=pages[1:], dpi=(100, 100))
    return path


def read(path: Path, engine: Engine) -> list[ParsedPage]:
    with open_source(path) as document:
        images = [document.load(index) for index in document.page_indices]
    return ModelSegmenter().read(images, engine, DecodeConfig(), SegmenterOptions())


def ask(engine: Engine, task: str = "text", **origin: object) -> Answer:
    request = Request(id="q", image=Image.new("RGB", (4, 4)), task=task, origin=origin)  # type: ignore[arg-type]
    (answer,) = engine.answer([request])
    assert answer.id == "q"
    return answer


def test_pages_are_found_by_stem_and_number(report_tiff: Path) -> None:
    with ReplayEngine(FOLDER) as engine:
        assert isinstance(engine, Engine)
        assert engine.name == f"replay:{FOLDER}"
        first, second = read(report_tiff, engine)
        assert first.regions[1].text == "What two copies of one book say"
        assert second.regions[1].text == "2 Results"
        # a single image may carry the page number in its own name
        (alone,) = read(FOLDER / "report_p0002.jpg", engine)
        assert [r.text for r in alone.regions] == [r.text for r in second.regions]
    with pytest.raises(EngineError, match="closed"):
        engine.answer([])


def test_it_pickles_as_its_spec() -> None:
    travelled = pickle.loads(pickle.dumps(ReplayEngine(FOLDER, tables="otsl")))
    assert travelled is open_engine(f"replay:{FOLDER}", tables="otsl")


def test_the_spec_string_opens_it() -> None:
    engine = open_engine(f"replay:{FOLDER}")
    assert isinstance(engine, ReplayEngine)
    assert ask(engine, "layout", stem="report", page=0).text.startswith("<|box_start|>100 040")


def test_regions_are_found_by_box_then_by_position() -> None:
    engine = ReplayEngine(FOLDER)
    title = (0.1, 0.085, 0.9, 0.12)
    assert ask(engine, stem="report", page=0, order=1).text == "What two copies of one book say"
    assert ask(engine, stem="report", page=0, bbox=title).text == "What two copies of one book say"
    # a layout that was filtered gives other positions, the box still tells
    assert ask(engine, stem="report", page=0, order=7, bbox=title).text.startswith("What two")
    # two regions share this box on page 2
    box = (0.35, 0.41, 0.9, 0.49)
    assert ask(engine, stem="report", page=1, order=10, bbox=box).text.startswith("the second")
    answer = ask(engine, stem="report", page=0, order=1)
    assert (answer.finish_reason, answer.confidence, answer.num_tokens) == ("stop", 0.9983, 7)
    assert ask(engine, stem="report", page=0, order=10).finish_reason == "empty"


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ({"stem": "other", "page": 0}, "no recorded page 'other_p0001' or 'other'"),
        ({"stem": "report", "page": 2}, "no recorded page 'report_p0003'"),
        ({}, "no recorded page"),
        ({"stem": "report", "page": 0, "order": 99}, "no recorded region"),
        ({"stem": "report", "page": 0, "bbox": (0.5, 0.5, 0.6, 0.6)}, "no recorded region"),
        ({"stem": "report", "page": 0}, "no whole-page answer"),
    ],
)
def test_what_was_not_recorded_is_an_answer_with_an_error(
    origin: dict[str, object], message: str
) -> None:
    answer = ask(ReplayEngine(FOLDER), **origin)
    assert answer.finish_reason == "error"
    assert isinstance(answer.error, EngineError)
    assert message in str(answer.error)


def test_tables_can_be_played_as_otsl(tmp_path: Path) -> None:
    page = json.loads((FOLDER / "report_p0002.json").read_text(encoding="utf-8"))
    page["regions"][2]["content"] = "<table><tr><td>a</td><td>b</td></tr></table>"
    (tmp_path / "x.json").write_text(json.dumps(page), encoding="utf-8")
    assert ask(ReplayEngine(tmp_path), "table", stem="x", page=0, order=2).text.startswith("<table")
    otsl = ReplayEngine(tmp_path, tables="otsl")
    assert ask(otsl, "table", stem="x", page=0, order=2).text == "<fcel>a<fcel>b<nl>"


def test_folders_and_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="no folder"):
        ReplayEngine(tmp_path / "none")
    with pytest.raises(EngineUnavailableError, match="no recorded page"):
        ReplayEngine(tmp_path)
    with pytest.raises(ConfigError, match="tables"):
        ReplayEngine(FOLDER, tables="html")  # type: ignore[arg-type]
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    (tmp_path / "b.json").write_text('{"layout_output": 1, "regions": []}', encoding="utf-8")
    engine = ReplayEngine(tmp_path)
    for stem in ("a", "b"):
        answer = ask(engine, "layout", stem=stem, page=0)
        assert isinstance(answer.error, EngineError)
        assert f"'{stem}.json'" in str(answer.error)


BAD_VALUES = [
    ("content", 5),
    ("content", ["a"]),
    ("confidence", float("nan")),
    ("confidence", float("inf")),
    ("confidence", 1.5),
    ("confidence", "0.9"),
    ("num_tokens", "a"),
    ("num_tokens", float("inf")),
    ("num_tokens", -1),
    ("num_forwards", True),
    ("finish_reason", "weird"),
    ("finish_reason", []),
]


def spoiled(folder: Path, change: Callable[[dict[str, Any]], None], number: int = 1) -> None:
    """Write the recording with one page changed."""
    for path in FOLDER.glob("*.json"):
        page = json.loads(path.read_text(encoding="utf-8"))
        if path.stem == f"report_p{number:04d}":
            change(page)
        (folder / path.name).write_text(json.dumps(page), encoding="utf-8")


@pytest.mark.parametrize(
    ("field", "value"),
    [*BAD_VALUES, ("bbox", ["a", "b", "c", "d"]), ("bbox", "abcd"), ("bbox", [float("nan")] * 4),
     ("bbox", [10**400, 0, 1, 1]), ("bbox", None)],
)  # fmt: skip
def test_a_malformed_region_fails_alone_and_names_file_and_field(
    tmp_path: Path, report_tiff: Path, field: str, value: object
) -> None:
    spoiled(tmp_path, lambda page: page["regions"][2].update({field: value}))
    pages = read(report_tiff, ReplayEngine(tmp_path))
    want = read(report_tiff, ReplayEngine(FOLDER))
    bad = pages[0].regions[2]
    assert bad.error is not None
    assert f"'report_p0001.json': regions[2].{field} is " in bad.error.message
    assert pages[0].status == "partial"
    assert [r for r in pages[0].regions if r is not bad] == [
        r for i, r in enumerate(want[0].regions) if i != 2
    ]
    assert pages[1] == want[1]
    doc = ParsedDocument(source="", pages=tuple(pages), num_pages=2)
    assert ParsedDocument.from_json(doc.to_json()) == doc


@pytest.mark.parametrize("region", [None, 5, "ab", [1], {}])
def test_a_region_that_is_no_region_fails_alone(
    tmp_path: Path, report_tiff: Path, region: object
) -> None:
    def change(page: dict[str, Any]) -> None:
        page["regions"][2] = region

    spoiled(tmp_path, change)
    first, _ = read(report_tiff, ReplayEngine(tmp_path))
    assert [r.order for r in first.regions if r.error is not None] == [2]
    assert first.regions[2].error is not None
    assert "'report_p0001.json': regions[2]" in first.regions[2].error.message
    # found by its box alone, it may be the one that cannot be compared
    answer = ask(ReplayEngine(tmp_path), stem="report", page=0, bbox=(0.1, 0.15, 0.485, 0.32))
    assert "no recorded region" in str(answer.error)
    assert "regions[2]" in str(answer.error)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layout": [1]}, "layout is"),
        *(({"layout": {name: value}}, f"layout.{name} is") for name, value in BAD_VALUES[2:]),
        ({"layout_output": None}, "layout_output is"),
        ({"regions": {}}, "regions is"),
    ],
)
def test_a_malformed_layout_fails_its_page_alone(
    tmp_path: Path, report_tiff: Path, change: dict[str, object], field: str
) -> None:
    spoiled(tmp_path, lambda page: page.update(change))
    answer = ask(ReplayEngine(tmp_path), "layout", stem="report", page=0)
    assert isinstance(answer.error, EngineError)
    assert f"'report_p0001.json': {field}" in str(answer.error)
    first, second = read(report_tiff, ReplayEngine(tmp_path))
    assert first.status == "failed"
    assert second == read(report_tiff, ReplayEngine(FOLDER))[1]
    doc = ParsedDocument(source="", pages=(first, second), num_pages=2)
    assert ParsedDocument.from_json(doc.to_json()) == doc


@pytest.mark.parametrize(
    ("whole", "field"),
    [
        ("words", "whole_page is"),
        ([1], "whole_page is"),
        ({"text": "words"}, "whole_page.text is"),
        ({"text": ["words"]}, "whole_page.text is"),
        ({"text": {"content": None}}, "whole_page.text.content is"),
        ({"text": {"finish_reason": "stop"}}, "whole_page.text.content is"),
        ({"text": {"content": "a", "num_tokens": "a"}}, "whole_page.text.num_tokens is"),
    ],
)
def test_a_malformed_whole_page_answer_names_file_and_field(
    tmp_path: Path, whole: object, field: str
) -> None:
    spoiled(tmp_path, lambda page: page.update(whole_page=whole))
    answer = ask(ReplayEngine(tmp_path), stem="report", page=0)
    assert isinstance(answer.error, EngineError)
    assert f"'report_p0001.json': {field}" in str(answer.error)


@pytest.mark.parametrize("text", ["[]", "5", "null", "[" * 100_000, '{"layout_output": "x"}'])
def test_a_file_of_another_form_is_an_answer_with_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    for task in ("layout", "text"):
        answer = ask(ReplayEngine(tmp_path), task, stem="x", page=0, order=0)
        assert isinstance(answer.error, EngineError)
        assert "'x.json'" in str(answer.error)


def test_half_of_a_surrogate_pair_is_recorded_as_a_replacement(
    tmp_path: Path, report_tiff: Path
) -> None:
    def script(request: Request) -> str:
        if request.task == "layout":
            return "<|box_start|>0 0 999 999<|box_end|><|ref_start|>text<|ref_end|>"
        return "half \ud83d"

    list(record(report_tiff, tmp_path, engine=ScriptedEngine(script)))
    assert read(report_tiff, ReplayEngine(tmp_path))[0].regions[0].text == "half \ufffd"


def test_a_recorded_half_of_a_surrogate_pair_is_played_as_a_replacement(tmp_path: Path) -> None:
    region = {"bbox": [0, 0, 1, 1], "content": "half \ud83d"}
    page = {"layout_output": "\udc00", "regions": [region]}
    (tmp_path / "x.json").write_text(json.dumps(page))
    engine = ReplayEngine(tmp_path)
    assert ask(engine, stem="x", page=0, order=0).text == "half \ufffd"
    assert ask(engine, "layout", stem="x", page=0).text == "\ufffd"


def test_pages_recorded_later_are_seen(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        page = {"layout_output": "", "regions": [{"bbox": [0, 0, 1, 1], "content": text}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(page))

    write("a_p0001", "first")
    engine = ReplayEngine(tmp_path)
    assert ask(engine, stem="a", page=0, order=0).text == "first"
    assert ask(engine, stem="b", page=0, order=0).error is not None
    write("b_p0001", "second")
    assert ask(engine, stem="b", page=0, order=0).text == "second"
    write("a_p0001", "first, recorded again")
    assert ask(engine, stem="a", page=0, order=0).text == "first, recorded again"


def test_a_recording_plays_back_to_the_same_pages(tmp_path: Path, report_tiff: Path) -> None:
    written = list(record(report_tiff, tmp_path, engine=ReplayEngine(FOLDER)))
    assert [path.name for path in written] == ["report_p0001.json", "report_p0002.json"]
    assert (tmp_path / "report_p0001.jpg").is_file()
    again = read(report_tiff, ReplayEngine(tmp_path))
    assert again == read(report_tiff, ReplayEngine(FOLDER))
    saved = json.loads(written[0].read_text(encoding="utf-8"))
    doc = ParsedDocument(source="", pages=tuple(again[:1]), num_pages=1)
    assert saved["markdown"] == to_markdown(doc)
    assert saved["threshold"] == 0.95
    # the list was told by its items, so nothing was asked about it
    assert saved["regions"][7]["content"] is None


def test_failures_are_recorded_too(tmp_path: Path, report_tiff: Path) -> None:
    def script(request: Request) -> str:
        if request.origin["page"] == 1:
            if request.task == "layout":
                return "no layout at all"
            return "the page as one text"
        if request.task == "layout":
            return "<|box_start|>0 0 999 999<|box_end|><|ref_start|>text<|ref_end|>"
        raise EngineError("lost the model")

    list(record(report_tiff, tmp_path, engine=ScriptedEngine(script)))
    first, second = read(report_tiff, ReplayEngine(tmp_path))
    assert first.status == "failed"
    assert first.error is not None
    assert "lost the model" in first.error.message
    assert (second.status, second.regions[0].text) == ("layout_failed", "the page as one text")


def test_an_engine_without_layouts_is_recorded_through_its_regions(tmp_path: Path) -> None:
    regions = (
        Region(id="p0r0", order=0, type="text", bbox=BBox(0.1, 0.1, 0.9, 0.2), text="words"),
        Region(id="p0r1", order=1, type="table", bbox=BBox(0.1, 0.3, 0.9, 0.4), angle=90,
               table=Table.from_rows([["a", "b"]])),
        Region(id="p0r2", order=2, type="other", raw_label="odd", bbox=BBox(0.1, 0.5, 0.9, 0.6),
               text="more"),
    )  # fmt: skip
    page = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), regions=regions)
    again = recorded(tmp_path, page)
    assert [(r.type, r.raw_label, r.angle, r.text, r.table) for r in again.regions] == [
        (r.type, r.raw_label, r.angle, r.text, r.table) for r in regions
    ]


def recorded(tmp_path: Path, page: ParsedPage) -> ParsedPage:
    """Return what a page without recorded layout plays back as."""
    write_page(tmp_path, "scan_p0001", page, [])
    image = tmp_path / "scan.png"
    shutil.copy(FOLDER / "report_p0001.jpg", image)
    (again,) = read(image, ReplayEngine(tmp_path))
    return again


def test_a_page_without_regions_does_not_fail_when_it_is_played(tmp_path: Path) -> None:
    blank = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), status="blank")
    again = recorded(tmp_path, blank)
    assert again.error is None and again.status != "failed"
    assert [region.text for region in again.regions] == [""]


def test_a_page_that_failed_fails_when_it_is_played(tmp_path: Path) -> None:
    error = ErrorRecord(kind="PageError", message="no lines could be cut")
    failed = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), status="failed",
                        error=error)  # fmt: skip
    again = recorded(tmp_path, failed)
    assert again.status == "failed" and again.error is not None
    assert "no lines could be cut" in again.error.message


def test_rows_and_failed_regions_of_an_engine_without_layouts_are_kept(tmp_path: Path) -> None:
    rows = ["Name Price Count", "Apple 12 3", "Pear 14 5"]
    error = ErrorRecord(kind="EngineError", message="lost the model")
    regions = (
        Region(id="p0r0", order=0, type="text", bbox=BBox(0.1, 0.1, 0.9, 0.2),
               text="\n".join(rows)),
        Region(id="p0r1", order=1, type="list", bbox=BBox(0.1, 0.3, 0.9, 0.4), text="one\ntwo"),
        Region(id="p0r2", order=2, type="text", bbox=BBox(0.1, 0.5, 0.9, 0.6),
               text="Before\n- one\n- two"),
        Region(id="p0r3", order=3, type="text", bbox=BBox(0.1, 0.7, 0.9, 0.8),
               finish_reason="error", error=error),
    )  # fmt: skip
    page = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), regions=regions)
    table, listed, bullets, failed = recorded(tmp_path, page).regions
    assert [row for row in table.text.split("\n") if row] == rows
    assert (listed.text, bullets.text) == ("one\ntwo", "Before\n- one\n- two")
    assert failed.error is not None and "lost the model" in failed.error.message


def test_pages_that_cannot_be_read_are_told(tmp_path: Path, report_tiff: Path) -> None:
    def script(request: Request) -> str:
        raise EngineError("lost the model")

    told: list[str] = []
    list(record(report_tiff, tmp_path, engine=ScriptedEngine(script), on_failed=told.append))
    assert len(told) == 2
    assert all("lost the model" in message for message in told)


def test_the_recorder_passes_everything_on() -> None:
    inner = ScriptedEngine()
    recorder = RecordingEngine(inner)
    assert (recorder.name, recorder.capabilities) == (inner.name, inner.capabilities)
    image = Image.new("RGB", (4, 4))
    requests = [Request(id="a", image=image, origin={"stem": "x", "page": 1}),
                Request(id="b", image=image)]  # fmt: skip
    answers = list(recorder.answer(iter(requests)))
    assert [answer.id for answer in answers] == ["a", "b"]
    assert recorder.take("x", 1) == [(requests[0], answers[0])]
    assert recorder.take("x", 1) == []
    with recorder:
        list(recorder.answer(requests))
    assert recorder.take("x", 1) == []
    assert not inner.closed


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, report_tiff: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        list(record(report_tiff, blocked, engine=ReplayEngine(FOLDER)))
