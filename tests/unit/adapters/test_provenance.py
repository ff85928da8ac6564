"""Stable ids and flat metadata."""

from __future__ import annotations

import hashlib
import io
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mdiff_adapters.errors import ConfigError, DocumentError, DocumentNotFoundError
from mdiff_adapters.provenance import read_input, stable_id


def test_the_digest_is_that_of_the_content_however_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"content")
    fs = fsspec.filesystem("memory")
    fs.pipe("/x/a.bin", b"content")
    try:
        inputs = [
            read_input(path),
            read_input(str(path)),
            read_input(b"content"),
            read_input(memoryview(b"content")),
            read_input(io.BytesIO(b"content")),
            read_input("memory://x/a.bin"),
            read_input("/x/a.bin", fs=fs),
        ]
        with path.open("rb") as file:
            file.read(3)
            inputs.append(read_input(file))
    finally:
        fs.rm("/x", recursive=True)
    assert len({one.digest for one in inputs}) == 1
    assert (inputs[0].source, inputs[0].name) == (str(path), None)
    assert inputs[2].name == inputs[4].name == f"sha256:{inputs[0].digest[:16]}"
    assert [one.name for one in inputs[5:]] == ["memory://x/a.bin", "/x/a.bin", str(path)]


def test_a_path_that_cannot_be_read_is_left_to_the_parser(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path, "nul\0byte"):
        assert read_input(path).digest == ""


@pytest.mark.timeout(20)  # opening a pipe for the second time waits for ever
def test_a_pipe_is_read_once_and_keeps_its_name(open_pipe: Callable[[bytes], Path]) -> None:
    path = open_pipe(b"content")
    one = read_input(path)
    assert (one.source, one.name) == (b"content", str(path))
    assert one.digest == hashlib.sha256(b"content").hexdigest()


def test_names_that_are_no_text_can_be_stored() -> None:
    file = io.BytesIO(b"content")
    file.name = "report-\udcff.pdf"  # type: ignore[attr-defined]
    assert read_input(file).name == r"report-\udcff.pdf"


def test_what_is_no_document() -> None:
    with pytest.raises(ConfigError, match="from int"):
        read_input(3)
    with pytest.raises(ConfigError, match="binary mode"):
        read_input(io.StringIO("text"))
    with pytest.raises(ConfigError, match="no file system"):
        read_input("nosuchprotocol://x/y")
    with pytest.raises(DocumentNotFoundError, match="memory://no/such"):
        read_input("memory://no/such")


def test_what_a_file_system_raises_is_a_document_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the parser: aiohttp and the clients of stores have errors of their own."""

    class Forbidden(Exception):
        status = 403

    def refuse(*_: Any, **__: Any) -> bytes:
        raise Forbidden("no")

    fs = fsspec.filesystem("memory")
    monkeypatch.setattr(type(fs), "cat_file", refuse)
    fs.pipe("/secret.pdf", b"x")
    with pytest.raises(DocumentError, match=r"memory://secret\.pdf: cannot be fetched: no"):
        read_input("memory://secret.pdf")
    with pytest.raises(DocumentError, match=r"secret\.pdf: cannot be fetched: no"):
        read_input("/secret.pdf", fs=fs)
    fs.rm("/secret.pdf")


def test_a_path_of_bytes_is_a_path(tmp_path: Path) -> None:
    class Bytes:
        def __fspath__(self) -> bytes:
            return bytes(tmp_path / "a.bin")

    (tmp_path / "a.bin").write_bytes(b"content")
    assert read_input(Bytes()) == read_input(tmp_path / "a.bin")


def test_urls_without_fsspec_give_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=r'pip install "mdiff-adapters\[fsspec\]"'):
        read_input("memory://x")


def test_ids_are_uuids_that_never_change() -> None:
    # Written down: an index built with one release is updated with the next.
    assert stable_id("00" * 32, "page", 0) == "71175056-6dc5-5841-aca3-659dfe077c3a"
    assert uuid.UUID(stable_id("00" * 32, "page", 0)).version == 5
    assert stable_id("00" * 32, "page", 0) != stable_id("00" * 32, "page", 1)
