"""Files of a run."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from mdiff_core.training.state import Journal, read_log, save_state, write_atomically


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, 1, {"step": 1}, keep=2)

    def full(state: Any, stream: Any) -> None:
        stream.write(b"half of a state")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mdiff_core.training.state.torch.save", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(tmp_path, 2, {"step": 2}, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["state-00000001.pt"]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", full)


def test_the_log_is_json_where_a_number_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    journal = Journal(path, None)
    journal.write({"event": "step", "grad_norm": float("inf"), "loss": float("nan"), "lr": 0.1})
    journal.close()
    text = path.read_text(encoding="utf-8")
    assert text == '{"event": "step", "grad_norm": null, "loss": null, "lr": 0.1}\n'


def test_the_log_keeps_what_is_in_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    texts = ["a\u2028b", "c\u0085d", "é"]
    journal = Journal(path, None)
    for step, text in enumerate(texts):
        journal.write({"event": "step", "step": step, "text": text})
    journal.close()
    assert [record["text"] for record in read_log(path)] == texts
    Journal(path, 10).close()
    assert [record["text"] for record in read_log(path)] == texts
    # A kill in the middle of a character.
    path.write_bytes(path.read_bytes()[:-4])
    Journal(path, 10).close()
    assert [record["text"] for record in read_log(path)] == texts[:2]
