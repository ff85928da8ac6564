"""Draft labels: what an engine reads in people's pages, to be corrected and trained on."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mdiff_adapters.document import BBox, ParsedPage, Region
from mdiff_adapters.errors import ConfigError, DocumentError
from mdiff_adapters.evaluation.metrics import normalize_spaces
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.segmenters import PageImage
from mdiff_adapters.segmenters.model import KEEPS_LINES
from mdiff_adapters.sources import SourceLimits, open_source, safe_stem
from mdiff_adapters.text import strip_special_tokens

__all__ = ["draft_labels", "page_record"]

LABELS = "labels.jsonl"

logger = logging.getLogger(__name__)


def _log_known(name: str) -> None:
    logger.info("%s is labelled already", name)


def draft_labels(
    parser: DocumentParser,
    sources: Iterable[Path],
    folder: Path,
    *,
    dpi: float = 200.0,
    on_failed: Callable[[str], None] = logger.warning,
    on_known: Callable[[str], None] = _log_known,
) -> Iterator[Mapping[str, Any]]:
    """Parse documents and write their pages as a folder of training data.

    The folder gets a PNG a page and a ``labels.jsonl`` with its regions, as
    :mod:`mdiff_core.training.data.folder` reads it. Read it over, correct the texts, and set
    ``"status": "skip"`` where a page is beyond repair.

    Pages that cannot be read are left out. So are pages that the folder has with a label: what was
    corrected by hand stays as it is. For a new draft remove the label, or write to another folder.

    Args:
        parser: Reads the pages.
        sources: PDFs and images.
        folder: Where; made where it is missing. An existing ``labels.jsonl`` grows.
        dpi: Resolution of PDF pages.
        on_failed: Gets the reason for each page that cannot be read; else it is logged.
        on_known: Gets the image name of each page that has a label; else it is logged.

    Yields:
        Each record, once it is written.

    Raises:
        ConfigError: If the folder has labels that cannot be read.
        DocumentError: If a document cannot be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = folder / LABELS
    known, ends_open = _labelled_images(labels), _ends_open(labels)
    engine, segmenter = parser.engine, parser.segmenter
    with labels.open("a", encoding="utf-8") as stream:
        if ends_open:
            stream.write("\n")
        for source in sources:
            with open_source(source, limits=SourceLimits(dpi=dpi)) as document:
                for index in document.page_indices:
                    try:
                        image = document.load(index)
                    except DocumentError as error:
                        on_failed(str(error))
                        continue
                    path = _image_path(image, folder)
                    if path.name in known:
                        on_known(path.name)
                        continue
                    (page,) = segmenter.read([image], engine, parser.decode, parser.options)
                    broken = [error for error in page.errors if error.region is None]
                    if broken:
                        # Training would take it for a page with nothing on it, or with one text.
                        on_failed("; ".join(error.message for error in broken))
                        continue
                    image.image.save(path)
                    record = page_record(page, path.name)
                    known.add(path.name)
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    stream.flush()
                    yield record


def _labelled_images(path: Path) -> set[str]:
    """Return the names of the images that have a label."""
    # Not at the top: the package of the data takes its time to load.
    from mdiff_core.training.data.jsonl import read_json_lines

    names: set[str] = set()
    for where, record in read_json_lines(path) if path.is_file() else ():
        if not isinstance(record.get("image"), str):
            raise ConfigError(
                f"{where} is no label, it names no image",
                hint="correct it, or write to another folder",
            )
        names.add(record["image"])
    return names


def _ends_open(path: Path) -> bool:
    """Whether an editor has left the last line without its end."""
    return path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")


def _image_path(image: PageImage, folder: Path) -> Path:
    """Return where a page's image belongs: a path that is free, or holds this very image.

    Documents of one name may come from several folders, so a name that is taken by another image
    gets a hash of the pixels.
    """
    name = f"{safe_stem(image.stem)}_p{image.index + 1:04d}"
    digest = hashlib.sha256(image.image.tobytes()).hexdigest()
    for end in ("", f"_{digest[:8]}"):
        path = folder / f"{name}{end}.png"
        if not path.exists() or _holds(path, image.image):
            return path
    return folder / f"{name}_{digest}.png"


def _holds(path: Path, image: Image.Image) -> bool:
    try:
        with Image.open(path) as found:
            if found.size != image.size:
                return False
            pixels: bytes = found.convert(image.mode).tobytes()
            return pixels == image.tobytes()
    except (OSError, ValueError):  # no picture, or a broken one
        return False


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
    # As the model is to answer: rows of lists and code stay rows, formulas keep their delimiters.
    text = region.text if region.type in KEEPS_LINES else normalize_spaces(region.text)
    if region.table is not None:
        text = region.table.to_otsl()
    elif region.latex is not None:
        text = strip_special_tokens(region.raw).text.strip() or region.latex
    entry = {"type": region.raw_label or region.type, "bbox": _corners(region.bbox), "text": text}
    yield entry | ({"angle": region.angle} if region.angle else {})


def _corners(box: BBox) -> list[float]:
    return [round(value, 4) for value in (box.x0, box.y0, box.x1, box.y1)]
