"""The document parser: laziness, memory, numbering, and what happens when something fails."""

from __future__ import annotations

import dataclasses
import gc
import io
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mdiff_adapters import DocumentParser
from mdiff_adapters.document import ErrorRecord, ParsedPage
from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Engine, Request
from mdiff_adapters.errors import (
    ConfigError,
    CorruptDocumentError,
    DocumentError,
    DocumentNotFoundError,
    EngineError,
    InputTooLargeError,
    PageError,
)
from mdiff_adapters.segmenters import PageImage, SegmenterOptions
from mdiff_adapters.sources.pdf import PdfSource
from mdiff_adapters.testing import ScriptedEngine, sample_pdf

PdfMaker = Callable[..., bytes]
GOOD = "/MediaBox [0 0 144 144]"


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices of the pages rendered so far."""
    seen: list[int] = []
    load = PdfSource.load

    def counted(self: PdfSource, index: int) -> PageImage:
        seen.append(index)
        return load(self, index)

    monkeypatch.setattr(PdfSource, "load", counted)
    return seen


class NoteSegmenter:
    """Notes which pages came together, and reads each as its number."""

    name = "note"

    def __init__(self) -> None:
        self.windows: list[list[int]] = []
        self.alive: weakref.WeakSet[PageImage] = weakref.WeakSet()
        self.most_alive = 0

    def read(
        self,
        pages: Sequence[PageImage],
        engine: Engine,
        decode: DecodeConfig,
        options: SegmenterOptions,
    ) -> list[ParsedPage]:
        self.windows.append([page.index for page in pages])
        self.alive.update(pages)
        gc.collect()
        self.most_alive = max(self.most_alive, len(self.alive))
        return [
            ParsedPage(
                index=page.index, label=page.label, size_px=page.image.size, size_pt=page.size_pt
            )
            for page in pages
        ]


def test_star_the_first_page_costs_one_render(rendered: list[int]) -> None:
    """Three pages, asked for one by one."""
    engine = ScriptedEngine()
    stream = DocumentParser(engine, window=2).stream(sample_pdf(3))
    assert rendered == []
    first = next(stream)
    assert (first.index, rendered) == (0, [0])
    assert first.regions[0].text == "Text of page 1"
    second = next(stream)
    assert (second.index, rendered) == (1, [0, 1, 2])
    assert [page.index for page in stream] == [2]


@pytest.mark.usefixtures("quiet_heap")
def test_windows_and_the_number_of_images_alive() -> None:
    segmenter = NoteSegmenter()
    parser = DocumentParser(ScriptedEngine(), segmenter=segmenter, window=3)
    seen = []
    for page in parser.stream(sample_pdf(9)):
        seen.append(page.index)
        gc.collect()
        assert len(segmenter.alive) == 0, "no image is held while the caller has the page"
    assert seen == list(range(9))
    assert segmenter.windows == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]
    assert segmenter.most_alive <= 3 + 1


@pytest.mark.usefixtures("quiet_heap")
def test_page_images_live_no_longer_than_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the real segmenters, which hold crops and plans of their own."""
    alive: weakref.WeakSet[PageImage] = weakref.WeakSet()
    load = PdfSource.load
    most = 0

    def watched(self: PdfSource, index: int) -> PageImage:
        nonlocal most
        page = load(self, index)
        alive.add(page)
        gc.collect()
        most = max(most, len(alive))
        return page

    monkeypatch.setattr(PdfSource, "load", watched)
    pages = list(DocumentParser(ScriptedEngine(), window=2).stream(sample_pdf(7)))
    gc.collect()
    assert len(pages) == 7
    assert most <= 2 + 1
    assert len(alive) == 0


def test_parse_is_the_list_of_the_stream() -> None:
    parser = DocumentParser(ScriptedEngine())
    document = parser.parse(sample_pdf(5, roman=2), name="five.pdf")
    assert document.pages == tuple(parser.stream(sample_pdf(5, roman=2), name="five.pdf"))
    assert (document.source, document.num_pages) == ("five.pdf", 5)
    assert document.metadata["title"] == "Sample"
    assert [page.label for page in document.pages] == ["i", "ii", "1", "2", "3"]
    assert document.pages[3].size_pt == (144, 144)
    assert document.errors == ()


def test_facts_before_pages(rendered: list[int]) -> None:
    with DocumentParser(ScriptedEngine(), pages="2-").open(sample_pdf(4)) as document:
        assert (document.num_pages, document.page_indices) == (4, (1, 2, 3))
        assert document.metadata["author"] == "A. Writer"
        assert rendered == []
        assert [page.index for page in document] == [1, 2, 3]


