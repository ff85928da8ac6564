"""Averages of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from mdiff_adapters.cli import app
from mdiff_core import Engine
from mdiff_core.errors import CheckpointError, ConfigError
from mdiff_core.testing import write_random_checkpoint
from mdiff_core.training import add_characters, average_checkpoints


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_random_checkpoint(tmp_path / "a", seed=1),
        write_random_checkpoint(tmp_path / "b", seed=2),
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def test_every_weight_is_the_weighted_mean(parts: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = parts
    arguments = ["average", f"{one}=0.5", f"{other}=1.5", "-o", str(tmp_path / "mean")]
    result = CliRunner().invoke(app, [*arguments, "--dtype", "fp32"])
    assert result.exit_code == 0, result.output
    a, b, mean = weights(one), weights(other), weights(tmp_path / "mean")
    assert set(mean) == set(a)
    for name, value in mean.items():
        torch.testing.assert_close(value, 0.25 * a[name].float() + 0.75 * b[name].float())
    assert any((a[name] != b[name]).any() for name in a)
    with Engine.load(tmp_path / "mean", device="cpu", dtype="fp32") as engine:
        assert engine.capabilities.tasks


def test_one_part_is_written_as_it_was(parts: tuple[Path, Path], tmp_path: Path) -> None:
    average_checkpoints([(str(parts[0]), 3.0)], tmp_path / "same", dtype="fp32")
    for name, value in weights(tmp_path / "same").items():
        torch.testing.assert_close(value, weights(parts[0])[name].float())


def test_written_weights_are_as_readable_as_other_files(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    average_checkpoints([(str(parts[0]), 1.0)], tmp_path / "same")
    modes = {file.stat().st_mode for file in (tmp_path / "same").iterdir()}
    (tmp_path / "other").touch()
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_what_cannot_be_averaged_is_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "mean"
    with pytest.raises(CheckpointError, match="tiny has other shapes than"):
        average_checkpoints([(str(parts[0]), 1), ("tiny", 1)], out)
    for bad in ([], [(str(parts[0]), 0.0)], [(str(parts[0]), float("nan"))],
                [(str(parts[0]), float("inf"))]):  # fmt: skip
        with pytest.raises(ConfigError, match="weight above 0"):
            average_checkpoints(bad, out)
    result = CliRunner().invoke(app, ["average", f"{parts[0]}=much", "-o", str(out)])
    assert result.exit_code == 2
    assert "'much' is no weight" in result.stderr
    assert not out.exists()


def test_a_part_has_no_say_in_tokens_it_lacks(parts: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = parts
    more = add_characters(
        str(one), "ạ漢" + "".join(map(chr, range(0x4E00, 0x4E40))), tmp_path / "m"
    )
    tokenizer = Tokenizer.from_file(str(more / "tokenizer.json"))
    average_checkpoints([(str(more), 1.0), (str(other), 3.0)], tmp_path / "mean", dtype="fp32")
    a, b, mean = weights(more), weights(other), weights(tmp_path / "mean")
    known = max(Tokenizer.from_file(str(other / "tokenizer.json")).get_vocab().values()) + 1
    newest = tokenizer.get_vocab_size(with_added_tokens=True)
    assert newest > known
    for name, value in mean.items():
        both = 0.25 * a[name][:known].float() + 0.75 * b[name][:known].float()
        torch.testing.assert_close(value[:known], both)
        if len(a[name]) > len(b[name]):
            torch.testing.assert_close(value[known:newest], a[name][known:newest].float())
    with pytest.raises(CheckpointError, match="other shapes"):
        average_checkpoints([(str(other), 1.0), (str(more), 1.0)], tmp_path / "not")
    apart = add_characters(
        str(one), "漢ạ" + "".join(map(chr, range(0x4E00, 0x4E40))), tmp_path / "a"
    )
    with pytest.raises(CheckpointError, match="other tokens"):
        average_checkpoints([(str(more), 1.0), (str(apart), 1.0)], tmp_path / "not")


@pytest.mark.parametrize("order", [1, -1])
def test_a_tied_and_an_untied_checkpoint_have_no_average(tmp_path: Path, order: int) -> None:
    parts = [
        (str(write_random_checkpoint(tmp_path / name, tied=name == "tied")), 1.0)
        for name in ("tied", "untied")
    ]
    with pytest.raises(CheckpointError, match=r"only one of .* has decoder.lm_head.weight"):
        average_checkpoints(parts[::order], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
