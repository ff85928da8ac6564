"""People's own data: images with a ``labels.jsonl``, one record a line.

A record is one of

- ``{"image": "a.png", "text": "...", "task": "text"}``: an upright crop and its answer; ``task`` is
  ``text`` (default), ``table`` (OTSL), ``formula`` (LaTeX) or ``layout``;
- ``{"image": "page.png", "regions": [{"type": "text", "bbox": [x0, y0, x1, y1], "text": "...",
  "angle": 0}, ...]}``: a page and its regions in reading order, boxes as fractions of the upright
  page, angles as the degrees counter-clockwise that make a region upright. It gives one layout
  sample and one sample a region with a text.

Optional in both: ``"status": "skip"`` leaves a record out. A ``lines.json`` (a list of ``file`` and
``text``) is read too. Images are taken as the adapters take them: turned by their EXIF
orientation, on white paper.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mdiff_core.config import TASKS, Capabilities, Task
from mdiff_core.errors import ConfigError, ImageError
from mdiff_core.imaging import upright_rgb
from mdiff_core.protocol import LAYOUT_SIZE_PX, ROTATIONS
from mdiff_core.segments import Piece, cut_line, ink_columns, prepare_piece
from mdiff_core.training.config import check_types
from mdiff_core.training.data.jsonl import read_json_lines
from mdiff_core.training.data.pages import layout_record
from mdiff_core.training.data.sample import Gray, Sample, epoch_order

__all__ = ["FolderOptions", "FolderSource", "Record", "load_record", "read_labels", "split_line"]

logger = logging.getLogger(__name__)

UNREAD_TYPES = ("image", "equation_block")
TASK_OF_TYPE: Mapping[str, Task] = {"table": "table", "equation": "formula"}
GAP_MARGIN = 1.25
"""The narrowest word gap of a line must be wider than its widest other gap by this factor."""
MAX_REPLACEMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """Settings of a folder.

    Attributes:
        path: The folder.
        layout_px: Side of the square that a page is resized to for the layout task.
        layout: Whether pages with regions give layout samples.
        shuffle: Whether samples come in random order; otherwise in the order of the file.
    """

    path: str
    layout_px: int = LAYOUT_SIZE_PX
    layout: bool = True
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_types("data", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One labelled crop or page.

    Attributes:
        image: The image file.
        task: The task.
        text: The answer.
        box: x0, y0, x1, y1 as fractions of the image, for a crop of it.
        angle: Degrees counter-clockwise that make the crop upright.
        consistency: Agreement of stochastic runs, for mined samples.
    """

    image: Path
    task: Task
    text: str
    box: tuple[float, float, float, float] | None = None
    angle: int = 0
    consistency: float | None = None


def read_labels(folder: Path, *, layout: bool = True) -> list[Record]:
    """Read the labels of a folder.

    Args:
        folder: Holds ``labels.jsonl`` or ``lines.json``, and the images.
        layout: Whether pages with regions give a layout record.

    Returns:
        The records, in the order of the file.

    Raises:
        ConfigError: If there are no labels, or a record is wrong; the line is named.
    """
    lines, labels = folder / "lines.json", folder / "labels.jsonl"
    if labels.is_file():
        raw = read_json_lines(labels)
    elif lines.is_file():
        raw = _read_lines(lines)
    else:
        raise ConfigError(
            f"there are no labels in {folder}", hint="expected labels.jsonl, or lines.json"
        )
    return [
        record
        for where, item in raw
        if item.get("status") != "skip"
        for record in _records(folder, where, item, layout=layout)
    ]


def _read_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
        return [
            (f"{path}, entry {number}", {"image": entry["file"], "text": entry["text"]})
            for number, entry in enumerate(entries)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error!r}") from error


def _records(
    folder: Path, where: str, item: Mapping[str, Any], *, layout: bool
) -> Iterable[Record]:
    if not isinstance(item.get("image"), str):
        raise ConfigError(f"{where}: a record names its image", hint='{"image": "a.png", ...}')
    path = folder / item["image"]
    if not path.is_file():
        raise ConfigError(f"{where}: {path} is not there")
    if "regions" not in item:
        task = item.get("task", "text")
        if task not in TASKS or not isinstance(item.get("text"), str):
            raise ConfigError(f"{where}: a record has a text and one of the tasks {TASKS}")
        consistency = item.get("consistency")
        if consistency is not None and not (
            isinstance(consistency, int | float) and 0 <= consistency <= 1
        ):
            raise ConfigError(f"{where}: consistency = {consistency!r} is no number in [0, 1]")
        yield Record(image=path, task=task, text=item["text"], consistency=consistency)
        return
    try:
        regions = [
            (str(region["type"]), _box(region["bbox"]), region.get("text"), _angle(region))
            for region in item["regions"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: a region has a type and a bbox ({error!r})",
            hint="bbox: x0, y0, x1, y1 as fractions of the page; angle: 0, 90, 180 or 270",
        ) from error
    if layout:
        text = "\n".join(layout_record(kind, box, (1, 1), angle) for kind, box, _, angle in regions)
        yield Record(image=path, task="layout", text=text)
    for kind, box, answer, angle in regions:
        if isinstance(answer, str) and answer.strip() and kind not in UNREAD_TYPES:
            task = TASK_OF_TYPE.get(kind, "text")
            yield Record(image=path, task=task, text=answer, box=box, angle=angle)


def _box(raw: Any) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(value) for value in raw)
    if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
        raise ValueError(f"{list(raw)} is not inside the page")
    return x0, y0, x1, y1