def test_the_documents_own_numbering_is_kept(rendered: list[int]) -> None:
    parser = DocumentParser(ScriptedEngine(), pages="1")
    document = parser.parse(sample_pdf(6), pages=[4, 1])
    assert [page.index for page in document.pages] == [1, 4]
    assert [page.regions[0].text for page in document.pages] == ["Text of page 2", "Text of page 5"]
    assert document.num_pages == 6
    assert rendered == [1, 4]
    with pytest.raises(ConfigError, match="the document has 6 pages"):
        parser.parse(sample_pdf(6), pages="7")


def open_files() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{name}")
    }


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_closing_the_stream_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nine.pdf"
    path.write_bytes(sample_pdf(9))
    stream = DocumentParser(ScriptedEngine()).stream(path)
    next(stream)
    assert str(path) in open_files()
    stream.close()  # type: ignore[attr-defined]
    assert str(path) not in open_files()
    document = DocumentParser(ScriptedEngine()).open(path)
    next(document)
    document.close()
    document.close()
    assert str(path) not in open_files()


def test_an_exception_of_the_consumer_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "three.pdf"
    path.write_bytes(sample_pdf(3))
    with pytest.raises(ZeroDivisionError), DocumentParser(ScriptedEngine()).open(path) as document:
        for _ in document:
            raise ZeroDivisionError
    path.unlink()
    with pytest.raises(DocumentNotFoundError):
        DocumentParser(ScriptedEngine()).parse(path)


# --- failing pages


def test_a_broken_second_page_is_a_record_and_the_others_are_kept(make_pdf: PdfMaker) -> None:
    data = make_pdf([GOOD, "", GOOD])
    document = DocumentParser(ScriptedEngine()).parse(data, name="three.pdf")
    assert [page.status for page in document.pages] == ["ok", "failed", "ok"]
    assert [page.index for page in document.pages] == [0, 1, 2]
    bad = document.pages[1]
    assert (bad.label, bad.size_px, bad.regions) == ("2", (0, 0), ())
    [error] = document.errors
    assert error == bad.error
    assert (error.kind, error.page, error.stage) == ("PageError", 1, "render")
    assert error.message.startswith("three.pdf, page 2: ")
    assert "save the PDF again" in error.message


