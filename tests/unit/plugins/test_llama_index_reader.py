"""MDiffReader by itself and behind the original LlamaIndex code."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
import pypdf
import pytest
from llama_index.core import SimpleDirectoryReader
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.node_parser.relational.markdown_element import MarkdownElementNodeParser
from llama_index.core.readers.base import BasePydanticReader, ReaderConfig
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from PIL import Image

from llama_index.readers.mdiff import MDiffReader
from mdiff_adapters.engines import EngineSpec, Request, close_engines, open_engine
from mdiff_adapters.errors import ConfigError, InputTooLargeError, PageError, PasswordRequiredError
from mdiff_adapters.provenance import stable_id
from mdiff_adapters.sources import open_source
from mdiff_adapters.testing import ONE_TEXT_REGION, ScriptedEngine, default_script, sample_pdf

TABLE_LAYOUT = ONE_TEXT_REGION.replace("text<|ref_end|>", "table<|ref_end|>")
REPLAY = Path(__file__).resolve().parents[2] / "data" / "replay"
TWO_REGIONS = "\n".join(
    f"<|box_start|>050 {top} 950 {bottom}<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"
    for top, bottom in ((100, 400), (500, 900))
)


def table(request: Request) -> str:
    return TABLE_LAYOUT if request.task == "layout" else default_script(request)


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "sample.pdf"
    path.write_bytes(sample_pdf(3, roman=2))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.pdf", "b.PDF"):
        (tmp_path / name).write_bytes(sample_pdf(2, texts=[f"{name} 1", f"{name} 2"]))
    return tmp_path


# -- what comes out -----------------------------------------------------------------------------


def test_metadata_and_what_a_model_is_shown(pdf: Path) -> None:
    reader = MDiffReader(engine=ScriptedEngine(), include_blocks=True)
    document = reader.load_data(pdf, extra_info={"team": "a"})[1]
    assert set(document.metadata) == {
        "file_name", "page_label", "title", "team", "mdiff_blocks",
    }  # fmt: skip
    assert document.metadata["page_label"] == "ii"
    shown = document.get_content(MetadataMode.LLM)
    assert shown == document.get_content(MetadataMode.EMBED)
    assert "page_label: ii" in shown and "team: a" in shown and "mdiff_blocks" not in shown


def test_it_is_what_pipelines_accept() -> None:
    assert issubclass(MDiffReader, BasePydanticReader)
    assert MDiffReader.class_name() == "MDiffReader"
    assert not MDiffReader(engine="scripted:").is_remote
    assert MDiffReader(engine="http://host:1").is_remote


def test_one_document_a_file(pdf: Path) -> None:
    reader = MDiffReader(engine=ScriptedEngine(), split_by_page=False)
    [document] = reader.load_data(pdf)
    assert document.text == "Text of page 1\n\nText of page 2\n\nText of page 3"
    assert "page_label" not in document.metadata


@pytest.mark.parametrize("settings", [{"split_by_page": False}, {"export_type": "docling_json"}])
def test_ids_of_one_document_a_file_name_the_selected_pages(
    pdf: Path, settings: dict[str, Any]
) -> None:
    def whole(pages: Any) -> str:
        reader = MDiffReader(engine=ScriptedEngine(), pages=pages, **settings)
        [document] = reader.load_data(pdf)
        return document.id_

    digest = hashlib.sha256(pdf.read_bytes()).hexdigest()
    assert whole(None) == stable_id(digest, settings.get("export_type", "markdown"), "file")
    assert whole("1-3") == whole(None)
    assert whole("1-2") == whole([0, 1]) == whole("2,1")
    assert len({whole(None), whole("1-2"), whole("1"), whole("2-3")}) == 4


def test_selected_pages_keep_their_labels(pdf: Path) -> None:
    reader = MDiffReader(engine=ScriptedEngine(), pages="2-3")
    assert [d.metadata["page_label"] for d in reader.load_data(pdf)] == ["ii", "1"]


def test_empty_pages_are_kept_unless_asked(pdf: Path) -> None:
    def script(request: Request) -> str:
        return "" if request.origin["page"] == 1 else default_script(request)

    engine = ScriptedEngine(script)
    assert [d.text for d in MDiffReader(engine=engine).load_data(pdf)][1] == ""
    assert len(MDiffReader(engine=engine, skip_empty=True).load_data(pdf)) == 2


def test_a_failed_page_is_not_skipped_as_empty(pdf: Path) -> None:
    def script(request: Request) -> str:
        if request.origin["page"] == 1:
            raise RuntimeError("device lost")
        return default_script(request)

    documents = MDiffReader(engine=ScriptedEngine(script), skip_empty=True).load_data(pdf)
    assert "device lost" in documents[1].metadata["mdiff_error"]
    assert "mdiff_error" in documents[1].excluded_llm_metadata_keys


def test_the_name_of_a_url_has_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed links carry their key there, and the name is shown to models."""
    fs = fsspec.filesystem("memory")
    monkeypatch.setattr(type(fs), "cat_file", lambda *_, **__: sample_pdf(1))
    [document] = MDiffReader(engine=ScriptedEngine()).load_data(
        "memory://a/my%20report.pdf?Signature=SECRET/xyz"
    )
    assert document.metadata["file_name"] == "my report.pdf"


