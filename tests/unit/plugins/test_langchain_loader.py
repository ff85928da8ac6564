"""MDiffLoader, MDiffBlobParser and MDiffImageParser by themselves, on langchain-core only."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pypdf
import pytest
from langchain_core.document_loaders import Blob
from PIL import Image

from langchain_mdiff import MDiffBlobParser, MDiffImageParser, MDiffLoader
from mdiff_adapters.engines import Answer, EngineSpec, Request
from mdiff_adapters.errors import (
    ConfigError,
    MDiffError,
    PageError,
    PasswordRequiredError,
    UnsupportedDocumentError,
    WrongPasswordError,
)
from mdiff_adapters.provenance import stable_id
from mdiff_adapters.testing import ScriptedEngine, default_script, sample_pdf

LAYOUT = (
    "<|box_start|>100 050 900 100<|box_end|><|ref_start|>title<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 150 900 400<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 450 900 900<|box_end|><|ref_start|>table<|ref_end|><|rotate_up|>"
)


def rich(request: Request) -> str:
    """A page with a title, a paragraph and a table."""
    if request.task == "layout":
        return LAYOUT
    if request.task == "table":
        return "<fcel>Year<fcel>Sum<nl><fcel>2024<fcel>7<nl>"
    return "Report" if request.origin["order"] == 0 else "A paragraph."


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "sample.pdf"
    path.write_bytes(sample_pdf(3, roman=2))
    return path


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """One page with ink where :data:`LAYOUT` says there is something."""
    page = Image.new("L", (400, 600), 255)
    for top, bottom in ((40, 50), (120, 200), (300, 500)):
        page.paste(0, (60, top, 340, bottom))
    path = tmp_path / "scan.png"
    page.save(path)
    return path


def load(source: Any, script: Any = default_script, **options: Any) -> list[Any]:
    return MDiffLoader(source, engine=ScriptedEngine(script), **options).load()


def encrypted(user: str, owner: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(1)))
    writer.encrypt(user_password=user, owner_password=owner, algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


# -- what comes out -----------------------------------------------------------------------------


def test_metadata_is_what_pdf_loaders_have(pdf: Path) -> None:
    document = load(pdf)[1]
    assert document.metadata == {
        "source": str(pdf),
        "total_pages": 3,
        "producer": "mdiff_adapters.testing",
        "creator": "sample_pdf",
        "creationdate": document.metadata["creationdate"],
        "title": "Sample",
        "author": "A. Writer",
        "format": "markdown",
        "loader": "mdiff",
        "mdiff_schema": 1,
        "page": 1,
        "page_label": "ii",
    }
    assert document.metadata["creationdate"].startswith("2024-01-02T03:04:05")


def test_a_page_range_keeps_the_documents_numbers(pdf: Path) -> None:
    """Thread row 1: page_from forgotten, labels off by one."""
    documents = load(pdf, pages="2-3")
    assert [d.metadata["page"] for d in documents] == [1, 2]
    assert [d.metadata["page_label"] for d in documents] == ["ii", "1"]
    assert [d.metadata["total_pages"] for d in documents] == [3, 3]
    assert [d.page_content for d in documents] == ["Text of page 2", "Text of page 3"]
    assert [d.metadata["page"] for d in load(pdf, pages=[0])] == [0]


def test_single_is_one_document_with_form_feeds(pdf: Path) -> None:
    [document] = load(pdf, mode="single")
    assert document.page_content == "Text of page 1\n\fText of page 2\n\fText of page 3"
    assert "page" not in document.metadata
    [document] = load(pdf, mode="single", pages_delimiter=" | ")
    assert document.page_content.count(" | ") == 2


def test_elements_are_one_document_a_region(scan: Path) -> None:
    documents = load(scan, rich, mode="elements")
    assert [d.metadata["category"] for d in documents] == ["title", "text", "table"]
    assert [d.page_content.split("\n")[0] for d in documents[:2]] == ["# Report", "A paragraph."]
    assert documents[2].page_content.startswith("<table>")
    assert documents[2].metadata["bbox"] == "0.1,0.45,0.9,0.9"
    assert {d.metadata["page"] for d in documents} == {0}
    assert len({d.id for d in documents}) == 3
    for document in documents:
        assert all(isinstance(v, (str, int)) for v in document.metadata.values())


def test_elements_keep_a_page_that_failed(pdf: Path) -> None:
    def script(request: Request) -> str:
        if request.origin["page"] == 1:
            raise RuntimeError("device lost")
        return default_script(request)

    documents = load(pdf, script, mode="elements")
    assert [d.metadata["category"] for d in documents] == ["text", "error", "text"]
    assert "device lost" in documents[1].metadata["mdiff_error"]


def test_elements_keep_a_region_that_failed_in_its_place(scan: Path) -> None:
    def script(request: Request) -> str:
        if request.origin.get("order") == 1:
            raise RuntimeError("device lost")
        return rich(request)

    whole = load(scan, rich, mode="elements", include_blocks=True)
    documents = load(scan, script, mode="elements", include_blocks=True)
    assert [d.metadata["category"] for d in documents] == ["title", "error", "table"]
    assert [d.id for d in documents] == [d.id for d in whole], "a second run cannot replace it"
    lost = documents[1]
    assert (lost.page_content, lost.metadata["mdiff_blocks"]) == ("", "[]")
    assert "device lost" in lost.metadata["mdiff_error"]
    assert lost.metadata["bbox"] == whole[1].metadata["bbox"]
    assert not any("mdiff_error" in d.metadata for d in (documents[0], documents[2]))


def test_elements_leave_out_a_region_that_is_only_empty(scan: Path) -> None:
    def script(request: Request) -> str:
        return "" if request.origin.get("order") == 1 else rich(request)

    documents = load(scan, script, mode="elements")
    assert [d.metadata["category"] for d in documents] == ["title", "table"]


def test_single_tells_every_error_of_pages_with_the_same_label() -> None:
    def script(request: Request) -> str:
        raise RuntimeError(f"lost {request.origin['page']}")

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(3)))
    writer.set_page_label(0, 0, style="/D", start=1)
    writer.set_page_label(1, 2, style="/D", start=1)
    buffer = io.BytesIO()
    writer.write(buffer)
    loader = MDiffLoader(file=buffer, engine=ScriptedEngine(script), mode="single")
    error = loader.load()[0].metadata["mdiff_error"]
    assert [error.count(f"lost {page}") for page in range(3)] == [1, 1, 1]
    assert [part.split(":")[0] for part in error.split("; ")] == ["page 1", "page 1", "page 2"]


def test_table_format_and_text(scan: Path) -> None:
    """Thread row 19: a bare <table>, or pipes, or tabs."""
    [html] = load(scan, rich)
    [pipes] = load(scan, rich, table_format="markdown")
    [text] = load(scan, rich, format="text")
    assert "<table>" in html.page_content
    assert "| Year | Sum |" in pipes.page_content
    assert "Year\tSum" in text.page_content and "#" not in text.page_content
    assert text.metadata["format"] == "text"


def test_blocks_are_one_json_string_and_off_by_default(scan: Path) -> None:
    [document] = load(scan, rich, include_blocks=True)
    blocks = json.loads(document.metadata["mdiff_blocks"])
    assert [block["type"] for block in blocks] == ["title", "text", "table"]
    assert blocks[0]["bbox"] == [0.1, 0.05, 0.9, 0.1]
    assert blocks[1]["text"] == "A paragraph."
    assert "mdiff_blocks" not in load(scan, rich)[0].metadata


def test_blocks_of_a_file_say_their_page_and_an_element_has_its_own(pdf: Path) -> None:
    [document] = load(pdf, mode="single", include_blocks=True)
    blocks = json.loads(document.metadata["mdiff_blocks"])
    assert [(block["page"], block["text"]) for block in blocks] == [
        (0, "Text of page 1"), (1, "Text of page 2"), (2, "Text of page 3"),
    ]  # fmt: skip
    for element in load(pdf, mode="elements", include_blocks=True):
        [block] = json.loads(element.metadata["mdiff_blocks"])
        assert block["id"] == element.metadata["element_id"]
        assert block["text"] == element.page_content


def test_an_unreadable_layout_falls_back_to_the_whole_page(pdf: Path) -> None:
    """Thread row 16: layout output is garbage and the page vanishes."""

    def script(request: Request) -> str:
        return "]]<|txtMask fill:#>" if request.task == "layout" else "the whole page"

    documents = load(pdf, script)
    assert [d.page_content for d in documents] == ["the whole page"] * 3
    assert not any("mdiff_error" in d.metadata for d in documents)


def test_a_failed_region_is_told_and_the_rest_kept(scan: Path) -> None:
    def script(request: Request) -> str:
        if request.task == "table":
            raise RuntimeError("too wide")
        return rich(request)

    [document] = load(scan, script)
    assert "A paragraph." in document.page_content
    assert "too wide" in document.metadata["mdiff_error"]


def test_an_answer_that_is_cut_short_is_told(scan: Path) -> None:
    def script(request: Request) -> str | Answer:
        if request.task == "table":
            return Answer(id=request.id, text="<fcel>a<fcel>", finish_reason="length")
        return rich(request)

    [document] = load(scan, script)
    assert "the answer is cut short (length)" in document.metadata["mdiff_error"]


def test_a_layout_that_failed_is_told_and_the_page_kept(pdf: Path) -> None:
    def script(request: Request) -> str:
        if request.task == "layout":
            raise RuntimeError("device lost")
        return "the whole page"

    documents = load(pdf, script)
    assert [d.page_content for d in documents] == ["the whole page"] * 3
    assert all("device lost" in d.metadata["mdiff_error"] for d in documents)


# -- what goes in -------------------------------------------------------------------------------


def test_passwords(tmp_path: Path) -> None:
    """Thread row 2: 'NoneType' object is not iterable."""
    path = tmp_path / "locked.pdf"
    path.write_bytes(encrypted("user", "owner"))
    with pytest.raises(PasswordRequiredError, match=r"locked\.pdf.*password="):
        load(path)
    with pytest.raises(WrongPasswordError, match=r"locked\.pdf"):
        load(path, password="guess")
    assert [d.page_content for d in load(path, password="user")] == ["Text of page 1"]
    assert [d.page_content for d in MDiffLoader(path, "user", engine=ScriptedEngine()).load()]
    path.write_bytes(encrypted("", "owner"))
    assert [d.page_content for d in load(path)] == ["Text of page 1"]


@pytest.mark.parametrize("wrap", [bytes, io.BytesIO])
def test_files_in_memory_can_be_loaded_twice(pdf: Path, wrap: Any) -> None:
    """Thread row 5: bytes and BytesIO; the second run must not be empty."""
    loader = MDiffLoader(file=wrap(pdf.read_bytes()), engine=ScriptedEngine())
    first = loader.load()
    assert first == loader.load()
    assert [d.id for d in first] == [d.id for d in load(pdf)]
    other = MDiffLoader(file=wrap(sample_pdf(1)), engine=ScriptedEngine()).load()
    sources = {d.metadata["source"] for d in (*first, *other)}
    assert len(sources) == 2, "an index that cleans up by source would mix them up"


def test_an_open_file_keeps_its_name(pdf: Path) -> None:
    with pdf.open("rb") as file:
        loader = MDiffLoader(file=file, engine=ScriptedEngine())
    assert {d.metadata["source"] for d in loader.load()} == {str(pdf)}


@pytest.mark.timeout(20)  # opening a pipe for the second time waits for ever
def test_a_pipe_is_a_file(pdf: Path, open_pipe: Callable[[bytes], Path]) -> None:
    path = open_pipe(pdf.read_bytes())
    documents = load(path)
    assert [d.id for d in documents] == [d.id for d in load(pdf)]
    assert {d.metadata["source"] for d in documents} == {str(path)}


def test_a_url_stays_the_source() -> None:
    """Thread row 4: source is a temporary path."""
    fs = fsspec.filesystem("memory")
    fs.pipe("/bucket/a.pdf", sample_pdf(2))
    try:
        by_url = load("memory://bucket/a.pdf")
        by_fs = MDiffLoader("/bucket/a.pdf", fs=fs, engine=ScriptedEngine()).load()
        assert {d.metadata["source"] for d in by_url} == {"memory://bucket/a.pdf"}
        assert {d.metadata["source"] for d in by_fs} == {"/bucket/a.pdf"}
        assert [d.id for d in by_url] == [d.id for d in by_fs]
        with pytest.raises(FileNotFoundError, match=r"memory://bucket/b\.pdf"):
            load("memory://bucket/b.pdf")
    finally:
        fs.rm("/bucket", recursive=True)


def test_ids_of_one_document_a_file_name_the_selected_pages(pdf: Path) -> None:
    def single(pages: Any) -> str | None:
        [document] = load(pdf, mode="single", pages=pages)
        return document.id

    whole = single(None)
    assert whole == stable_id(hashlib.sha256(pdf.read_bytes()).hexdigest(), "single")
    assert single("1-3") == whole
    assert single("1-2") == single([0, 1]) == single("2,1")
    assert len({whole, single("1-2"), single("1"), single("2-3")}) == 4


def test_images_and_their_pages(tmp_path: Path) -> None:
    pages = [Image.new("L", (120, 80), shade) for shade in (255, 200)]
    pages[0].save(tmp_path / "scan.tiff", save_all=True, append_images=pages[1:])
    documents = load(tmp_path / "scan.tiff")
    assert [d.metadata["page"] for d in documents] == [0, 1]
    assert documents[0].metadata["total_pages"] == 2
    assert documents[0].metadata["producer"] == ""


def test_a_folder_and_a_wrong_suffix(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDocumentError, match="folder"):
        load(tmp_path)
    (tmp_path / "UPPER.PDF").write_bytes(sample_pdf(1))
    assert len(load(tmp_path / "UPPER.PDF")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "pages"}, "mode = 'pages'.*page, single, elements"),
        ({"format": "html"}, "format = 'html'"),
        ({"table_format": "csv"}, "table_format = 'csv'"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"threshold": 1.5}, "threshold"),
    ],
)
def test_wrong_options_are_refused_when_the_loader_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MDiffLoader("a.pdf", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treshold": 0.5}, "MDiffLoader has no option 'treshold'.*'threshold'"),
        ({"moed": "single"}, "no option 'moed'.*'mode'"),
        ({"windw": 2}, "no option 'windw'.*'window'"),
        ({"devise": "cpu"}, "no option 'devise'.*'device'"),
        ({"engine": "replay:pages", "tabels": "otsl"}, "no option 'tabels'.*'tables'"),
        ({"engine": "replay:pages", "device": "cpu"}, "no option 'device'.*engine 'replay:pages'"),
        ({"engine": "http://host:1", "time_out": 3}, "no option 'time_out'.*'timeout_s'"),
        ({"engine": EngineSpec.parse("tiny", devise="cpu")}, "no option 'devise'.*'device'"),
        ({"engine": ScriptedEngine(), "treshold": 0.5}, "no option 'treshold'.*'threshold'"),
    ],
)
def test_a_misspelt_option_is_refused_when_the_loader_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MDiffLoader("a.pdf", **options)


def test_parsers_refuse_misspelt_options_too() -> None:
    with pytest.raises(ConfigError, match=r"MDiffBlobParser has no option 'page'.*'pages'"):
        MDiffBlobParser(page="1")
    with pytest.raises(ConfigError, match=r"MDiffImageParser has no option 'chanels'.*'channels'"):
        MDiffImageParser(chanels="rgb")


def test_options_of_engines_are_forwarded() -> None:
    """Nobody here knows what an engine of a plugin takes."""
    MDiffLoader("a.pdf", engine="theirs:x", treshold=0.5)
    MDiffLoader("a.pdf", engine="tiny", device="cpu", max_sequences=2)
    MDiffLoader("a.pdf", engine=ScriptedEngine(), device="auto", window=2)


@dataclass
class Wrapped:
    """An engine of somebody else: a dataclass, which has no hash."""

    inner: ScriptedEngine
    name: str = "wrapped"

    @property
    def capabilities(self) -> Any:
        return self.inner.capabilities

    def answer(self, requests: Any) -> Any:
        return self.inner.answer(requests)

    def close(self) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: object) -> None: ...


def test_an_engine_without_a_hash_loads_off_the_loop_too(pdf: Path) -> None:
    loader = MDiffLoader(pdf, engine=Wrapped(ScriptedEngine()))

    async def collect() -> list[Any]:
        return [document async for document in loader.alazy_load()]

    assert asyncio.run(collect()) == loader.load()


def test_keys_of_servers_are_not_shown() -> None:
    options: dict[str, Any] = {"engine": "http://host:1", "api_key": "SECRET"}
    adapters = (
        MDiffLoader("a.pdf", **options), MDiffBlobParser(**options), MDiffImageParser(**options),
    )  # fmt: skip
    for adapter in adapters:
        assert "SECRET" not in f"{adapter!r} {adapter} {adapter._parser!r}"


def test_a_loader_needs_exactly_one_file() -> None:
    with pytest.raises(ConfigError, match="a file_path or a file"):
        MDiffLoader()
    with pytest.raises(ConfigError, match="MDiffBlobParser"):
        MDiffLoader(None)
    with pytest.raises(ConfigError):
        MDiffLoader("a.pdf", file=b"x")


def test_making_a_loader_builds_no_engine() -> None:
    MDiffLoader("a.pdf", engine="/no/such/checkpoint")
    with pytest.raises(FileNotFoundError):
        MDiffLoader("/no/such/file.pdf", engine="scripted:").load()


def test_raise_names_the_page_and_the_file(pdf: Path) -> None:
    def script(request: Request) -> str:
        if request.origin["page"] == 1:
            raise RuntimeError("device lost")
        return default_script(request)

    loader = MDiffLoader(pdf, engine=ScriptedEngine(script), on_error="raise", window=1)
    pages = loader.lazy_load()
    assert next(pages).metadata["page"] == 0
    with pytest.raises(PageError, match=r"sample\.pdf, page 2.*device lost"):
        next(pages)


# -- the blob parser ----------------------------------------------------------------------------


def test_a_blob_by_path(pdf: Path) -> None:
    documents = MDiffBlobParser(engine=ScriptedEngine()).parse(Blob.from_path(pdf))
    assert [d.metadata["source"] for d in documents] == [str(pdf)] * 3
    assert [d.metadata["page_label"] for d in documents] == ["i", "ii", "1"]


def test_a_blob_that_only_its_class_can_read(pdf: Path) -> None:
    """Cloud blobs have a path that open() cannot read."""

    class CloudBlob(Blob):
        def as_bytes(self) -> bytes:
            return pdf.read_bytes()

    blob = CloudBlob(path="gs://bucket/a.pdf", mimetype="application/pdf")
    documents = MDiffBlobParser(engine=ScriptedEngine()).parse(blob)
    assert [d.metadata["source"] for d in documents] == ["gs://bucket/a.pdf"] * 3


def test_parser_options_reach_the_parser(pdf: Path) -> None:
    engine = ScriptedEngine()
    parser = MDiffBlobParser(engine=engine, pages="2", mode="single", threshold=0.5)
    [document] = parser.parse(Blob.from_path(pdf))
    assert document.page_content == "Text of page 2"
    assert {asked.threshold for asked in engine.asked} == {0.5}


# -- the image parser ---------------------------------------------------------------------------


def npy(array: Any) -> Blob:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return Blob.from_data(buffer.getvalue(), mime_type="application/x-npy")


def read_pixel(blob: Blob, **options: Any) -> tuple[str, Any]:
    """Return the text that comes back and the colour that the engine saw."""
    seen = []

    def script(request: Request) -> str:
        if request.task == "layout":
            seen.append(request.image.convert("RGB").getpixel((500, 500)))
        return default_script(request)

    parser = MDiffImageParser(engine=ScriptedEngine(script), **options)
    [document] = list(parser.lazy_parse(blob))
    return document.page_content, seen[0] if seen else document.metadata["mdiff_error"]


def plane(*values: int) -> Any:
    """A plane of one colour with a mark on it: nothing is asked about a blank page."""
    array = np.empty((60, 90, len(values)), np.uint8)
    array[:] = values
    # Black in every order of channels: full ink with CMYK, full opacity with RGBA.
    array[5:10, 10:80] = (0, 0, 0, 255)[: len(values)]
    return array


@pytest.mark.parametrize(
    ("array", "options", "colour"),
    [
        (plane(255, 0, 0), {}, (255, 0, 0)),
        (plane(0, 0, 255), {"channels": "bgr"}, (255, 0, 0)),
        (plane(200), {}, (200, 200, 200)),
        (plane(200)[:, :, 0], {}, (200, 200, 200)),
        (plane(200)[:, :, 0] > 150, {}, (255, 255, 255)),
        (plane(0, 255, 255, 0), {}, (255, 0, 0)),  # CMYK red
        (plane(255, 0, 0, 255), {}, (255, 0, 0)),  # opaque RGBA red
        (plane(0, 0, 255, 255), {"channels": "bgra"}, (255, 0, 0)),
        (plane(0, 0, 0, 0), {"channels": "rgba"}, (255, 255, 255)),  # transparent: paper
        (plane(0, 255, 255, 0), {"channels": "cmyk"}, (255, 0, 0)),
    ],
)
def test_arrays_of_any_depth_are_seen_in_their_colours(
    array: Any, options: dict[str, Any], colour: tuple[int, int, int]
) -> None:
    """Thread row 3: gray, 1-bit, CMYK and BGR."""
    text, seen = read_pixel(npy(array), **options)
    assert text == "Text of page 1"
    assert np.abs(np.subtract(seen, colour)).max() <= 2, (seen, colour)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_picture_files_of_every_mode(mode: str) -> None:
    picture = Image.fromarray(plane(255)[:, :, 0]).convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, "TIFF")
    text, _ = read_pixel(Blob.from_data(buffer.getvalue(), mime_type="image/tiff"))
    assert text == "Text of page 1"


@pytest.mark.parametrize(
    "blob",
    [
        npy(np.zeros((4, 4, 7), np.uint8)),
        npy(np.zeros((4, 4, 3), np.float32)),
        npy(np.zeros((0, 4, 3), np.uint8)),
        Blob.from_data(b"not an array", mime_type="application/x-npy"),
        Blob.from_data(b"", mime_type="image/png"),
        Blob.from_data(b"\x89PNG\r\n\x1a\nbroken", mime_type="image/png"),
        Blob(path="/no/such/picture.png", mimetype="image/png"),
    ],
    ids=["7 channels", "floats", "no pixels", "no array", "no bytes", "broken png", "no file"],
)
def test_a_picture_that_cannot_be_read_is_one_empty_document(blob: Blob) -> None:
    """The carriers call next() on us: no document, or an error, ends the whole load."""
    [document] = list(MDiffImageParser(engine=ScriptedEngine()).lazy_parse(blob))
    assert document.page_content == ""
    assert document.metadata["mdiff_error"]
    with pytest.raises(Exception, match=r"."):
        next(MDiffImageParser(engine=ScriptedEngine(), on_error="raise").lazy_parse(blob))


def test_a_blank_picture_and_a_failing_engine_are_one_document() -> None:
    blob = npy(plane(255, 255, 255))
    [blank] = MDiffImageParser(engine=ScriptedEngine(lambda r: "")).parse(blob)
    assert (blank.page_content, "mdiff_error" in blank.metadata) == ("", False)

    def fail(request: Request) -> str:
        raise RuntimeError("device lost")

    [failed] = MDiffImageParser(engine=ScriptedEngine(fail)).parse(blob)
    assert failed.page_content == "" and "device lost" in failed.metadata["mdiff_error"]


@pytest.mark.parametrize(
    "options",
    [{"engine": "tinny"}, {"engine": "nosuchkind:x"}, {"segmenter": "nosuch"}, {"pages": "9"}],
)
def test_a_wrong_setting_is_not_the_fault_of_one_picture(options: dict[str, Any]) -> None:
    """Recorded, it would silently empty every picture of every file."""
    parser = MDiffImageParser(**{"engine": ScriptedEngine(), **options})
    with pytest.raises(MDiffError):
        parser.parse(npy(plane(255, 255, 255)))


def test_a_picture_with_several_pages_is_still_one_document() -> None:
    buffer = io.BytesIO()
    page = Image.fromarray(plane(255)[:, :, 0])
    page.save(buffer, "TIFF", save_all=True, append_images=[page])
    [document] = MDiffImageParser(engine=ScriptedEngine()).parse(
        Blob.from_data(buffer.getvalue(), mime_type="image/tiff", metadata={"xref": 7})
    )
    assert document.page_content == "Text of page 1\nText of page 2"
    assert document.metadata["xref"] == 7


def test_wrong_options_of_the_image_parser() -> None:
    with pytest.raises(ConfigError, match="channels = 'grb'"):
        MDiffImageParser(channels="grb")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on_error = 'skip'"):
        MDiffImageParser(on_error="skip")  # type: ignore[arg-type]


# -- the package --------------------------------------------------------------------------------


def test_it_needs_langchain_core_only() -> None:
    """Thread row 24: community is archived; the package must not need it."""
    code = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("langchain_community", "langchain_classic", "langchain"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import io
from langchain_mdiff import MDiffLoader, MDiffBlobParser, MDiffImageParser
from mdiff_adapters.testing import sample_pdf
print([d.page_content for d in MDiffLoader(file=sample_pdf(1), engine="scripted:").load()])
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines() == ["['Text of page 1']", "False"]
