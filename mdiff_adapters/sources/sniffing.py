"""What bytes look like, whatever the file is called, and names that are safe to print and use."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Literal

from mdiff_adapters.errors import (
    CorruptDocumentError,
    DocumentError,
    EmptyDocumentError,
    UnsupportedDocumentError,
)

__all__ = ["HEAD_BYTES", "Kind", "display_name", "safe_stem", "sniff"]

Kind = Literal["pdf", "image"]

HEAD_BYTES = 4096
"""How much of a file :func:`sniff` needs to see."""
PDF_HEADER_WITHIN_BYTES = 1024
"""PDFium accepts a PDF header that starts within the first kilobyte."""
MAX_STEM_BYTES = 200
"""Leaves room for a suffix below the 255 bytes that file systems allow."""

_IMAGE_MAGIC = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*",
    b"II+\0", b"MM\0+", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51", b"8BPS", b"\0\0\x01\0",
    b"\x0a\x05\x01", b"\xb1\x68\xde\x3a", b"qoif", b"\x01\xda", b"Y\xa6j\x95",
)  # fmt: skip
_PDF_SUFFIXES = (".pdf",)
_IMAGE_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif", ".bmp", ".webp", ".jp2", ".avif", ".ppm",
    ".pgm", ".pbm",
)  # fmt: skip
_SIGNATURES = (
    (b"PK\x03\x04", "a ZIP archive or an Office document"),
    (b"\xd0\xcf\x11\xe0", "an older Office document"),
    (b"%!PS", "PostScript"),
    (b"{\\rtf", "RTF"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"AT&TFORM", "DjVu"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)


def sniff(head: bytes, *, source: str) -> Kind:
    """Return what kind of document the first bytes of a file begin.

    Args:
        head: The first :data:`HEAD_BYTES` of the file, fewer only where it is shorter.
        source: Name of the document for errors and, by its suffix, for what it claims to be.

    Returns:
        ``pdf`` or ``image``.

    Raises:
        EmptyDocumentError: If there are no bytes.
        CorruptDocumentError: If the name claims a PDF or an image and the bytes are neither.
        UnsupportedDocumentError: If they are something else.
    """
    if not head:
        raise EmptyDocumentError("the file has no bytes", hint="check the download", source=source)
    if b"%PDF-" in head[: PDF_HEADER_WITHIN_BYTES + 5]:
        return "pdf"
    if head.startswith(_IMAGE_MAGIC) or _is_other_image(head):
        return "image"
    raise refusal(head, source)


def _is_other_image(head: bytes) -> bool:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return True
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"mif1", b"miaf"):
        return True
    return re.match(rb"P[1-7f][\s#]", head) is not None


def refusal(head: bytes, source: str) -> DocumentError:
    """Return the error for bytes that are no readable document, saying what they look like."""
    suffix = os.path.splitext(source)[1].lower()
    looks = describe(head)
    claimed = "PDF" if suffix in _PDF_SUFFIXES else "image" if suffix in _IMAGE_SUFFIXES else None
    if claimed:
        return CorruptDocumentError(
            f"the bytes look like {looks}, not {'a PDF' if claimed == 'PDF' else 'an image'}",
            hint="check the file: a failed download often leaves an error page",
            source=source,
        )
    return UnsupportedDocumentError(
        f"the bytes look like {looks}", hint="PDFs and images are read", source=source
    )


def describe(head: bytes) -> str:
    """Return in a few words what the first bytes of a file look like."""
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:512].lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or b"<html" in text:
        return "an HTML page"
    if text.startswith((b"<?xml", b"<svg")):
        return "SVG" if b"<svg" in text else "XML"
    if text.startswith((b"{", b"[")):
        return "JSON or other text"
    at = head.find(b"%PDF-")
    if at > 0:
        return f"a PDF behind {at} bytes of something else"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A multi-byte character cut by the end of the head is still text.
        if error.start < len(head) - 3:
            return f"binary data that begins with {head[:4].hex(' ')}"
    if b"\0" in head:
        return f"binary data that begins with {head[:4].hex(' ')}"
    return "plain text"


def display_name(path: str) -> str:
    """Return a path that can be printed and stored as UTF-8.

    File names that are no valid text arrive with surrogates, which no UTF-8 encoder takes.
    """
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def safe_stem(name: str) -> str:
    """Return the file stem of a path or URL, cut to a length that any file system takes.

    A cut stem ends in a hash of the whole name, so that two long names do not collide.

    Args:
        name: Path, URL or file name.

    Returns:
        Stem of at most 200 bytes of UTF-8; ``document`` where nothing is left.
    """
    last = re.split(r"[/\\]", name.split("?")[0] if "://" in name else name)[-1]
    stem = display_name(os.path.splitext(last)[0]).replace("\0", "").strip()
    if not stem or stem in (".", "..") or re.fullmatch("<.*>", stem):  # <bytes>, <file>
        return "document"
    encoded = stem.encode()
    if len(encoded) <= MAX_STEM_BYTES:
        return stem
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{encoded[: MAX_STEM_BYTES - 9].decode('utf-8', 'ignore')}-{digest}"
