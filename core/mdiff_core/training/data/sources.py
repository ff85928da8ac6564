"""From the settings of ``[[data]]`` to sources and their stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdiff_core.config import Capabilities, strict_from_dict, suggest
from mdiff_core.errors import ConfigError
from mdiff_core.training.config import SourceConfig, check_types
from mdiff_core.training.data.folder import (
    FolderOptions,
    FolderSource,
    first_unbroken,
    places_from,
)
from mdiff_core.training.data.jsonl import read_json_lines
from mdiff_core.training.data.lines import LineOptions, LineSource
from mdiff_core.training.data.pages import PageOptions, PageSource
from mdiff_core.training.data.regions import RegionOptions, RegionSource
from mdiff_core.training.data.sample import Sample, SampleSource
from mdiff_core.training.data.stream import SampleStream

KINDS = ("lines", "paragraphs", "tables", "formulas", "pages", "folder", "mined")


def build_source(kind: str, options: Mapping[str, Any], capabilities: Capabilities) -> SampleSource:
    """Build one source.

    Args:
        kind: One of :data:`KINDS`.
        options: Its settings.
        capabilities: Of the checkpoint that is trained.

    Returns:
        The source.

    Raises:
        ConfigError: If the kind or a setting is unknown, or the checkpoint cannot be asked it.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of data {kind!r}", hint=suggest(kind, KINDS))
    if capabilities.segment_px is not None and kind in (
        "paragraphs",
        "tables",
        "formulas",
        "pages",
    ):
        raise ConfigError(
            f"data of kind {kind} do not fit a checkpoint of unit segment",
            hint='train on lines, or set text_unit = "region" in [model.mdiff]',
        )
    if kind == "lines":
        return LineSource(strict_from_dict(LineOptions, options), capabilities)
    if kind == "pages":
        return PageSource(strict_from_dict(PageOptions, options))
    if kind == "folder":
        return FolderSource(_required(FolderOptions, options), capabilities)
    if kind == "mined":
        return MinedSource(_required(MinedOptions, options), capabilities)
    return RegionSource(kind, strict_from_dict(RegionOptions, options))


def _required(kind: Any, options: Mapping[str, Any]) -> Any:
    try:
        return strict_from_dict(kind, options)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__}: {error}", hint="a path is needed") from error


def build_stream(
    sources: Sequence[SourceConfig], capabilities: Capabilities, *, seed: int, group: int = 1
) -> SampleStream:
    """Build the stream of several sources; see :class:`SampleStream`."""
    return SampleStream(
        [build_source(s.kind, s.options, capabilities) for s in sources],
        [s.weight for s in sources],
        seed=seed,
        group=group,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedOptions:
    """Settings of mined samples.

    Attributes:
        path: The file that :func:`mdiff_core.training.curriculum.mine` wrote.
    """

    path: str

    def __post_init__(self) -> None:
        check_types("data", self)


class MinedSource:
    """The hard samples of the curriculum, in random order, each once an epoch.

    A drawn sample is drawn again from its seed and index; one of a folder is found again by its
    image, box and piece, since the folder may have other records by now. Its text is that of the
    file, which a person may have edited (``reviewed``).

    Args:
        options: Settings.
        capabilities: Of the checkpoint that is trained.
    """

    name = "mined"

    def __init__(self, options: MinedOptions, capabilities: Capabilities) -> None:
        path = Path(options.path)
        self._path, records = path, read_json_lines(path)
        self._records: list[dict[str, Any]] = []
        for where, record in records:
            if record.get("status") in ("truth", "reviewed"):
                _check_record(where, record)
                self._records.append(record)
        if not self._records:
            raise ConfigError(
                f"{path} has no labelled sample ({len(records)} records)",
                hint='set "status" of the records you have checked to "reviewed"',
            )
        self._sources: dict[str, SampleSource] = {}
        for record in self._records:
            source = record["source"]
            key = json.dumps(source, sort_keys=True)
            record["key"] = key
            if key not in self._sources:
                self._sources[key] = build_source(source["kind"], source["options"], capabilities)
            found = self._sources[key]
            if isinstance(found, FolderSource):
                record["place"] = found.place_of(record["task"], record["origin"])
                if record["place"] is None:
                    raise ConfigError(
                        f"{path} has a text for {record['origin']}, of which "
                        f"{found.options.path} gives no sample any more",
                        hint="mine again, or remove the record",
                    )

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, seed: int, index: int) -> Sample:
        """Return sample ``index`` of the stream of ``seed``."""
        # As in a folder, but here the text goes with the image: another one takes both.
        return first_unbroken(
            places_from(seed, index, len(self._records)),
            self._load,
            lambda at: self._records[at]["origin"].get("image"),
            self._path,
        )

    def _load(self, at: int) -> Sample:
        record = self._records[at]
        source = self._sources[record["key"]]
        if isinstance(source, FolderSource):
            drawn = source.load(record["place"])
        else:
            drawn = source.sample(record["seed"], record["index"])
        said, found = record["text"], drawn.text
        if record["status"] == "reviewed":
            # The text is a person's, so that only its origin tells whether the picture is the same.
            said, found = record["origin"], _as_json(drawn.origin)
        if said != found:
            raise ConfigError(
                f"a mined sample says {said!r}, and {found!r} is drawn for it here",
                hint="mine again: data are others with other fonts, texts, labels or versions",
            )
        return Sample(
            image=drawn.image,
            text=record["text"],
            task=drawn.task,
            # Positions hold for the truth only, not for a text somebody changed.
            boxes=drawn.boxes if record["text"] == drawn.text else None,
            consistency=record["consistency"],
            origin=drawn.origin,
        )


_TYPES: Mapping[str, Any] = {
    "task": str, "text": str, "source": dict, "seed": int, "index": int, "origin": dict,
    "consistency": int | float,
}  # fmt: skip


def _check_record(where: str, record: Mapping[str, Any]) -> None:
    for name, kind in _TYPES.items():
        if not isinstance(record.get(name), kind):
            raise ConfigError(
                f"{where}: {name} = {record.get(name)!r} is not what mining writes",
                hint="edit text and status only",
            )
    if not {"kind", "options"} <= set(record["source"]):
        raise ConfigError(f"{where}: the source has no kind and options")


def _as_json(origin: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(origin), default=str))
