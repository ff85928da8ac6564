"""Seams S1 to S11: the carriers' own code, with our object put in and nothing else changed.

The carriers are in langchain-community, which is archived; it is a test dependency only.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from langchain_core.document_loaders import Blob
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore
from PIL import Image

from langchain_mdiff import MDiffBlobParser, MDiffImageParser, MDiffLoader
from mdiff_adapters.engines import close_engines, open_engine
from mdiff_adapters.testing import ScriptedEngine, default_script, sample_pdf

pytest.importorskip("langchain_community")
from langchain_community.document_loaders import (
    DirectoryLoader,
    MergedDataLoader,
    PDFMinerLoader,
    PyMuPDFLoader,
    PyPDFium2Loader,
    PyPDFLoader,
    gcs_file,
)
from langchain_community.document_loaders.base_o365 import O365BaseLoader
from langchain_community.document_loaders.gcs_file import GCSFileLoader
from langchain_community.document_loaders.generic import GenericLoader
from langchain_community.document_loaders.parsers.documentloader_adapter import (
    DocumentLoaderAsParser,
)
from langchain_community.document_loaders.parsers.generic import MimeTypeBasedParser
from langchain_community.document_loaders.parsers.pdf import (
    PDFMinerParser,
    PyMuPDFParser,
    PyPDFium2Parser,
    PyPDFParser,
)
from langchain_community.vectorstores.utils import filter_complex_metadata
from langchain_pymupdf4llm import PyMuPDF4LLMLoader, PyMuPDF4LLMParser
from langchain_text_splitters import RecursiveCharacterTextSplitter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.pdf", "a.pdf", "C.PDF"):
        (tmp_path / name).write_bytes(sample_pdf(2, texts=[f"{name} 1", f"{name} 2"]))
    return tmp_path


def picture(mode: str) -> Image.Image:
    """A picture with a black bar, red where the mode has colours."""
    paper = {"1": 1, "L": 255, "RGB": (255, 0, 0), "CMYK": (0, 255, 255, 0)}[mode]
    ink = {"1": 0, "L": 0, "RGB": (0, 0, 0), "CMYK": (0, 0, 0, 255)}[mode]
    image = Image.new(mode, (160, 120), paper)
    image.paste(ink, (20, 20, 140, 30))
    return image


def pdf_of_pictures(tmp_path: Path, *modes: str) -> str:
    path = tmp_path / "pictures.pdf"
    first, *rest = (picture(mode) for mode in modes)
    first.save(path, "PDF", save_all=True, append_images=rest, resolution=100)
    return str(path)


def pdf_of_text_and_picture(tmp_path: Path) -> str:
    """A page with a line of its own above a picture."""
    import pymupdf

    path = str(tmp_path / "both.pdf")
    with pymupdf.open() as document:
        page = document.new_page(width=300, height=300)
        page.insert_text((20, 40), "text layer")
        buffer = io.BytesIO()
        picture("RGB").save(buffer, "PNG")
        page.insert_image((20, 100, 180, 220), stream=buffer.getvalue())
        document.save(path)
    return path


# -- S1: images_parser= -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "options", "modes"),
    [
        (PyMuPDFLoader, {}, ("RGB", "L", "CMYK", "1")),
        (PyPDFium2Loader, {}, ("RGB", "L", "CMYK", "1")),
        # It cannot reshape a 1-bit picture.
        (PyPDFLoader, {}, ("RGB", "L", "CMYK")),
        # It inverts CMYK once too often, which leaves nothing but black.
        (PDFMinerLoader, {"mode": "page"}, ("RGB", "L", "1")),
        # With its layout model it writes no picture that fills a page.
        (
            PyMuPDF4LLMLoader,
            {"extract_images": True, "use_layout": False},
            ("RGB", "L", "CMYK", "1"),
        ),
    ],
)
def test_s1_pictures_of_every_kind_get_their_text(
    loader: Any, options: dict[str, Any], modes: tuple[str, ...], tmp_path: Path
) -> None:
    """Thread row 3: one odd picture aborts the file."""
    engine = ScriptedEngine(lambda r: default_script(r) if r.task == "layout" else "READ")
    parser = MDiffImageParser(engine=engine)
    documents = loader(pdf_of_pictures(tmp_path, *modes), images_parser=parser, **options).load()
    assert ["READ" in d.page_content for d in documents] == [True] * len(modes)


@pytest.mark.parametrize(
    ("parser_class", "options", "channels"),
    [
        (PyMuPDFParser, {}, "auto"),
        (PyPDFium2Parser, {}, "bgr"),
        (PyPDFParser, {}, "auto"),
        (PDFMinerParser, {}, "auto"),
        (PyMuPDF4LLMParser, {"extract_images": True, "use_layout": False}, "auto"),
    ],
)
def test_s1_a_red_picture_is_red(
    parser_class: Any, options: dict[str, Any], channels: str, tmp_path: Path
) -> None:
    """PyPDFium2 sends BGR: unnoticed, blue ink is read as red."""
    seen = []

    def script(request: Any) -> str:
        if request.task == "layout":
            seen.append(request.image.convert("RGB").getpixel((500, 800)))
        return default_script(request)

    parser = MDiffImageParser(engine=ScriptedEngine(script), channels=channels)  # type: ignore[arg-type]
    blob = Blob.from_path(pdf_of_pictures(tmp_path, "RGB"))
    list(parser_class(images_parser=parser, **options).lazy_parse(blob))
    assert np.abs(np.subtract(seen[0], (255, 0, 0))).max() < 20


def test_s1_an_unreadable_picture_does_not_end_the_load(tmp_path: Path) -> None:
    def fail(request: Any) -> str:
        raise RuntimeError("device lost")

    loader = PyMuPDFLoader(
        pdf_of_pictures(tmp_path, "RGB", "L"),
        images_parser=MDiffImageParser(engine=ScriptedEngine(fail)),
    )
    assert len(loader.load()) == 2


@pytest.mark.parametrize(
    ("loader", "options", "expected"),
    [
        (PyMuPDFLoader, {}, "text layer\n\nPICTURE"),
        (PDFMinerLoader, {}, "text layer\n\nPICTURE"),
        (PDFMinerLoader, {"mode": "page"}, "text layer\n\nPICTURE"),
        # Its own OCR would read the page once more where Tesseract is installed.
        (
            PyMuPDF4LLMLoader,
            {"extract_images": True, "use_ocr": False},
            "text layer\n\n![PICTURE](#)",
        ),
        (
            PyMuPDF4LLMLoader,
            {"extract_images": True, "use_layout": False, "mode": "single"},
            "text layer\n\n![PICTURE](#)",
        ),
    ],
)
def test_s1_text_of_pictures_is_added_to_the_text_layer(
    loader: Any, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    engine = ScriptedEngine(lambda r: default_script(r) if r.task == "layout" else "PICTURE")
    [document] = loader(
        pdf_of_text_and_picture(tmp_path), images_parser=MDiffImageParser(engine=engine), **options
    ).load()
    # How many blank lines stand between them is the carrier's affair.
    lines = [line.strip() for line in document.page_content.splitlines()]
    assert "\n\n".join(filter(None, lines)) == expected
    assert [asked.task for asked in engine.asked] == ["layout", "text"]


# -- S2 to S4: parser=, handlers= ---------------------------------------------------------------


def test_s2_generic_loader(folder: Path) -> None:
    engine = ScriptedEngine()
    loader = GenericLoader.from_filesystem(
        folder, glob="**/*", suffixes=[".pdf"], parser=MDiffBlobParser(engine=engine)
    )
    pages = loader.lazy_load()
    assert next(pages).page_content == "Text of page 1"
    assert len({a.origin["source"] for a in engine.asked}) == 1, "not lazy"
    documents = loader.load()
    assert {Path(d.metadata["source"]).name for d in documents} == {"a.pdf", "b.pdf"}
    assert len(documents) == 4


def test_s2_names_that_are_no_text_can_be_stored(tmp_path: Path) -> None:
    path = tmp_path / "report-\udcff.pdf"
    try:
        path.write_bytes(sample_pdf(1))
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system takes no such names")
    loader = GenericLoader.from_filesystem(
        tmp_path, glob="*.pdf", parser=MDiffBlobParser(engine="scripted:")
    )
    [document] = loader.load()
    assert document.metadata["source"] == str(tmp_path / r"report-\udcff.pdf")
    json.dumps(document.metadata, ensure_ascii=False).encode()


def test_s3_mime_type_based_parser(folder: Path) -> None:
    ours = MDiffBlobParser(engine=ScriptedEngine())
    parser = MimeTypeBasedParser({"application/pdf": ours, "image/png": ours})
    picture("RGB").save(folder / "scan.png")
    for name, count in (("a.pdf", 2), ("C.PDF", 2), ("scan.png", 1)):
        assert len(parser.parse(Blob.from_path(folder / name))) == count


class DriveFile:
    """A file of a cloud drive, with what the carrier asks of it."""

    is_file, mime_type = True, "application/pdf"
    name, object_id, web_url = "a.pdf", "17", "https://drive/a.pdf"
    created = modified = datetime(2024, 1, 2)
    created_by = modified_by = description = None

    def __init__(self, path: Path) -> None:
        self.path = path

    def download(self, to_path: str, chunk_size: Any) -> None:
        (Path(to_path) / self.name).write_bytes(self.path.read_bytes())


def test_s4_handlers_of_sharepoint_and_onedrive(folder: Path) -> None:
    """The blob is a temporary file; its metadata says where it came from."""

    class Drive(O365BaseLoader):
        """The carrier without the account: one folder with one file."""

        @property
        def _scopes(self) -> list[str]:
            return []

        def lazy_load(self) -> Any:
            class Folder:
                def get_items(self) -> list[DriveFile]:
                    return [DriveFile(folder / "a.pdf")]

            for blob in self._load_from_folder(Folder()):  # type: ignore[arg-type]
                yield from self._blob_parser.lazy_parse(blob)

    drive = Drive(
        settings={"O365_CLIENT_ID": "x", "O365_CLIENT_SECRET": "y"},
        handlers={"pdf": MDiffBlobParser(engine="scripted:")},
    )
    documents = list(drive.lazy_load())
    assert [d.metadata["source"] for d in documents] == ["https://drive/a.pdf"] * 2
    assert [d.metadata["id"] for d in documents] == ["17", "17"]
    assert [d.metadata["page"] for d in documents] == [0, 1]
    assert not any(tempfile.gettempdir() in json.dumps(d.metadata) for d in documents)


# -- S5 to S10: a loader class ------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True])
def test_s5_directory_loader_makes_a_loader_a_file_and_one_engine(
    folder: Path, threads: bool
) -> None:
    close_engines()
    try:
        loader = DirectoryLoader(
            str(folder),
            glob="**/*.pdf",
            loader_cls=MDiffLoader,  # type: ignore[arg-type]
            loader_kwargs={"engine": "scripted:", "mode": "page"},
            use_multithreading=threads,
        )
        documents = loader.load()
        engine: Any = open_engine("scripted:")
        assert {asked.origin["source"] for asked in engine.asked} == {
            str(folder / "a.pdf"), str(folder / "b.pdf"),
        }  # fmt: skip
    finally:
        close_engines()
    assert sorted((Path(d.metadata["source"]).name, d.metadata["page"]) for d in documents) == [
        ("a.pdf", 0), ("a.pdf", 1), ("b.pdf", 0), ("b.pdf", 1),
    ]  # fmt: skip


def test_s5_silent_errors_skip_a_broken_file(folder: Path) -> None:
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    options: dict[str, Any] = {
        "glob": "**/*.pdf", "loader_cls": MDiffLoader, "loader_kwargs": {"engine": "scripted:"},
    }  # fmt: skip
    assert len(DirectoryLoader(str(folder), silent_errors=True, **options).load()) == 4
    with pytest.raises(Exception, match=r"broken\.pdf"):
        DirectoryLoader(str(folder), **options).load()


def fake_modules(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> None:
    """Stand in for the packages of a cloud provider, which the carriers import when they load."""
    for name, attributes in modules.items():
        parts = name.split("__")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(parts[-1])
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, ".".join(parts), module)
        parent = ".".join(parts[:-1])
        setattr(sys.modules[parent], parts[-1], module)


@pytest.mark.filterwarnings("ignore:The class `GCSFileLoader` was deprecated")
def test_s6_loader_func_of_google_cloud_storage(folder: Path, monkeypatch) -> None:
    class Bucket:
        metadata = None

        def blob(self, name: str) -> Bucket:
            return self

        get_blob = blob

        def download_to_filename(self, path: str) -> None:
            Path(path).write_bytes((folder / "a.pdf").read_bytes())

    class Client:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def get_bucket(self, name: str) -> Bucket:
            return Bucket()

    fake_modules(monkeypatch, google__cloud__storage={"Client": Client})
    monkeypatch.setattr(gcs_file, "get_client_info", lambda module: None)
    loader = GCSFileLoader(
        "project", "bucket", "x/a.pdf", loader_func=lambda p: MDiffLoader(p, engine="scripted:")
    )
    documents = loader.load()
    assert [d.metadata["source"] for d in documents] == ["gs://bucket/x/a.pdf"] * 2


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore:The class `GoogleDriveLoader` was deprecated")
def test_s7_file_loader_cls_of_google_drive(folder: Path, monkeypatch) -> None:
    """It calls L(file=BytesIO, **kwargs)."""
    from langchain_community.document_loaders import GoogleDriveLoader

    class Service:
        def files(self) -> Service:
            return self

        def get(self, **kwargs: Any) -> Service:
            return self

        def execute(self) -> dict[str, str]:
            return {"name": "a.pdf"}

        def get_media(self, fileId: str) -> bytes:
            return (folder / "a.pdf").read_bytes()

    class Download:
        def __init__(self, file: io.BytesIO, content: bytes) -> None:
            file.write(content)

        def next_chunk(self) -> tuple[None, bool]:
            return None, True

    fake_modules(monkeypatch, googleapiclient__discovery={"build": lambda *a, **k: Service()})
    fake_modules(monkeypatch, googleapiclient__http={"MediaIoBaseDownload": Download})
    monkeypatch.setattr(GoogleDriveLoader, "_load_credentials", lambda self: None)
    loader = GoogleDriveLoader.model_construct(
        file_loader_cls=MDiffLoader, file_loader_kwargs={"engine": "scripted:", "mode": "single"}
    )
    [document] = loader._load_file_from_id("42")
    assert document.page_content == "Text of page 1\n\fText of page 2"
    assert document.metadata["source"] == "https://drive.google.com/file/d/42/view"


@pytest.mark.filterwarnings("ignore:The class `DocumentLoaderAsParser` is in beta")
def test_s8_a_loader_as_a_parser(folder: Path) -> None:
    parser = DocumentLoaderAsParser(MDiffLoader, engine="scripted:")
    documents = parser.parse(Blob.from_path(folder / "a.pdf"))
    assert [d.metadata["page"] for d in documents] == [0, 1]
    with pytest.raises(ValueError, match="MDiffBlobParser"):
        parser.parse(Blob.from_data(b"x", mime_type="application/pdf"))


def test_s9_the_class_is_renamed_and_the_arguments_stay(folder: Path) -> None:
    path = str(folder / "a.pdf")
    for mode in ("page", "single"):
        theirs = PyPDFLoader(path, None, mode=mode, pages_delimiter=" | ").load()  # type: ignore[arg-type]
        ours = MDiffLoader(
            path,
            None,
            mode=mode,
            pages_delimiter=" | ",
            engine="scripted:",  # type: ignore[arg-type]
        ).load()
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            keys = {"source", "total_pages", "page", "page_label"} & set(their.metadata)
            assert {k: our.metadata[k] for k in keys} == {k: their.metadata[k] for k in keys}
            assert {"producer", "creator", "creationdate"} <= set(our.metadata)


async def _collect(loader: Any) -> list[Any]:
    return [document async for document in loader.alazy_load()]


def test_s10_merged_data_loader(folder: Path) -> None:
    import asyncio

    merged = MergedDataLoader(
        [MDiffLoader(folder / name, engine="scripted:") for name in ("a.pdf", "b.pdf")]
    )
    assert len(merged.load()) == 4
    assert [d.id for d in asyncio.run(_collect(merged))] == [d.id for d in merged.load()]


# -- S11: index() -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["page", "single", "elements"])
def test_s11_the_second_run_of_index_skips_everything(folder: Path, mode: Any) -> None:
    """Thread row 10: re-embedding although the text is the same."""
    records = InMemoryRecordManager("test")
    records.create_schema()
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    loader = MDiffLoader(folder / "a.pdf", engine="scripted:", mode=mode, include_blocks=True)
    runs = [
        index(loader, records, store, cleanup="full", source_id_key="source", key_encoder="sha256")
        for _ in range(2)
    ]
    count = runs[0]["num_added"]
    assert count == (1 if mode == "single" else 2)
    assert (runs[1]["num_added"], runs[1]["num_skipped"]) == (0, count)


def test_ids_survive_add_documents(folder: Path) -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    documents = MDiffLoader(folder / "a.pdf", engine="scripted:").load()
    assert store.add_documents(documents) == [d.id for d in documents]


# -- what stands behind the seams ---------------------------------------------------------------


def test_vector_stores_take_the_metadata_as_it_is(folder: Path) -> None:
    """Thread row 18: Chroma refuses lists and dicts."""
    for mode in ("page", "elements"):
        documents = MDiffLoader(
            folder / "a.pdf",
            engine="scripted:",
            mode=mode,
            include_blocks=True,  # type: ignore[arg-type]
        ).load()
        assert filter_complex_metadata(documents) == documents


def test_splitters_keep_the_page(folder: Path) -> None:
    long_text = "word " * 400
    engine = ScriptedEngine(lambda r: default_script(r) if r.task == "layout" else long_text)
    documents = MDiffLoader(folder / "a.pdf", engine=engine).load()
    chunks = RecursiveCharacterTextSplitter(chunk_size=500).split_documents(documents)
    assert len(chunks) > 4
    assert {chunk.metadata["page"] for chunk in chunks} == {0, 1}
