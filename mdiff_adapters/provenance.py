"""What an adapter says about where a text comes from: flat metadata and stable ids.

Index stores hash metadata as JSON, and many take scalars only. So everything here is a JSON scalar
and the same on every run: no timings, no temporary paths, no confidences (their last digits depend
on what else was in the batch).
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from mdiff_adapters.document import ParsedPage
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.export.elements import page_to_elements
from mdiff_adapters.sources.opening import fetch, fetch_url
from mdiff_adapters.sources.sniffing import display_name

if TYPE_CHECKING:
    from mdiff_adapters.parser import DocumentStream

SCHEMA = 1
"""Version of metadata and ids; raised when either changes for the same file."""

# The version 5 UUID of "mdiff-adapters" in the DNS namespace.
_NAMESPACE = uuid.UUID("7d258b3d-c504-55e1-af66-366cff009966")

_FILE_FIELDS = ("producer", "creator", "creationdate")
_OPTIONAL_FIELDS = ("title", "author", "moddate")


@dataclass(frozen=True, slots=True)
class Input:
    """A document as the parser takes it.

    Attributes:
        source: A path that can be opened again, the bytes, or a PIL image made of them.
        name: What to call it; None where the parser knows better.
        digest: SHA-256 of the content in hex; empty where it cannot be read, which the parser then
            says properly.
    """

    source: Any
    name: str | None
    digest: str


def read_input(source: Any, *, fs: Any = None) -> Input:
    """Return a document with the digest of its content; what is not a local file is read once.

    Args:
        source: Path (str or os.PathLike), URL, bytes or a binary file object.
        fs: fsspec file system that ``source`` is a path on.

    Raises:
        ConfigError: If it is none of these.
        ImportError: If it is a URL and fsspec is not installed.
        DocumentNotFoundError: If there is no such file on ``fs`` or at the URL.
        DocumentError: If it cannot be fetched.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(source), None)
    if hasattr(source, "read"):
        if getattr(source, "seekable", lambda: False)():
            source.seek(0)
        data = source.read()
        if isinstance(data, str):
            raise ConfigError("the file object gives text", hint='open it in binary mode ("rb")')
        name = getattr(source, "name", None)
        return _from_bytes(data, name if isinstance(name, str) else None)
    if not isinstance(source, (str, os.PathLike, PurePath)):
        raise ConfigError(
            f"a document cannot be opened from {type(source).__name__}",
            hint="give a path, a URL, bytes or a binary file object",
        )
    text = os.fsdecode(source)
    if fs is not None:
        return _from_bytes(fetch(fs, text, display_name(text)), text)
    if "://" in text:
        return _from_bytes(fetch_url(text), text)
    return _from_path(text)


def _from_bytes(data: bytes, name: str | None) -> Input:
    digest = hashlib.sha256(data).hexdigest()
    # Indexes clean up by source: two nameless files must not look like one.
    return Input(data, display_name(name) if name else f"sha256:{digest[:16]}", digest)


def _from_path(path: str) -> Input:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            if not file.seekable():
                # A pipe gives its content once; to open it again is to wait for another writer.
                return _from_bytes(file.read(), path)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except (OSError, ValueError):
        return Input(path, None, "")
    return Input(path, None, digest.hexdigest())


def stable_id(digest: str, *parts: str | int) -> str:
    """Return a UUID that is the same for the same content and parts, wherever the file lies.

    Args:
        digest: SHA-256 of the file in hex.
        *parts: What tells texts of one file apart: mode, page, region.
    """
    return str(uuid.uuid5(_NAMESPACE, "/".join(str(part) for part in (SCHEMA, digest, *parts))))


def file_metadata(document: Any) -> dict[str, str | int]:
    """Return what a file says about itself.

    Args:
        document: An open document, with ``source``, ``num_pages`` and ``metadata``.

    Returns:
        ``source``, ``total_pages``, and ``producer``, ``creator``, ``creationdate`` (empty where
        absent); ``title``, ``author``, ``moddate`` where there are any.
    """
    own: Mapping[str, str] = document.metadata
    return {
        "source": document.source,
        "total_pages": document.num_pages,
        **{name: own.get(name, "") for name in _FILE_FIELDS},
        **{name: own[name] for name in _OPTIONAL_FIELDS if own.get(name)},
    }


def pages_error(pages: Sequence[ParsedPage]) -> str | None:
    """Return what failed on pages, is missing or was cut short; None where nothing was.

    Returns:
        The messages; of several pages each with the page's label.
    """
    found = []
    for page in pages:
        message = "; ".join(dict.fromkeys(record.message for record in page.problems))
        if message:
            found.append(message if len(pages) == 1 else f"page {page.label}: {message}")
    return "; ".join(found) or None


def page_selection(document: DocumentStream) -> str | None:
    """Return what tells texts of different pages of one file apart; None where all are selected.

    Args:
        document: An open document.
    """
    if tuple(document.page_indices) == tuple(range(document.num_pages)):
        return None
    return f"pages {','.join(map(str, document.page_indices))}"


def blocks_json(page: ParsedPage) -> str:
    """Return the regions of a page as one JSON string.

    Returns:
        A list of ``{"id", "type", "bbox", "text"}`` in reading order; ``bbox`` is ``[x0, y0, x1,
        y1]`` in fractions of the page, origin top left.
    """
    return _to_json(_blocks(page))


def file_blocks_json(pages: Sequence[ParsedPage]) -> str:
    """Return the regions of several pages as :func:`blocks_json` does.

    Returns:
        Such a list, in which each region also says its 0-based ``page``.
    """
    return _to_json([{"page": page.index, **block} for page in pages for block in _blocks(page)])


def _blocks(page: ParsedPage) -> list[dict[str, Any]]:
    return [
        {
            "id": element["element_id"],
            "type": element["category"],
            "bbox": [float(side) for side in str(element["bbox"]).split(",")],
            "text": element["text"],
        }
        for element in page_to_elements(page)
    ]


def _to_json(blocks: list[dict[str, Any]]) -> str:
    return json.dumps(blocks, ensure_ascii=False, separators=(",", ":"))