def test_memory_is_one_document() -> None:
    [document] = MDiffReader(engine=ScriptedEngine()).load_data(memoryview(sample_pdf(1)))
    assert document.text == "Text of page 1"


def test_a_page_whose_only_text_failed_is_not_skipped_as_empty(tmp_path: Path) -> None:
    def script(request: Request) -> str:
        if request.task == "layout":
            return TWO_REGIONS
        if request.origin["order"] == 0:
            raise RuntimeError("device lost")
        return ""

    Image.effect_noise((400, 400), 60).save(tmp_path / "noise.png")
    reader = MDiffReader(engine=ScriptedEngine(script), skip_empty=True)
    [document] = reader.load_data(tmp_path / "noise.png")
    assert document.text == ""
    assert "device lost" in document.metadata["mdiff_error"]


def test_page_images_are_resources_and_only_on_request(pdf: Path) -> None:
    plain, *_ = MDiffReader(engine=ScriptedEngine()).load_data(pdf)
    assert plain.image_resource is None
    document = MDiffReader(engine=ScriptedEngine(), page_images="resource").load_data(pdf)[2]
    resource = document.image_resource
    assert resource is not None and resource.mimetype == "image/png"
    with Image.open(io.BytesIO(base64.b64decode(resource.data or b""))) as image:
        assert image.size == (400, 400)  # 144 pt at 200 dpi


def picture_size(document: Any) -> tuple[int, int]:
    with Image.open(io.BytesIO(base64.b64decode(document.image_resource.data))) as image:
        return image.size