def test_skip_leaves_failed_pages_out_and_raise_raises_at_their_turn(make_pdf: PdfMaker) -> None:
    data = make_pdf([GOOD, "", GOOD])
    skipped = DocumentParser(ScriptedEngine(), on_error="skip").parse(data)
    assert [page.index for page in skipped.pages] == [0, 2]
    assert skipped.num_pages == 3
    stream = DocumentParser(ScriptedEngine(), on_error="raise").stream(data, name="three.pdf")
    assert next(stream).index == 0
    with pytest.raises(PageError, match=r"three\.pdf, page 2: ") as caught:
        next(stream)
    assert (caught.value.page, caught.value.source) == (1, "three.pdf")
    stream = DocumentParser(ScriptedEngine(), on_error="raise").stream(make_pdf([GOOD] * 3 + [""]))
    assert [next(stream).index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(PageError, match="page 4"):
        next(stream)


def test_raise_raises_what_a_region_recorded() -> None:
    def script(request: Request) -> str | Answer:
        if request.task != "layout":
            raise EngineError("out of memory")
        return "<|box_start|>050 050 950 950<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"

    kept = DocumentParser(ScriptedEngine(script)).parse(sample_pdf(1))
    assert {error.kind for error in kept.errors if error.region} == {"EngineError"}
    assert kept.pages[0].status == "failed"
    with pytest.raises(EngineError, match="out of memory"):
        DocumentParser(ScriptedEngine(script), on_error="raise").parse(sample_pdf(1))


def test_a_page_with_an_absurd_size_costs_only_itself(make_pdf: PdfMaker) -> None:
    data = make_pdf(["/MediaBox [0 0 144 2147483648]", GOOD])
    document = DocumentParser(ScriptedEngine()).parse(data)
    assert [page.status for page in document.pages] == ["failed", "ok"]
    assert document.errors[0].kind == InputTooLargeError.__name__


def test_star_02_a_lying_count_ends_soon_with_one_good_page(make_pdf: PdfMaker) -> None:
    start = time.process_time()
    data = make_pdf([GOOD], count=99_999)
    document = DocumentParser(ScriptedEngine(), max_failed_pages=5).parse(data)
    assert time.process_time() - start < 2
    assert document.num_pages == 99_999
    assert [page.status for page in document.pages] == ["ok"] + ["failed"] * 5
    assert document.pages[-1].error is not None
    assert "99993" in document.pages[-1].error.message
    assert "not tried" in document.pages[-1].error.message


@pytest.mark.parametrize(("pages", "left"), [("1-7", 2), ("1-5", 0)])
def test_pages_not_tried_are_those_that_were_selected(
    make_pdf: PdfMaker, pages: str, left: int
) -> None:
    data = make_pdf([""] * 100)
    document = DocumentParser(ScriptedEngine(), max_failed_pages=5, pages=pages).parse(data)
    assert document.pages[-1].error is not None
    message = document.pages[-1].error.message
    assert ("not tried" in message) == bool(left)
    assert not left or f"the last {left} were" in message


def test_skipping_tells_that_a_document_was_given_up(make_pdf: PdfMaker) -> None:
    """The good pages behind the broken ones are not read, which must not look like their end."""
    data = make_pdf([GOOD, *[""] * 5, GOOD])
    parser = DocumentParser(ScriptedEngine(), max_failed_pages=3, on_error="skip")
    good, last = parser.parse(data).pages
    assert (good.index, good.status, last.index, last.status) == (0, "ok", 3, "failed")
    assert last.error is not None
    assert "the last 3 were not tried" in last.error.message


def test_raise_raises_what_the_layout_failed_of() -> None:
    def script(request: Request) -> str:
        if request.task == "layout":
            raise EngineError("out of memory")
        return "all of it"

    page = DocumentParser(ScriptedEngine(script)).parse(sample_pdf(1)).pages[0]
    assert (page.status, page.to_markdown()) == ("layout_failed", "all of it")
    assert [error.message for error in page.errors] == ["out of memory"]
    with pytest.raises(EngineError, match="out of memory"):
        DocumentParser(ScriptedEngine(script), on_error="raise").parse(sample_pdf(1))


def test_a_closed_stream_is_not_an_empty_document() -> None:
    with DocumentParser(ScriptedEngine()).open(sample_pdf(2), name="two.pdf") as stream:
        next(stream)
    with pytest.raises(DocumentError, match=r"two\.pdf: the document is closed"):
        next(stream)


def test_single_failures_do_not_add_up(make_pdf: PdfMaker) -> None:
    data = make_pdf([GOOD, "", GOOD, "", GOOD, "", GOOD])
    document = DocumentParser(ScriptedEngine(), max_failed_pages=2).parse(data)
    assert [page.status for page in document.pages] == ["ok", "failed"] * 3 + ["ok"]


def test_documents_that_cannot_be_opened_raise_whatever_on_error_says(tmp_path: Path) -> None:
    path = tmp_path / "page.pdf"
    path.write_bytes(b"<html>404</html>")
    for on_error in ("record", "skip", "raise"):
        parser = DocumentParser(ScriptedEngine(), on_error=on_error)  # type: ignore[arg-type]
        with pytest.raises(CorruptDocumentError, match="an HTML page, not a PDF"):
            parser.parse(path)


def test_an_engine_that_fails_as_a_whole_raises_and_closes_the_document(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.close()
    path = tmp_path / "one.pdf"
    path.write_bytes(sample_pdf(1))
    with pytest.raises(EngineError, match="closed"):
        DocumentParser(engine).parse(path)
    if Path("/proc/self/fd").is_dir():
        assert str(path) not in open_files()


def test_a_reduced_resolution_is_a_warning_of_the_page(make_pdf: PdfMaker) -> None:
    parser = DocumentParser(ScriptedEngine(), max_pixels=50_000)
    [page] = parser.parse(make_pdf([GOOD])).pages
    warning = page.warnings[0]
    assert isinstance(warning, ErrorRecord)
    assert "in place of 200" in warning.message
    assert page.status == "ok"
    assert page.size_px[0] * page.size_px[1] <= 50_000


# --- settings


def test_settings_reach_the_engine() -> None:
    engine = ScriptedEngine()
    DocumentParser(engine, threshold=0.6).parse(sample_pdf(1))
    DocumentParser(engine, decode=DecodeConfig(threshold=0.7)).parse(sample_pdf(1))
    DocumentParser(engine, threshold=0.8, decode=DecodeConfig(threshold=0.7)).parse(sample_pdf(1))
    assert [asked.threshold for asked in engine.asked[::2]] == [0.6, 0.7, 0.8]


def test_the_segmenter_follows_from_the_engine_or_is_chosen() -> None:
    text_only = ScriptedEngine(capabilities=Capabilities(tasks=("text",)))
    assert DocumentParser(text_only).segmenter.name == "lines"
    assert DocumentParser(ScriptedEngine()).segmenter.name == "model"
    assert DocumentParser(ScriptedEngine(), segmenter="lines").segmenter.name == "lines"
    with pytest.raises(ConfigError, match="did you mean 'lines'"):
        _ = DocumentParser(ScriptedEngine(), segmenter="line").segmenter


@pytest.mark.parametrize(
    "bad",
    [
        {"window": 0}, {"window": True}, {"window": 1.5}, {"window": "a"}, {"window": None},
        {"max_failed_pages": 0}, {"max_failed_pages": None}, {"on_error": "ignore"},
        {"pages": 0}, {"pages": 1}, {"pages": b"1"}, {"pages": 1.5}, {"pages": iter([1])},
        {"pages": {1: 2}},
        {"dpi": 3}, {"max_pixels": 0}, {"images": "all"}, {"threshold": 1.5},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DocumentParser(ScriptedEngine(), **bad)


@pytest.mark.parametrize(
    ("engine", "bad", "message"),
    [
        ("tiny", {"treshold": 0.5}, "DocumentParser has no option 'treshold'.*'threshold'"),
        ("tiny", {"devise": "cpu"}, "no option 'devise'.*'device'"),
        (ScriptedEngine(), {"device": "cpu"}, "already built"),
    ],
)
def test_settings_that_nobody_takes_are_refused_before_the_engine_is_opened(
    engine: Any, bad: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DocumentParser(engine, **bad)


@pytest.mark.parametrize("pages", ["", "a", "-1", "0", "3-1", [], [1.5], [-1], ["1"], "9" * 5000])
def test_pages_of_no_document_are_refused_before_one_is_opened(pages: Any) -> None:
    with pytest.raises(ConfigError, match="page"):
        DocumentParser(ScriptedEngine(), pages=pages)


def test_the_password_is_never_shown() -> None:
    parser = DocumentParser("http://host:1", password="geheim-7", api_key="schluessel-8")
    assert "geheim-7" not in repr(parser)
    assert "schluessel-8" not in repr(parser)


def test_it_pickles_and_works_on_the_other_side() -> None:
    parser = DocumentParser("scripted:", threshold=0.5, pages="2")
    copy = pickle.loads(pickle.dumps(parser))
    assert copy.parse(sample_pdf(3)) == parser.parse(sample_pdf(3))


def test_runs_are_equal_and_threads_do_not_mix() -> None:
    parser = DocumentParser(ScriptedEngine(), window=2)
    expected = parser.parse(sample_pdf(5))
    results: list[Any] = []

    def work() -> None:
        results.append(parser.parse(sample_pdf(5)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_two_streams_of_one_parser_interleave() -> None:
    parser = DocumentParser(ScriptedEngine(), window=2)
    pairs = zip(parser.stream(sample_pdf(4)), parser.stream(sample_pdf(4)), strict=True)
    assert [(a.index, b.index) for a, b in pairs] == [(n, n) for n in range(4)]


def test_every_kind_of_source_gives_the_same_pages(tmp_path: Path) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(sample_pdf(2))
    parser = DocumentParser(ScriptedEngine())
    results = [parser.parse(source).pages for source in sources(path)]
    assert all(pages == results[0] for pages in results)


def sources(path: Path) -> Iterator[Any]:
    yield path
    yield str(path)
    yield path.read_bytes()
    yield io.BytesIO(path.read_bytes())
    with path.open("rb") as file:
        yield file


def test_images_of_many_frames_and_pillow_images() -> None:
    first, second = Image.new("L", (300, 200), 255), Image.new("L", (200, 300), 255)
    for image in (first, second):
        image.paste(0, (50, 50, 150, 150))
    out = io.BytesIO()
    first.save(out, "TIFF", save_all=True, append_images=[second], dpi=(100, 100))
    parser = DocumentParser(ScriptedEngine())
    document = parser.parse(out.getvalue())
    assert [page.size_px for page in document.pages] == [(300, 200), (200, 300)]
    assert document.pages[1].size_pt == pytest.approx((144, 216))
    [page] = parser.parse(second).pages
    assert page.size_px == (200, 300)
    assert page.regions == dataclasses.replace(document.pages[0]).regions