def _angle(region: Mapping[str, Any]) -> int:
    angle = region.get("angle", 0)
    if angle not in ROTATIONS:
        raise ValueError(f"the angle {angle!r} is none of {', '.join(map(str, ROTATIONS))}")
    return int(angle)


@dataclass(slots=True)
class FolderSource:
    """Labelled images of a folder, in random order or in the file's, again and again.

    For a ``segment`` checkpoint each line is cut into the pieces that inference cuts it into; a
    line whose word gaps cannot be counted for sure is left out and counted in the log.

    Args:
        options: Settings.
        capabilities: Of the checkpoint that is trained.
    """

    options: FolderOptions
    capabilities: Capabilities
    name: str = "folder"
    _records: list[Record] = field(init=False, repr=False)
    _places: list[tuple[int, int]] = field(init=False, repr=False)
    _found: dict[str, int] = field(init=False, repr=False, default_factory=dict)
    _num_left_out: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        folder = Path(self.options.path)
        records = read_labels(folder, layout=self.options.layout)
        self._records = [r for r in records if r.task in self.capabilities.tasks]
        if len(self._records) < len(records):
            logger.warning(
                "%s: %d of %d samples ask for tasks this checkpoint does not know",
                folder, len(records) - len(self._records), len(records),
            )  # fmt: skip
        self._places = self._find_places()
        if not self._places:
            raise ConfigError(f"{folder} has no sample that this checkpoint can be trained on")

    def _find_places(self) -> list[tuple[int, int]]:
        """Return (record, piece) of every sample."""
        unit = self.capabilities
        if unit.segment_px is None:
            return [(i, 0) for i in range(len(self._records))]
        places: list[tuple[int, int]] = []
        for i, record in enumerate(self._records):
            try:
                gray = np.asarray(load_record(record).convert("L"))
                pieces = split_line(gray, record.text, unit)
            except ImageError as error:
                logger.warning("%s is left out: %s", record.image, error)
                continue
            places.extend((i, k) for k in range(len(pieces)))
            self._num_left_out += not pieces
        if self._num_left_out:
            logger.warning(
                "%s: %d of %d lines are left out, their words cannot be told apart",
                self.options.path, self._num_left_out, len(self._records),
            )  # fmt: skip
        return places

    @property
    def fingerprint(self) -> str:
        """How much of the folder is trained on, for the log."""
        return f"{len(self._places)} samples, {self._num_left_out} lines left out"

    def __len__(self) -> int:
        return len(self._places)

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``: each sample once an epoch."""
        places = places_from(seed, index, len(self._places), shuffle=self.options.shuffle)
        return first_unbroken(places, self.load, self._image_at, self.options.path)

    def place_of(self, task: str, origin: Mapping[str, Any]) -> int | None:
        """Return where the sample of an origin stands among the others by now, for :meth:`load`.

        Args:
            task: Its task: a page's layout and its text may be labelled both.
            origin: As in :attr:`Sample.origin`, possibly read back from JSON.

        Returns:
            Its place in the order of the file; None where it is not there any more.
        """
        if not self._found:
            for at, (number, piece) in enumerate(self._places):
                record = self._records[number]
                self._found.setdefault(_key(record.task, _origin(record, piece)), at)
        return self._found.get(_key(task, origin))

    def load(self, place: int) -> Sample:
        """Return the sample at a place in the order of the file.

        Raises:
            ImageError: If its image is broken.
        """
        record, piece = self._places[place]
        return self._load_sample(self._records[record], piece)

    def _image_at(self, place: int) -> Path:
        return self._records[self._places[place][0]].image

    def _load_sample(self, record: Record, piece: int) -> Sample:
        image, unit = load_record(record), self.capabilities
        text = record.text
        if unit.segment_px is not None:
            parts = split_line(np.asarray(image.convert("L")), record.text, unit)
            cut, text = parts[piece]
            image = prepare_piece(cut, unit)
        elif record.task == "layout":
            side = self.options.layout_px
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        return Sample(
            image=image,
            text=text,
            task=record.task,
            consistency=record.consistency,
            origin=_origin(record, piece),
        )


def places_from(seed: int, index: int, size: int, *, shuffle: bool = True) -> Iterator[int]:
    """Yield the places of samples ``index``, ``index + 1``, … of a stream over ``size`` samples."""
    for at in count(index):
        epoch, place = divmod(at, size)
        yield int(epoch_order(seed, epoch, size)[place]) if shuffle else place


def first_unbroken(
    places: Iterator[int],
    load: Callable[[int], Sample],
    image_at: Callable[[int], object],
    name: object,
) -> Sample:
    """Return the first sample whose image is whole; those before it are named in the log.

    A run goes on with the next image: hours of work do not hang on one file.

    Raises:
        ImageError: If :data:`MAX_REPLACEMENTS` images in a row of ``name`` are broken.
    """
    for place in islice(places, MAX_REPLACEMENTS):
        try:
            return load(place)
        except ImageError as error:
            logger.warning("%s is replaced: %s", image_at(place), error)
    raise ImageError(f"{MAX_REPLACEMENTS} images in a row of {name} are broken")


def _origin(record: Record, piece: int) -> Mapping[str, Any]:
    return {"image": str(record.image), "box": record.box, "piece": piece}


def _key(task: str, origin: Mapping[str, Any]) -> str:
    # Through JSON a box becomes a list, and is still the same box.
    return json.dumps([task, origin.get("image"), origin.get("box"), origin.get("piece")])


def load_record(record: Record) -> Image.Image:
    """Return the upright RGB crop of a record.

    Raises:
        ImageError: If the image cannot be opened.
    """
    try:
        opened = Image.open(record.image)
    except Exception as error:  # of whatever kind: an image of too many pixels is no OSError
        raise ImageError(f"image cannot be opened: {error}") from error
    with opened:
        image = upright_rgb(opened).copy()
    # It is upright now: nobody is to turn it by its EXIF orientation once more.
    image.info.clear()
    if record.box is not None:
        x0, y0, x1, y1 = (v * s for v, s in zip(record.box, image.size * 2, strict=True))
        box = (int(x0), int(y0), max(int(x0) + 1, round(x1)), max(int(y0) + 1, round(y1)))
        image = image.crop(box)
    return image.rotate(record.angle, expand=True) if record.angle else image


def split_line(gray: Gray, text: str, capabilities: Capabilities) -> list[tuple[Piece, str]]:
    """Cut a line into pieces and its text along with them.

    The gaps between the words are the widest ink-free runs, one fewer than the text has words. Only
    where they are clearly wider than all other runs, and every cut lies in one of them, is it known
    which words a piece shows.

    Args:
        gray: Grey values of the line.
        text: Its text.
        capabilities: Unit of the checkpoint.

    Returns:
        The pieces with their texts; none where that cannot be told.
    """
    pieces, words = cut_line(gray, capabilities), text.split()
    if not pieces or not words:
        return []
    if len(pieces) == 1:
        return [(pieces[0], " ".join(words))]
    if not all(piece.after_gap for piece in pieces[1:]):
        return []
    joined = np.concatenate([piece.pixels for piece in pieces], axis=1)
    gaps = _gaps(joined, pieces[0].background)
    inner = sorted((end - start for start, end in gaps), reverse=True)
    count = len(words) - 1
    if len(inner) < count or count < 1:
        return []
    if len(inner) > count and inner[count - 1] < GAP_MARGIN * inner[count]:
        return []
    word_gaps = [gap for gap in gaps if gap[1] - gap[0] >= inner[count - 1]]
    if len(word_gaps) != count:
        return []
    parts: list[tuple[Piece, str]] = []
    first, edge = 0, 0
    for piece in pieces:
        edge += piece.pixels.shape[1]
        if piece is pieces[-1]:
            last = len(words)
        else:
            # The cut is inside a gap: so many gaps end before it, and it is in the next.
            crossed = [i for i, (start, end) in enumerate(word_gaps) if start <= edge <= end]
            if len(crossed) != 1:
                return []
            last = crossed[0] + 1
        if last <= first:
            return []
        parts.append((piece, " ".join(words[first:last])))
        first = last
    return parts


def _gaps(line: Gray, background: float) -> Sequence[tuple[int, int]]:
    """Return (start, end) of the ink-free runs between the first and the last ink."""
    ink = np.flatnonzero(ink_columns(line, background))
    if not ink.size:
        return []
    breaks = np.flatnonzero(np.diff(ink) > 1)
    return [(int(ink[i]) + 1, int(ink[i + 1])) for i in breaks]