@pytest.fixture
def huge_second_page(tmp_path: Path) -> Path:
    """Three pages; the second is 20 m wide, which no budget of pixels can show."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(3)))
    writer.pages[1].mediabox = pypdf.generic.RectangleObject((0, 0, 60_000, 60_000))
    writer.write(tmp_path / "huge.pdf")
    return tmp_path / "huge.pdf"


def test_a_broken_page_keeps_its_document_without_an_image(huge_second_page: Path) -> None:
    def read(**settings: Any) -> list[Any]:
        reader = MDiffReader(engine=ScriptedEngine(), page_images="resource", **settings)
        return reader.load_data(huge_second_page)

    documents = read()
    assert [d.image_resource is None for d in documents] == [False, True, False]
    error = documents[1].metadata["mdiff_error"]
    assert "huge.pdf, page 2" in error and "no page image" not in error
    assert len(read(on_error="skip")) == 2
    with pytest.raises(InputTooLargeError, match="page 2"):
        read(on_error="raise")


def test_an_image_that_fails_alone_leaves_the_text(pdf: Path, monkeypatch) -> None:
    def open_broken(*args: Any, **options: Any) -> Any:
        source = open_source(*args, **options)

        def load(index: int) -> Any:
            raise PageError("cannot be rendered", page=index)

        monkeypatch.setattr(source, "load", load)
        return source

    def read(**settings: Any) -> list[Any]:
        reader = MDiffReader(engine=ScriptedEngine(), page_images="resource", **settings)
        monkeypatch.setattr("llama_index.readers.mdiff.base.open_source", open_broken)
        return reader.load_data(pdf)

    for on_error in ("record", "skip"):
        documents = read(on_error=on_error)
        assert [d.text for d in documents] == [f"Text of page {n}" for n in (1, 2, 3)]
        assert all("no page image: page" in d.metadata["mdiff_error"] for d in documents)
        assert all("mdiff_error" in d.excluded_embed_metadata_keys for d in documents)
    with pytest.raises(PageError, match="cannot be rendered"):
        read(on_error="raise")


def test_page_images_keep_the_limits_of_the_parser(pdf: Path) -> None:
    def size(**options: Any) -> tuple[int, int]:
        reader = MDiffReader(
            engine=ScriptedEngine(), page_images="resource", parser_options=options
        )
        return picture_size(reader.load_data(pdf)[0])

    assert size(dpi=100) == (200, 200)
    width, height = size(max_pixels=100_000)
    assert 90_000 < width * height <= 100_000


def test_blocks_of_a_whole_file_say_their_page(pdf: Path) -> None:
    for settings in ({"split_by_page": False}, {"export_type": "docling_json"}):
        reader = MDiffReader(engine=ScriptedEngine(), include_blocks=True, **settings)
        [document] = reader.load_data(pdf)
        blocks = json.loads(document.metadata["mdiff_blocks"])
        assert [block["page"] for block in blocks] == [0, 1, 2]
        assert [block["text"] for block in blocks] == [f"Text of page {n}" for n in (1, 2, 3)]
        assert "mdiff_blocks" not in document.get_content(MetadataMode.EMBED)


@pytest.mark.parametrize("settings", [{"split_by_page": False}, {"export_type": "docling_json"}])
def test_page_images_need_a_document_a_page(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"one Document a page.*split_by_page=True"):
        MDiffReader(page_images="resource", **settings)


def test_text_and_table_formats(pdf: Path) -> None:
    def first(**settings: Any) -> str:
        return (
            MDiffReader(engine=ScriptedEngine(table), pages="1", **settings).load_data(pdf)[0].text
        )

    assert "<table>" in first()
    assert "| a | b |" in first(table_format="markdown")
    assert first(export_type="text") == "a\tb\n1\t2"


# -- what goes in -------------------------------------------------------------------------------


def test_every_kind_of_file(pdf: Path) -> None:
    reader = MDiffReader(engine=ScriptedEngine())
    expected = [d.id_ for d in reader.load_data(pdf)]
    content = pdf.read_bytes()
    for form in (str(pdf), PurePosixPath(pdf), content, bytearray(content), io.BytesIO(content)):
        assert [d.id_ for d in reader.load_data(form)] == expected
    assert [d.id_ for d in reader.load_data(file_path=pdf)] == expected
    assert [d.id_ for d in reader.load_data([pdf, str(pdf)])] == expected * 2
    with pytest.raises(ConfigError, match="needs a file"):
        reader.load_data()
    with pytest.raises(ConfigError, match="cannot be opened from int"):
        reader.load_data([3])


@pytest.mark.timeout(20)  # opening a pipe for the second time waits for ever
def test_a_pipe_is_a_file(pdf: Path, open_pipe: Callable[[bytes], Path]) -> None:
    path = open_pipe(pdf.read_bytes())
    reader = MDiffReader(engine=ScriptedEngine(), page_images="resource")
    documents = reader.load_data(path)
    assert [d.id_ for d in documents] == [d.id_ for d in reader.load_data(pdf)]
    assert {d.metadata["file_name"] for d in documents} == {"pipe.pdf"}
    assert all(d.image_resource is not None for d in documents)


def test_passwords_are_used_and_never_serialised(tmp_path: Path) -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(1)))
    writer.encrypt("secret", algorithm="AES-256")
    writer.write(tmp_path / "locked.pdf")
    with pytest.raises(PasswordRequiredError, match=r"locked\.pdf"):
        MDiffReader(engine="scripted:").load_data(tmp_path / "locked.pdf")
    reader = MDiffReader(engine="scripted:", password="secret")
    assert len(reader.load_data(tmp_path / "locked.pdf")) == 1
    assert "secret" not in json.dumps(reader.to_dict()) + repr(reader)


def test_keys_of_servers_are_neither_shown_nor_serialised_but_pickled() -> None:
    options = {"api_key": "SECRET", "timeout_s": 7}
    for settings in ({"engine_options": options}, {"parser_options": options}):
        reader = MDiffReader("http://host:1", **settings)  # type: ignore[arg-type]
        written = f"{reader!r} {reader} {reader.to_dict()} {reader.to_json()}"
        assert "SECRET" not in written
        assert "timeout_s" in written and "'api_key': '***'" in repr(reader)
        assert MDiffReader.from_dict(reader.to_dict()).to_dict() == reader.to_dict()
        for again in (pickle.loads(pickle.dumps(reader)), copy.copy(reader), reader.model_copy()):
            assert {**again.engine_options, **again.parser_options} == options
    spec = EngineSpec.parse("http://host:1", api_key="SECRET")
    assert "SECRET" not in repr(MDiffReader(spec))


def test_changed_settings_hold_from_the_next_file_on(pdf: Path) -> None:
    engine = ScriptedEngine()
    reader = MDiffReader(engine)
    copied = reader.model_copy(update={"pages": "1", "threshold": 0.5})
    assert (len(copied.load_data(pdf)), len(reader.load_data(pdf))) == (1, 3)
    assert {asked.threshold for asked in engine.asked} == {0.5, 0.95}
    reader.pages = "2-3"
    assert [d.text for d in reader.load_data(pdf)] == ["Text of page 2", "Text of page 3"]
    reader.parser_options["dpi"] = 100
    reader.page_images = "resource"
    assert picture_size(reader.load_data(pdf)[0]) == (200, 200)
    assert len(pickle.loads(pickle.dumps(reader)).load_data(pdf)) == 2


def test_a_live_engine_serves_until_another_is_named(pdf: Path) -> None:
    engine = ScriptedEngine(lambda request: default_script(request).replace("Text", "Live"))
    reader = MDiffReader(engine, pages="1")
    assert reader.model_copy(update={"pages": "2"}).load_data(pdf)[0].text == "Live of page 2"
    named = reader.model_copy(update={"engine_options": {"delay_s": 0.002}})
    assert named.load_data(pdf)[0].text == "Text of page 1"
    assert asyncio.run(named.aload_data(pdf))[0].text == "Text of page 1"
    assert reader.load_data(pdf)[0].text == "Live of page 1"


def test_changed_settings_are_checked(pdf: Path) -> None:
    reader = MDiffReader("scripted:")
    with pytest.raises(ValueError, match="on_error"):
        reader.on_error = "bogus"  # type: ignore[assignment]
    assert reader.on_error == "record"
    for update, message in (
        ({"export_type": "pdf"}, "export_type"),
        ({"page": "1"}, "page"),
        ({"threshold": 2.0}, "threshold"),
        ({"parser_options": {"windw": 2}}, "windw"),
        ({"parser_options": {"threshold": 0.5}}, "threshold in parser_options"),
        ({"engine_options": {"devise": "cpu"}}, "devise"),
        ({"page_images": "resource", "split_by_page": False}, "one Document a page"),
    ):
        with pytest.raises(ValueError, match=message):
            reader.model_copy(update=update)
    reader.threshold = 2.0
    with pytest.raises(ConfigError, match="threshold"):
        reader.load_data(pdf)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="export_type"):
        MDiffReader(export_type="pdf")
    with pytest.raises(ConfigError, match="threshold"):
        MDiffReader(threshold=2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"treshold": 0.5}, "no setting 'treshold'.*did you mean 'threshold'"),
        ({"windw": 2}, "no setting 'windw'.*did you mean 'window'"),
        ({"dpi": 100}, r"no setting 'dpi'.*parser_options=\{'dpi': …\}"),
        ({"device": "cpu"}, r"no setting 'device'.*engine_options=\{'device': …\}"),
        ({"parser_options": {"threshold": 0.5}}, r"threshold in parser_options.*MDiffReader\("),
        ({"parser_options": {"engine": "tiny"}}, r"engine in parser_options.*MDiffReader\("),
        ({"parser_options": {"windw": 2}}, "parser_options has no option 'windw'.*'window'"),
        ({"engine_options": {"devise": "cpu"}}, "no option 'devise'.*'device'"),
        ({"engine": "replay:x", "engine_options": {"tabels": "otsl"}}, "'tabels'.*'tables'"),
        ({"engine": ScriptedEngine(), "parser_options": {"windw": 2}}, "'windw'.*'window'"),
        ({"engine": ScriptedEngine(), "engine_options": {"delay_s": 1}}, "already built"),
    ],
)
def test_misspelt_settings_are_refused_when_the_reader_is_made(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MDiffReader(**settings)


def test_options_of_engines_are_forwarded() -> None:
    """Nobody here knows what an engine of a plugin takes."""
    reader = MDiffReader("theirs:x", engine_options={"speed": 3}, parser_options={"size": 4})
    assert reader.engine_options == {"speed": 3}
    MDiffReader("tiny", engine_options={"device": "cpu"}, parser_options={"max_sequences": 2})


def test_a_spec_with_options_is_kept(pdf: Path) -> None:
    reader = MDiffReader(EngineSpec.parse("scripted:", delay_s=0.001), threshold=0.5)
    assert (reader.engine, reader.engine_options) == ("scripted:", {"delay_s": 0.001})
    for again in (MDiffReader.from_dict(reader.to_dict()), pickle.loads(pickle.dumps(reader))):
        assert again.load_data(pdf)[0].text == "Text of page 1"
    engine: Any = open_engine("scripted:", delay_s=0.001)
    assert {asked.threshold for asked in engine.asked} == {0.5}


def test_pickling_leaves_a_live_engine_in_the_original(pdf: Path) -> None:
    """Thread row 11: run-llama/llama_index#22578."""
    unpicklable = ScriptedEngine(lambda request: default_script(request))
    reader = MDiffReader(engine=unpicklable, engine_options={}, parser_options={"dpi": 100})
    travelled = pickle.loads(pickle.dumps(reader))
    assert travelled.parser_options == {"dpi": 100}
    asked = len(unpicklable.asked)
    assert reader.load_data(pdf)[0].text == "Text of page 1"
    assert len(unpicklable.asked) > asked, "the original lost its engine"
    assert travelled.engine == "scripted:"
    assert copy.copy(reader).load_data(pdf)


