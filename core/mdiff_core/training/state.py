"""Files of a run: its states, written so that no kill leaves a broken one, and its log."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mdiff_core.errors import TrainingError
from mdiff_core.training.config import TrainConfig

logger = logging.getLogger(__name__)

_STATE = re.compile(r"state-(\d{8})\.pt")
LOG_NAME = "log.jsonl"
_EXACT_TABLES = ("model", "objective", "optim", "lora", "data")
_EXACT_RUN = ("steps", "seed", "batch_size", "micro_batch", "dtype")


def save_state(folder: Path, step: int, state: Mapping[str, Any], keep: int) -> Path:
    """Write a state whole or not at all, then remove old ones.

    Args:
        folder: Folder of the states; made where it is missing.
        step: Steps taken.
        state: Tensors and plain values.
        keep: States that stay, this one included.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"state-{step:08d}.pt"
    write_atomically(path, lambda stream: torch.save(dict(state), stream))
    for old in state_files(folder)[:-keep]:
        old.unlink()
    return path


def write_atomically(path: Path, write: Any) -> None:
    """Call ``write(stream)`` on a temporary file, put it on disk, and give it its name."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        # A part of a file is of no use to anybody, least of all on a full disk.
        temporary.unlink(missing_ok=True)
        raise


def state_files(folder: Path) -> list[Path]:
    """Return the states in a folder, oldest first."""
    return sorted(p for p in folder.glob("state-*.pt") if _STATE.fullmatch(p.name))


def load_state(folder: Path) -> dict[str, Any] | None:
    """Return the newest state that can be read; None where there is none.

    Raises:
        TrainingError: If there are states and none can be read.
    """
    files = state_files(folder)
    for path in reversed(files):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            logger.warning("state %s cannot be read, trying an older one: %s", path, error)
            continue
        return state
    if files:
        raise TrainingError(
            f"none of the {len(files)} states in {folder} can be read",
            hint="start over with --fresh",
        )
    return None


def exact_settings(config: TrainConfig) -> str:
    """Return what must not change between the parts of a run, as JSON."""
    plain = config.to_dict()
    kept: dict[str, Any] = {table: plain[table] for table in _EXACT_TABLES}
    kept["run"] = {name: plain["run"][name] for name in _EXACT_RUN}
    return json.dumps(kept, sort_keys=True, default=str)


def differences(saved: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Return which settings of a saved run differ from those of ``config``, each as a text."""
    current = json.loads(exact_settings(config))
    found = []
    for table, values in current.items():
        if isinstance(values, list):
            if values != saved[table]:
                found.append(f"[[{table}]]")
            continue
        for name, value in values.items():
            if saved[table].get(name) != value:
                found.append(f"{table}.{name} = {saved[table].get(name)!r}, now {value!r}")
    return found


class Journal:
    """The log of a run: one JSON object a line, ``event`` says what it is.

    Args:
        path: The file.
        resume_at: Steps taken so far; lines of later steps, from before a kill, are dropped. None
            starts a new log.
    """

    def __init__(self, path: Path, resume_at: int | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if resume_at is not None and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    # The kill came in the middle of a line, perhaps of a character.
                    continue
                if record.get("step", 0) <= resume_at:
                    kept.append(line + "\n")
        write_atomically(path, lambda stream: stream.write("".join(kept).encode()))
        self._stream = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; a number that is not finite becomes null, for JSON has none."""
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self._stream.write(json.dumps(values, ensure_ascii=False) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read_log(path: Path, event: str = "step") -> list[dict[str, Any]]:
    """Return the records of one kind from a log."""
    lines = path.read_text(encoding="utf-8").split("\n")
    records = [json.loads(line) for line in lines if line]
    return [record for record in records if record["event"] == event]
