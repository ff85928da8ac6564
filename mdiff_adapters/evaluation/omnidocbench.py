"""OmniDocBench's folder format: pages end to end, or their true regions as crops.

The scores are those of our own metrics and matching, not of the benchmark's scripts: texts are
compared a page at a time in reading order, tables and formulas matched by similarity. For official
figures write the pages as markdown (:func:`write_predictions`) and run the benchmark's own scripts.

Source: OmniDocBench (arXiv 2412.07626): a JSON list of pages, each with ``layout_dets`` (category,
polygon, text, latex, html, order) and ``page_info.image_path``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mdiff_adapters.document import ParsedPage
from mdiff_adapters.errors import ConfigError, MDiffError
from mdiff_adapters.evaluation.metrics import (
    edit_similarity,
    formula_match,
    normalize_spaces,
    page_iou,
    teds,
    teds_structure,
)
from mdiff_adapters.evaluation.reading import Crop
from mdiff_adapters.parser import DocumentParser
from mdiff_core.config import Task
from mdiff_core.imaging import upright_rgb

__all__ = [
    "PageTruth",
    "RegionTruth",
    "check_names",
    "load_pages",
    "parse_pages",
    "score_pages",
    "true_crops",
    "write_predictions",
]

TEXT_CATEGORIES = frozenset(
    {"title", "text_block", "code_txt", "reference", "list_group", "equation_semantic"}
)
"""Categories whose text is body text. Captions, footnotes, headers and page numbers are not."""
BODY_TYPES = frozenset({"title", "text", "list", "code", "algorithm", "ref_text", "other"})
"""The same among our region types."""
_TASKS: Mapping[str, Task] = {"table": "table", "equation_isolated": "formula"}
_FIELDS: Mapping[Task, tuple[str, ...]] = {
    "text": ("text",), "table": ("html", "latex"), "formula": ("latex",)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RegionTruth:
    """A region of a page as annotated.

    Attributes:
        category: OmniDocBench's category.
        task: The task that reads it; None for what is not scored.
        box: x0, y0, x1, y1 in px of the page image.
        text: Text, HTML or LaTeX.
        order: Reading order; regions without one come last.
    """

    category: str
    task: Task | None
    box: tuple[float, float, float, float]
    text: str
    order: float


@dataclass(frozen=True, slots=True)
class PageTruth:
    """An annotated page.

    Attributes:
        image: The image file.
        size_px: Width and height as annotated.
        regions: In reading order; ignored ones are left out.
    """

    image: Path
    size_px: tuple[float, float]
    regions: tuple[RegionTruth, ...]

    def of(self, task: Task) -> list[str]:
        """Return the truths of one task, in reading order."""
        return [region.text for region in self.regions if region.task == task]


def load_pages(folder: Path) -> list[PageTruth]:
    """Read the annotations of a folder.

    Args:
        folder: Holds one JSON file with the annotations, and the images below it.

    Returns:
        The pages, in the order of the file.

    Raises:
        ConfigError: If there is no such file, or it or an image is missing or wrong.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if isinstance(raw, list) and raw and isinstance(raw[0], dict) and "layout_dets" in raw[0]:
            try:
                return [_page(folder, item) for item in raw]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path} is not in OmniDocBench's format: {error!r}") from error
    raise ConfigError(
        f"no annotations in {folder}", hint="expected a JSON list of pages with layout_dets"
    )


def _page(folder: Path, raw: Mapping[str, Any]) -> PageTruth:
    info = raw["page_info"]
    name = Path(info["image_path"])
    found = next((p for p in (folder / name, folder / "images" / name.name) if p.is_file()), None)
    if found is None:
        raise ConfigError(f"{folder / name} is not there", hint="images belong below the folder")
    regions = [_region(item) for item in raw["layout_dets"] if not item.get("ignore")]
    ordered = sorted(regions, key=lambda region: region.order)
    return PageTruth(found, (float(info["width"]), float(info["height"])), tuple(ordered))


def _region(raw: Mapping[str, Any]) -> RegionTruth:
    category = raw["category_type"]
    task: Task | None = _TASKS.get(category, "text" if category in TEXT_CATEGORIES else None)
    text = ""
    if task is not None:
        text = next((str(raw[f]) for f in _FIELDS[task] if raw.get(f)), "")
    xs, ys = raw["poly"][0::2], raw["poly"][1::2]
    order = raw.get("order")
    return RegionTruth(
        category=category,
        task=task if text else None,
        box=(min(xs), min(ys), max(xs), max(ys)),
        text=text,
        order=float("inf") if order is None else float(order),
    )


def true_crops(pages: Iterable[PageTruth], tasks: Sequence[Task]) -> Iterator[Crop]:
    """Yield the annotated regions as crops: reading with the true layout.

    Args:
        pages: The pages.
        tasks: Tasks the engine can be asked.
    """
    for page in pages:
        with Image.open(page.image) as opened:
            image = upright_rgb(opened)
        # The annotation may be of another resolution than the file.
        scale = [image.width / page.size_px[0], image.height / page.size_px[1]] * 2
        for number, region in enumerate(page.regions):
            if region.task is None or region.task not in tasks:
                continue
            x0, y0, x1, y1 = (v * s for v, s in zip(region.box, scale, strict=True))
            box = (max(0, int(x0)), max(0, int(y0)), min(image.width, round(x1)),
                   min(image.height, round(y1)))  # fmt: skip
            if box[2] > box[0] and box[3] > box[1]:
                name = f"{page.image.stem}#{number}"
                yield Crop(name, image.crop(box), region.text, region.task)