@pytest.mark.parametrize("given", [{}, {"engine_options": {"tables": None}}])
def test_a_live_engine_travels_as_the_spec_it_was_built_from(given: dict[str, Any]) -> None:
    engine = open_engine(f"replay:{REPLAY}", tables="otsl")
    reader = MDiffReader(engine, **given)
    assert reader._make_parser().engine is engine
    for again in (pickle.loads(pickle.dumps(reader)), MDiffReader.from_dict(reader.to_dict())):
        assert again.engine_options == {"tables": "otsl"}
        assert again._make_parser().engine is engine  # one a process and spec


# -- behind LlamaIndex --------------------------------------------------------------------------


def test_simple_directory_reader(folder: Path) -> None:
    reader = SimpleDirectoryReader(
        str(folder), file_extractor={".pdf": MDiffReader(engine=ScriptedEngine())}
    )
    documents = reader.load_data()
    assert [(d.metadata["file_name"], d.metadata["page_label"]) for d in documents] == [
        ("a.pdf", "1"), ("a.pdf", "2"), ("b.PDF", "1"), ("b.PDF", "2"),
    ]  # fmt: skip
    assert all("file_path" in d.metadata for d in documents)


def test_a_remote_file_system(capsys) -> None:
    """Thread row 7: without fs= the directory reader prints a line and returns nothing."""
    fs = fsspec.filesystem("memory")
    fs.pipe("/docs/a.pdf", sample_pdf(2))
    try:
        reader = SimpleDirectoryReader(
            "/docs", fs=fs, file_extractor={".pdf": MDiffReader(engine=ScriptedEngine())}
        )
        documents = reader.load_data()
        assert [d.text for d in documents] == ["Text of page 1", "Text of page 2"]
        assert [d.metadata["file_name"] for d in documents] == ["a.pdf", "a.pdf"]
        assert "Failed" not in capsys.readouterr().out
    finally:
        fs.rm("/docs", recursive=True)


