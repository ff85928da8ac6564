"""Small documents made on the spot, so that a test needs no file of anybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

INFO = {
    "Title": "Sample",
    "Author": "A. Writer",
    "Creator": "sample_pdf",
    "Producer": "mdiff_adapters.testing",
    "CreationDate": "D:20240102030405+00'00'",
}


def sample_pdf(
    num_pages: int = 3,
    *,
    size_pt: tuple[int, int] = (144, 144),
    texts: Sequence[str] | None = None,
    roman: int = 0,
    info: Mapping[str, str] = INFO,
) -> bytes:
    """Return a valid PDF with one line of text a page.

    Args:
        num_pages: Number of pages, at least 1.
        size_pt: Width and height of each page in points.
        texts: What is written on each page; by default ``Page 1``, ``Page 2``, … Latin-1.
        roman: Number of leading pages whose printed labels are roman (i, ii, …); the following
            ones count from 1.
        info: Document information; empty leaves it out.

    Returns:
        The bytes of the file, the same for the same arguments.
    """
    texts = [f"Page {n + 1}" for n in range(num_pages)] if texts is None else texts
    width, height = size_pt
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(num_pages))
    labels = f"/PageLabels << /Nums [0 << /S /r >> {roman} << /S /D >>] >>" if roman else ""
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {labels} >>",
        f"<< /Type /Pages /Count {num_pages} /Kids [{kids}] /MediaBox [0 0 {width} {height}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n in range(num_pages):
        content = f"BT /F1 18 Tf 12 {height // 2} Td ({_escape(texts[n])}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /Contents {5 + 2 * n} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    if info:
        fields = " ".join(f"/{name} ({_escape(value)})" for name, value in info.items())
        objects.append(f"<< {fields} >>")
    return _assemble(objects, info=bool(info))


def _assemble(objects: Sequence[str], *, info: bool) -> bytes:
    out = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode("ascii")
    out += b"".join(f"{offset:010d} 00000 n \n".encode("ascii") for offset in offsets)
    extra = f" /Info {len(objects)} 0 R" if info else ""
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R{extra} >>\n".encode("ascii")
    out += f"startxref\n{start}\n%%EOF\n".encode("ascii")
    return bytes(out)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
