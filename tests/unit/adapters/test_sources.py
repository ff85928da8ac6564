"""Sources: what is opened how, page ranges, names, and what bytes look like."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mdiff_adapters.errors import (
    ConfigError,
    CorruptDocumentError,
    DocumentError,
    DocumentNotFoundError,
    EmptyDocumentError,
    MDiffError,
    UnsupportedDocumentError,
)
from mdiff_adapters.sources import SourceLimits, open_source, parse_page_range, safe_stem
from mdiff_adapters.testing import sample_pdf


def png(size: tuple[int, int] = (40, 20)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "white").save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6]),
        ("1-3,7", [0, 1, 2, 6]),
        (" 7 , 1 - 3 ", [0, 1, 2, 6]),
        ("5-", [4, 5, 6]),
        ("2,2,1-2", [0, 1]),
        ([2, 0, 2], [0, 2]),
        (range(5, 7), [5, 6]),
        (np.array([1, 3]), [1, 3]),
        (iter([2, 1]), [1, 2]),
    ],
)
def test_page_ranges(pages: Any, expected: list[int]) -> None:
    assert parse_page_range(pages, 7) == expected


@pytest.mark.parametrize(
    ("pages", "says"),
    [
        ("8", "page 8 is out of range: the document has 7 pages"),
        ("0", "page 0 is out of range"),
        ("5-9", "page 9 is out of range"),
        ("3-1", "backwards"),
        ("a", "'a' is not a page"),
        ("1-2-3", "not a page"),
        ("-", "not a page"),
        ("1.5", "not a page"),
        ("-1", "'-1' is not a page"),
        ("-3-5", "not a page"),
        ("²", "not a page"),
        ("9" * 5000, "not a page"),
        (b"1", "selects no pages"),
        (1, "selects no pages"),
        (np.array(1), "selects no pages"),
        ("", "no page is selected"),
        (" , ", "no page is selected"),
        ([], "no page is selected"),
        ([7], "page index 7 is out of range: the document has 7 pages"),
        ([-1], "page index -1 is out of range"),
        ([1.5], "not an integer"),
        ([True], "not an integer"),
        (["1"], "not an integer"),
    ],
)
def test_wrong_page_ranges_say_what_is_wrong(pages: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_page_range(pages, 7, "a.pdf")
    assert caught.value.source == "a.pdf"


@settings(derandomize=True)
@given(st.text(alphabet="0123456789-, x", max_size=12))
def test_any_range_text_is_pages_or_a_config_error(text: str) -> None:
    try:
        pages = parse_page_range(text, 9)
    except ConfigError:
        return
    assert pages == sorted(set(pages))
    assert all(0 <= page < 9 for page in pages)


def test_one_document_from_every_kind_of_source(tmp_path: Path) -> None:
    data = sample_pdf(2)
    path = tmp_path / "two.pdf"
    path.write_bytes(data)
    buffer = io.BytesIO(data)
    buffer.seek(0, os.SEEK_END)  # as after writing into it
    with path.open("rb") as file:
        sources: list[tuple[Any, str]] = [
            (str(path), str(path)),
            (path, str(path)),
            (PurePosixPath(path), str(path)),
            (data, "<bytes>"),
            (bytearray(data), "<bytes>"),
            (memoryview(data), "<bytes>"),
            (buffer, "<file>"),
            (file, str(path)),
        ]
        sizes = set()
        for source, name in sources:
            with open_source(source) as document:
                assert (document.source, document.num_pages) == (name, 2)
                sizes.add(document.load(1).image.size)
        assert sizes == {(400, 400)}
        assert not file.closed, "the caller's file is the caller's to close"


def test_a_name_can_be_given() -> None:
    with open_source(png(), name="letters/scan 7.png") as document:
        assert (document.source, document.stem) == ("letters/scan 7.png", "scan 7")
        assert document.load(0).source == "letters/scan 7.png"


def test_a_stream_that_cannot_seek_is_read() -> None:
    class Pipe(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self._inner = io.BytesIO(data)

        def read(self, size: int = -1) -> bytes:
            return self._inner.read(size)

    with open_source(Pipe(sample_pdf(1))) as document:
        assert document.num_pages == 1


def test_a_pipe_path_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(png())
    with open_source(f"/dev/fd/{reader}") as document:
        assert document.load(0).image.size == (40, 20)
    os.close(reader)


def test_fsspec_by_url_and_by_file_system() -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe("/folder/two.pdf", sample_pdf(2))
    with open_source("memory://folder/two.pdf") as document:
        assert (document.source, document.stem) == ("memory://folder/two.pdf", "two")
    with open_source("/folder/two.pdf", fs=fs) as document:
        assert document.num_pages == 2
    with pytest.raises(DocumentNotFoundError, match=r"none\.pdf"):
        open_source("memory://folder/none.pdf")
    with pytest.raises(UnsupportedDocumentError, match="folder"):
        open_source("/folder", fs=fs)
    with pytest.raises(ConfigError, match="nosuchprotocol"):
        open_source("nosuchprotocol://x/y.pdf")


def test_what_a_file_system_raises_is_a_document_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have errors of their own, such as aiohttp's for an answer of status 403."""
    import fsspec

    class Forbidden(Exception):
        status = 403

    fs = fsspec.filesystem("memory")
    monkeypatch.setattr(type(fs), "cat_file", lambda *_: (_ for _ in ()).throw(Forbidden("no")))
    fs.pipe("/secret.pdf", sample_pdf(1))
    with pytest.raises(DocumentError, match=r"secret\.pdf: cannot be fetched: no"):
        open_source("memory://secret.pdf")


