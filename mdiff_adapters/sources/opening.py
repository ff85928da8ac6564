"""From whatever the caller gives to an open document."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from mdiff_adapters.errors import (
    ConfigError,
    DocumentError,
    DocumentNotFoundError,
    MDiffError,
    UnsupportedDocumentError,
)
from mdiff_adapters.sources.base import DocumentSource, PageSelection, SourceLimits
from mdiff_adapters.sources.sniffing import HEAD_BYTES, display_name, safe_stem, sniff

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["SourceInput", "fetch", "fetch_url", "open_source"]

SourceInput = Any
"""Path (str or os.PathLike), URL, bytes, binary file object or PIL image."""


def open_source(
    source: SourceInput,
    *,
    password: str | None = None,
    pages: PageSelection = None,
    limits: SourceLimits | None = None,
    fs: Any = None,
    name: str | None = None,
) -> DocumentSource:
    """Open a document of any supported kind; its content decides, not its name.

    Args:
        source: Path, URL (through fsspec), bytes, binary file object (read from its start where it
            can seek) or PIL image (one page: the frame it shows).
        password: Password of an encrypted PDF; ignored where none is needed.
        pages: Selected pages, see :func:`parse_page_range`.
        limits: Resolution and pixel budget.
        fs: fsspec file system that ``source`` is a path on.
        name: What to call the document in results and errors, by default the path or the file
            object's name.

    Returns:
        The open document, a context manager.

    Raises:
        DocumentNotFoundError: If there is no such file.
        EmptyDocumentError: If it has no bytes or no pages.
        PasswordError: If it is encrypted and the password is missing or wrong.
        CorruptDocumentError: If the bytes are not what the name claims, or damaged.
        UnsupportedDocumentError: If it is a folder, or a kind that is not read.
        InputTooLargeError: If an image is too large to decode.
        ConfigError: If the selection or the limits are wrong.
        ImportError: If it is a URL and fsspec is not installed.
    """
    limits = limits or SourceLimits()
    if _is_pil_image(source):
        from mdiff_adapters.sources.images import PillowImageSource

        title = name or display_name(str(getattr(source, "filename", "") or "image"))
        return PillowImageSource(
            cast("Image.Image", source), source=title, stem=safe_stem(title), pages=pages,
            limits=limits,
        )  # fmt: skip
    file, title = _open_bytes(source, fs)
    title = name or title
    try:
        return _open_file(file, title, password=password, pages=pages, limits=limits)
    except BaseException:
        file.close()
        raise


def _open_file(
    file: BinaryIO, title: str, *, password: str | None, pages: PageSelection, limits: SourceLimits
) -> DocumentSource:
    try:
        head = file.read(HEAD_BYTES)
        file.seek(0)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror or error}", source=title) from error
    kind = sniff(head, source=title)
    common: dict[str, Any] = {
        "source": title, "stem": safe_stem(title), "pages": pages, "limits": limits,
    }  # fmt: skip
    if kind == "pdf":
        from mdiff_adapters.sources.pdf import PdfSource

        return PdfSource(file, password=password, **common)
    from mdiff_adapters.sources.images import ImageSource

    return ImageSource(file, **common)


def _is_pil_image(source: SourceInput) -> bool:
    # Asked by name first: a caller with bytes or a path should not pay for importing Pillow here.
    if not any(kind.__module__.startswith("PIL.") for kind in type(source).__mro__):
        return False
    from PIL import Image

    return isinstance(source, Image.Image)


def _open_bytes(source: SourceInput, fs: Any) -> tuple[BinaryIO, str]:
    """Return a seekable binary file that we own, and the document's name."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(bytes(source)), "<bytes>"
    if hasattr(source, "read"):
        return _read_file_object(source)
    if not isinstance(source, (str, os.PathLike, PurePath)):
        raise ConfigError(
            f"a document cannot be opened from {type(source).__name__}",
            hint="give a path, a URL, bytes, a binary file object or a PIL image",
        )
    path = os.fsdecode(source)
    if fs is not None:
        title = display_name(path)
        return io.BytesIO(fetch(fs, path, title)), title
    if "://" in path:
        return io.BytesIO(fetch_url(path)), path
    return _open_path(path)


def _open_path(path: str) -> tuple[BinaryIO, str]:
    title = display_name(path)
    try:
        if Path(path).is_dir():
            raise UnsupportedDocumentError(
                "this is a folder", hint="give the files in it one by one", source=title
            )
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            if not file.seekable():  # a pipe: PDFs are read from the end
                return io.BytesIO(file.read()), title
            stack.pop_all()
            return file, title
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DocumentNotFoundError(
            "there is no such file", hint="check the path", source=title
        ) from error
    except ValueError as error:  # a path with a zero byte
        raise DocumentNotFoundError(
            "this is not a path", hint="pass the content as bytes, not as text", source=title[:80]
        ) from error
    except OSError as error:
        kind = DocumentNotFoundError if "too long" in str(error) else DocumentError
        raise kind(f"cannot be opened: {error.strerror or error}", source=title[:300]) from error


def _read_file_object(source: Any) -> tuple[BinaryIO, str]:
    given = getattr(source, "name", None)
    title = display_name(given) if isinstance(given, str) and given else "<file>"
    try:
        # Whoever wrote into a buffer leaves it at its end; a document begins at the start.
        if getattr(source, "seekable", lambda: False)():
            source.seek(0)
        data = source.read()
    except (OSError, ValueError) as error:
        raise DocumentError(f"the file object cannot be read: {error}", source=title) from error
    if isinstance(data, str):
        raise ConfigError(
            "the file object gives text", hint='open the file in binary mode ("rb")', source=title
        )
    return io.BytesIO(data), title


def fetch_url(url: str) -> bytes:
    """Return the content of a URL.

    Raises:
        ImportError: If fsspec is not installed.
        ConfigError: If the file system that it needs is not installed.
        DocumentError: As :func:`fetch`.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            'URLs need fsspec: pip install "mdiff-adapters[fsspec]"', name="fsspec"
        ) from error
    try:
        fs, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"no file system for this URL: {error}", hint="install the fsspec package it names",
            source=url,
        ) from error  # fmt: skip
    return fetch(fs, path, url)


def fetch(fs: Any, path: str, title: str) -> bytes:
    """Return the content of a file on an fsspec file system.

    Args:
        fs: The file system.
        path: Path on it.
        title: What to call it in errors.

    Raises:
        DocumentNotFoundError: If there is no such file.
        UnsupportedDocumentError: If it is a folder.
        DocumentError: If it cannot be fetched.
    """
    try:
        if fs.isdir(path):
            raise UnsupportedDocumentError(
                "this is a folder", hint="give the files in it one by one", source=title
            )
        # Remote files seek by requests; PDFs seek a lot, so the whole file is fetched once.
        data: bytes = fs.cat_file(path)
        return data
    except FileNotFoundError as error:
        raise DocumentNotFoundError(
            "there is no such file", hint="check the path", source=title
        ) from error
    except MDiffError:
        raise
    except Exception as error:  # file systems raise what their clients raise
        reason = str(error) or type(error).__name__
        raise DocumentError(f"cannot be fetched: {reason}", source=title) from error