def parse_pages(
    parser: DocumentParser, pages: Iterable[PageTruth]
) -> Iterator[tuple[PageTruth, ParsedPage | MDiffError]]:
    """Parse page images end to end; a page that fails comes with its error."""
    for page in pages:
        try:
            yield page, parser.parse(page.image).pages[0]
        except MDiffError as error:
            yield page, error


def score_pages(
    parsed: Iterable[tuple[PageTruth, ParsedPage | MDiffError]],
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Compare parsed pages with their truths.

    Args:
        parsed: From :func:`parse_pages`.

    Returns:
        Means by metric, and the values of each page. ``text``: normalised edit similarity of the
        page's body text in reading order, so a wrong order costs too. ``teds``, ``teds_s``,
        ``formula``: each truth with the answer most like it, once; unmatched ones on either side
        count 0. ``page_iou``: all annotated regions against all found ones. ``overall``: the mean
        of text, teds and formula in percent, of those that occur; not the official Overall.
    """
    rows: list[dict[str, Any]] = []
    collected: dict[str, list[float]] = {}
    for truth, page in parsed:
        values: dict[str, list[float]] = {}
        failed = isinstance(page, MDiffError)
        regions = () if isinstance(page, MDiffError) else page.regions
        if texts := truth.of("text"):
            body = [region.text for region in regions if region.type in BODY_TYPES]
            answer, wanted = (normalize_spaces(" ".join(part)) for part in (body, texts))
            values["text"] = [edit_similarity(answer, wanted)]
        tables = [region.table.to_html() for region in regions if region.table is not None]
        formulas = [region.latex for region in regions if region.latex is not None]
        values["teds"] = _matched(tables, truth.of("table"), teds)
        values["teds_s"] = _matched(tables, truth.of("table"), teds_structure)
        values["formula"] = _matched(formulas, truth.of("formula"), formula_match)
        width, height = truth.size_px
        wanted_boxes = [
            (r.box[0] / width, r.box[1] / height, r.box[2] / width, r.box[3] / height)
            for r in truth.regions
        ]
        found_boxes = [(r.bbox.x0, r.bbox.y0, r.bbox.x1, r.bbox.y1) for r in regions]
        values["page_iou"] = [page_iou(found_boxes, wanted_boxes)]
        rows.append({
            "page": truth.image.name,
            **{name: sum(v) / len(v) for name, v in values.items() if v},
            **({"error": str(page)} if failed else {}),
        })  # fmt: skip
        for name, found in values.items():
            collected.setdefault(name, []).extend(found)
    means = {name: sum(v) / len(v) for name, v in collected.items() if v}
    parts = [means[name] for name in ("text", "teds", "formula") if name in means]
    if parts:
        means["overall"] = 100 * sum(parts) / len(parts)
    return means, rows


def _matched(
    answers: Sequence[str], truths: Sequence[str], similarity: Callable[[str, str], float]
) -> list[float]:
    """Return one value a truth or answer, whichever are more; the best pairs first."""
    pairs = sorted(
        ((similarity(a, t), i, j) for i, a in enumerate(answers) for j, t in enumerate(truths)),
        key=lambda pair: -pair[0],
    )
    used_answers: set[int] = set()
    used_truths: set[int] = set()
    values = []
    for value, i, j in pairs:
        if i not in used_answers and j not in used_truths:
            used_answers.add(i)
            used_truths.add(j)
            values.append(value)
    return values + [0.0] * (max(len(answers), len(truths)) - len(values))


def check_names(pages: Iterable[PageTruth]) -> None:
    """Refuse pages whose predictions would overwrite each other's.

    Args:
        pages: The pages. The benchmark's scripts find a page's markdown by the stem of its image.

    Raises:
        ConfigError: If two images have one stem.
    """
    seen: dict[str, Path] = {}
    for page in pages:
        other = seen.setdefault(page.image.stem, page.image)
        if other != page.image:
            raise ConfigError(
                f"the predictions of {other} and {page.image} would be one file",
                hint="give the images names of their own",
            )


def write_predictions(
    parsed: Iterable[tuple[PageTruth, ParsedPage | MDiffError]], folder: Path
) -> Iterator[tuple[PageTruth, ParsedPage | MDiffError]]:
    """Write each page as markdown for the benchmark's own scripts, and pass it on.

    Args:
        parsed: From :func:`parse_pages`.
        folder: Where; made where it is missing. A page that failed is an empty file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for truth, page in parsed:
        text = (
            "" if isinstance(page, MDiffError) else page.to_markdown(formula_delimiters="dollars")
        )
        (folder / f"{truth.image.stem}.md").write_text(text, encoding="utf-8")
        yield truth, page