def test_directory_reader_async_reads_many_at_once(folder: Path) -> None:
    extractor: Any = {".pdf": MDiffReader(engine=ScriptedEngine())}
    reader = SimpleDirectoryReader(str(folder), file_extractor=extractor)
    assert len(asyncio.run(reader.aload_data())) == 4


def test_a_broken_file_is_skipped_or_raised_as_asked(folder: Path, capsys) -> None:
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    extractor: Any = {".pdf": MDiffReader(engine="scripted:")}
    documents = SimpleDirectoryReader(str(folder), file_extractor=extractor).load_data()
    assert len(documents) == 4
    assert "broken.pdf" in capsys.readouterr().out
    strict = SimpleDirectoryReader(str(folder), file_extractor=extractor, raise_on_error=True)
    with pytest.raises(Exception, match="Error loading file"):
        strict.load_data()


def test_reader_config_in_a_pipeline(pdf: Path) -> None:
    config = ReaderConfig(reader=MDiffReader(engine="scripted:"), reader_args=[str(pdf)])
    pipeline = IngestionPipeline(readers=[config], transformations=[SentenceSplitter()])
    assert [node.text for node in pipeline.run()] == [f"Text of page {n}" for n in (1, 2, 3)]


def test_a_docstore_skips_what_has_not_changed(pdf: Path) -> None:
    """Thread row 10: embeddings are computed again although the text is the same."""
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), MockEmbedding(embed_dim=2)],
        docstore=SimpleDocumentStore(),
        vector_store=SimpleVectorStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
    )
    for expected in (3, 0):
        documents = MDiffReader(engine="scripted:", include_blocks=True).load_data(pdf)
        assert len(pipeline.run(documents=documents)) == expected