def test_missing_file_folder_and_things_that_are_no_source(tmp_path: Path) -> None:
    missing = tmp_path / "none.pdf"
    with pytest.raises(DocumentNotFoundError, match=r"none\.pdf: there is no such file") as caught:
        open_source(missing)
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(DocumentNotFoundError):
        open_source(tmp_path / "a.txt" / "b.pdf")
    with pytest.raises(UnsupportedDocumentError, match="folder"):
        open_source(tmp_path)
    with pytest.raises(ConfigError, match="int"):
        open_source(7)
    with pytest.raises(ConfigError, match="binary mode"):
        open_source(io.StringIO("text"))
    with pytest.raises(DocumentNotFoundError, match="not a path"):
        open_source("%PDF-1.7\0\1")
    with pytest.raises(DocumentNotFoundError):
        open_source("x" * 5000)
    closed = io.BytesIO(b"")
    closed.close()
    with pytest.raises(DocumentError, match="cannot be read"):
        open_source(closed)


@pytest.mark.parametrize(
    ("data", "name", "kind", "says"),
    [
        (b"", "a.pdf", EmptyDocumentError, "no bytes"),
        (b"\n", "a.pdf", CorruptDocumentError, "plain text, not a PDF"),
        (b"<!DOCTYPE html><html>404", "a.pdf", CorruptDocumentError, "an HTML page, not a PDF"),
        (b"\xef\xbb\xbf\n<html>", "a.png", CorruptDocumentError, "an HTML page, not an image"),
        (b"<html>", "a.html", UnsupportedDocumentError, "an HTML page"),
        (b'{"error": 1}', "a.pdf", CorruptDocumentError, "JSON"),
        (b"<?xml version='1.0'?><a/>", "a.pdf", CorruptDocumentError, "XML"),
        (b"<svg xmlns='x'/>", "a.svg", UnsupportedDocumentError, "SVG"),
        (b"PK\x03\x04....", "a.docx", UnsupportedDocumentError, "Office"),
        (b"version https://git-lfs.github.com", "a.pdf", CorruptDocumentError, "Git LFS"),
        (b"x" * 2000 + b"%PDF-1.7", "a.pdf", CorruptDocumentError, "PDF behind 2000 bytes"),
        (b"\x00\x01\x02\x03" * 9, "a.pdf", CorruptDocumentError, "binary data"),
        ("ünïcode".encode() * 90, "a.txt", UnsupportedDocumentError, "plain text"),
        (b"%PDF-1.7\n1 0 obj\n<< /Type", "a.pdf", CorruptDocumentError, "damaged"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a.png", CorruptDocumentError, "the image is damaged"),
        (b"BMW is no bitmap", "a.txt", UnsupportedDocumentError, "plain text"),
    ],
)
def test_bytes_that_are_no_document(
    tmp_path: Path, data: bytes, name: str, kind: type[MDiffError], says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(kind, match=says) as caught:
        open_source(path)
    assert name in str(caught.value)
    assert caught.value.hint
    assert "Success" not in str(caught.value)


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "page.pdf"
    path.write_bytes(png())
    with open_source(path) as document:
        assert document.load(0).image.size == (40, 20)


@pytest.mark.parametrize("name", ["试" * 80 + ".pdf", "e\u0301.pdf", "a b#%41?.pdf"])
def test_star_12_names_that_are_long_or_not_ascii(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(sample_pdf(1))
    with open_source(path) as document:
        assert document.source == str(path)
        assert len(document.stem.encode()) <= 200
        assert document.load(0).image.size == (400, 400)


@pytest.mark.skipif(os.name != "posix", reason="file names of bytes are a matter of POSIX")
def test_a_name_that_is_no_text_can_be_opened_and_printed(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/bad\xff.pdf"
    with open(path, "wb") as file:
        file.write(sample_pdf(1))
    with open_source(os.fsdecode(path)) as document:
        assert document.source.encode("utf-8").endswith(rb"bad\udcff.pdf")


def test_stems_are_bounded_and_do_not_collide() -> None:
    long = "x" * 300
    stems = {safe_stem(f"/a/{long}1.pdf"), safe_stem(f"/a/{long}2.pdf")}
    assert len(stems) == 2
    assert all(len(stem.encode()) == 200 for stem in stems)
    assert safe_stem("s3://bucket/letters/scan.v2.pdf?x=1/2") == "scan.v2"
    assert safe_stem("C:\\scans\\a.tif") == "a"
    assert {safe_stem(name) for name in ("", ".", "..", "a/", "<bytes>")} == {"document"}


@settings(derandomize=True)
@given(st.text(max_size=400))
def test_any_name_gives_a_stem_that_file_systems_take(name: str) -> None:
    stem = safe_stem(name)
    assert 0 < len(stem.encode()) <= 200
    assert "/" not in stem
    assert "\0" not in stem


@pytest.mark.parametrize(
    "bad", [{"dpi": 0}, {"dpi": 5000}, {"dpi": True}, {"max_pixels": 0}, {"max_side_px": 40_000}]
)
def test_limits_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SourceLimits(**bad)


def test_a_closed_document_says_so(make_pdf: Callable[..., bytes]) -> None:
    for data in (make_pdf(["/MediaBox [0 0 200 200]"]), png()):
        document = open_source(data)
        document.close()
        document.close()
        with pytest.raises(DocumentError, match="closed"):
            document.load(0)
