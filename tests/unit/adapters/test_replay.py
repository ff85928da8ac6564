"""Recorded pages: found by page and region, written by a recorder, played back to the same page."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from PIL import Image

from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.engines import Answer, DecodeConfig, Engine, Request, open_engine
from mdiff_adapters.engines.record import RecordingEngine, record
from mdiff_adapters.engines.replay import ReplayEngine
from mdiff_adapters.errors import ConfigError, EngineError, EngineUnavailableError
from mdiff_adapters.export import to_markdown
from mdiff_adapters.segmenters import SegmenterOptions
from mdiff_adapters.segmenters.model import ModelSegmenter
from mdiff_adapters.sources import open_source
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
    from mdiff_adapters.document import BBox, Region
    from mdiff_adapters.engines.record import write_page
    from mdiff_adapters.tables import Table

    regions = (
        Region(id="p0r0", order=0, type="text", bbox=BBox(0.1, 0.1, 0.9, 0.2), text="words"),
        Region(id="p0r1", order=1, type="table", bbox=BBox(0.1, 0.3, 0.9, 0.4), angle=90,
               table=Table.from_rows([["a", "b"]])),
        Region(id="p0r2", order=2, type="other", raw_label="odd", bbox=BBox(0.1, 0.5, 0.9, 0.6),
               text="more"),
    )  # fmt: skip
    page = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), regions=regions)
    write_page(tmp_path, "scan_p0001", page, [])
    image = tmp_path / "scan.png"
    shutil.copy(FOLDER / "report_p0001.jpg", image)
    (again,) = read(image, ReplayEngine(tmp_path))
    assert [(r.type, r.raw_label, r.angle, r.text, r.table) for r in again.regions] == [
        (r.type, r.raw_label, r.angle, r.text, r.table) for r in regions
    ]


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