def test_many_blocks_do_not_break_a_splitter(tmp_path: Path) -> None:
    """Thread row 9: "Metadata length is longer than chunk size"."""
    layout = "\n".join(
        f"<|box_start|>050 {25 * n:03d} 950 {25 * n + 20:03d}<|box_end|>"
        "<|ref_start|>text<|ref_end|><|rotate_up|>"
        for n in range(40)
    )
    page = Image.effect_noise((400, 800), 60)
    page.save(tmp_path / "noise.png")
    engine = ScriptedEngine(lambda r: layout if r.task == "layout" else "A line of text.")
    reader = MDiffReader(engine=engine, include_blocks=True)
    documents = reader.load_data(tmp_path / "noise.png")
    assert len(json.loads(documents[0].metadata["mdiff_blocks"])) == 40
    nodes = SentenceSplitter(chunk_size=256, chunk_overlap=0)(documents)
    assert "".join(node.get_content(MetadataMode.NONE) for node in nodes).count("A line") == 40


def test_tables_are_found_by_the_markdown_element_parser(pdf: Path) -> None:
    """Thread row 19: it looks for a bare <table>."""
    documents = MDiffReader(engine=ScriptedEngine(table), pages="1").load_data(pdf)
    parser = MarkdownElementNodeParser(llm=None)
    elements = parser.extract_html_tables(
        list(parser.extract_elements(documents[0].text, table_filters=[]))
    )
    assert [element.type for element in elements] == ["table_text"]


@pytest.mark.slow  # importing docling-core's chunkers takes seconds
def test_docling_nodes_keep_page_and_box(pdf: Path) -> None:
    """Thread row 20: provenance is lost end to end."""
    docling = pytest.importorskip("llama_index.node_parser.docling")
    reader = MDiffReader(engine=ScriptedEngine(), export_type="docling_json")
    documents = reader.load_data(pdf)
    assert len(documents) == 1
    nodes = docling.DoclingNodeParser()(documents)
    places = [item["prov"][0] for node in nodes for item in node.metadata["doc_items"]]
    assert [place["page_no"] for place in places] == [1, 2, 3]
    assert all(set(place["bbox"]) >= {"l", "t", "r", "b"} for place in places)
    assert "doc_items" in nodes[0].excluded_llm_metadata_keys
    assert nodes[0].metadata["file_name"] == "sample.pdf"


@pytest.mark.slow
@pytest.mark.timeout(120)  # a worker that cannot unpickle makes the pool wait for ever
def test_two_workers_build_one_engine_each(folder: Path) -> None:
    """Thread row 11 and F4: spawned workers get the reader by pickle."""
    close_engines()
    extractor: Any = {".pdf": MDiffReader(engine="scripted:")}
    reader = SimpleDirectoryReader(str(folder), file_extractor=extractor)
    documents = reader.load_data(num_workers=2)
    assert sorted((d.metadata["file_name"], d.text) for d in documents) == [
        ("a.pdf", "Text of page 1"), ("a.pdf", "Text of page 2"),
        ("b.PDF", "Text of page 1"), ("b.PDF", "Text of page 2"),
    ]  # fmt: skip
    assert reader.load_data(), "the reader lost its settings"
