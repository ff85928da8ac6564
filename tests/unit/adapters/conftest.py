"""Small hand-made documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

PdfMaker = Callable[..., bytes]

BLACK_SQUARE = "0 0 0 rg 100 100 20 20 re f"


def build_pdf(
    pages: Sequence[str], *, count: int | None = None, contents: Sequence[str] = (), extra: str = ""
) -> bytes:
    """A PDF whose page dictionaries hold the given entries; ``None``-like pages are left out.

    Args:
        pages: Entries of each page dictionary, for example ``/MediaBox [0 0 9 9]``; an empty
            string names an object that does not exist.
        count: What the page tree claims; by default the truth.
        contents: Content stream of each page, by default a black square at (100, 100).
        extra: More entries of the catalog.
    """
    objects: list[str | None] = [f"<< /Type /Catalog /Pages 2 0 R {extra} >>", None]
    kids = []
    for number, entries in enumerate(pages):
        kids.append(f"{len(objects) + 1} 0 R")
        if not entries:
            objects += [None, None]
            continue
        content = contents[number] if number < len(contents) else BLACK_SQUARE
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {len(objects) + 2} 0 R {entries} >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    total = len(pages) if count is None else count
    objects[1] = f"<< /Type /Pages /Count {total} /Kids [{' '.join(kids)}] >>"
    out = bytearray(b"%PDF-1.7\n")
    offsets: list[int | None] = []
    for number, body in enumerate(objects, start=1):
        offsets.append(None if body is None else len(out))
        if body is not None:
            out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    for offset in offsets:
        out += b"0000000000 65535 f \n" if offset is None else f"{offset:010d} 00000 n \n".encode()
    out += (
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()
    )
    return bytes(out)


@pytest.fixture(scope="session")
def make_pdf() -> PdfMaker:
    """:func:`build_pdf`."""
    return build_pdf
