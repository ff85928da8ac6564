"""Draft labels: what an engine reads in people's pages, to be corrected and trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mdiff_adapters.document import BBox, ParsedPage, Region
from mdiff_adapters.errors import DocumentError
from mdiff_adapters.evaluation.metrics import normalize_spaces
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.segmenters import PageImage
from mdiff_adapters.sources import SourceLimits, open_source, safe_stem

__all__ = ["draft_labels", "page_record"]

LABELS = "labels.jsonl"


def draft_labels(
    parser: DocumentParser, sources: Iterable[Path], folder: Path, *, dpi: float = 200.0
) -> Iterator[Mapping[str, Any]]:
    """Parse documents and write their pages as a folder of training data.

    The folder gets a PNG a page and a ``labels.jsonl`` with its regions, as
    :mod:`mdiff_core.training.data.folder` reads it. Read it over, correct the texts, and set
    ``"status": "skip"`` where a page is beyond repair.

    Args:
        parser: Reads the pages.
        sources: PDFs and images.
        folder: Where; made where it is missing. An existing ``labels.jsonl`` grows.
        dpi: Resolution of PDF pages.

    Yields:
        Each record, once it is written. Pages that cannot be rendered are left out.

    Raises:
        DocumentError: If a document cannot be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine, segmenter = parser.engine, parser.segmenter
    with (folder / LABELS).open("a", encoding="utf-8") as stream:
        for source in sources:
            with open_source(source, limits=SourceLimits(dpi=dpi)) as document:
                for index in document.page_indices:
                    try:
                        image = document.load(index)
                    except DocumentError:
                        continue
                    (page,) = segmenter.read([image], engine, parser.decode, parser.options)
                    record = page_record(page, _save(image, folder))
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    stream.flush()
                    yield record


def _save(image: PageImage, folder: Path) -> str:
    name = f"{safe_stem(image.stem)}_p{image.index + 1:04d}.png"
    image.image.save(folder / name)
    return name


def page_record(page: ParsedPage, image: str) -> dict[str, Any]:
    """Return the label of a page.

    Args:
        page: The page as parsed.
        image: Name of its image in the folder.

    Returns:
        A record with its regions in reading order. Where text lines are known, they are the
        regions: a checkpoint that reads pieces is trained on lines.
    """
    found = [entry for region in page.regions for entry in _entries(region)]
    # A box without an area holds nothing that could be read.
    regions = [e for e in found if e["bbox"][0] < e["bbox"][2] and e["bbox"][1] < e["bbox"][3]]
    return {"image": image, "regions": regions}


def _entries(region: Region) -> Iterator[dict[str, Any]]:
    if region.lines:
        for line in region.lines:
            yield {"type": "text", "bbox": _corners(line.bbox), "text": line.text}
        return
    text = normalize_spaces(region.text)
    if region.table is not None:
        text = region.table.to_otsl()
    elif region.latex is not None:
        text = region.latex
    entry = {"type": region.raw_label or region.type, "bbox": _corners(region.bbox), "text": text}
    yield entry | ({"angle": region.angle} if region.angle else {})


def _corners(box: BBox) -> list[float]:
    return [round(value, 4) for value in (box.x0, box.y0, box.x1, box.y1)]
