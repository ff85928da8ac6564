"""Checkpoint folders: what is wrong with one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdiff_core import Engine
from mdiff_core.errors import CheckpointError
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model, named_tensors, save_weights
from mdiff_core.testing import write_random_checkpoint

CPU = torch.device("cpu")
LAYER = "language_model.model.layers.1"


def load(folder: Path) -> None:
    load_model(folder, ModelConfig.from_folder(folder), device=CPU, dtype=torch.float32)


def test_every_missing_extra_and_misshapen_tensor_is_named(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "c")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{LAYER}.mlp.up_proj.weight"]
    tensors["surprise"] = torch.zeros(2)
    tensors[f"{LAYER}.self_attn.k_norm.weight"] = torch.zeros(7)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    text = str(caught.value)
    assert "3 problems" in text
    assert f"missing {LAYER}.mlp.up_proj.weight (96, 48)" in text
    assert "unexpected surprise (2,)" in text
    assert f"{LAYER}.self_attn.k_norm.weight is (7,), expected (16,)" in text


def test_no_weights_and_missing_shards(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "c", num_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 weight files are missing.*00002"):
        load(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="no weights in"):
        load(folder)


def test_a_pointer_file_is_recognised(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "c")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="git-lfs pointer"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tied", [False, True])
def test_saving_gives_the_released_format_back(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    folder = write_random_checkpoint(tmp_path / "c", dtype=dtype, tied=tied)
    before = load_file(folder / "model.safetensors")
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, device=CPU, dtype=dtype)
    save_weights(model, folder, dtype)
    after = load_file(folder / "model.safetensors")
    assert before.keys() == after.keys() == dict(named_tensors(model)).keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("name", "message"),
    [("tokenizer.json", "tokenizer.json is missing"), ("chat_template.jinja", None)],
)
def test_tokenizer_files(tmp_path: Path, name: str, message: str | None) -> None:
    folder = write_random_checkpoint(tmp_path / "c")
    (folder / name).unlink()
    if message is None:
        # The template stands in tokenizer_config.json too.
        Engine.load(folder, dtype="fp32", cache_bytes=2**20).close()
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({"tokenizer_class": "Qwen2TokenizerFast"}))
        message = "no chat template"
    with pytest.raises(CheckpointError, match=message):
        Engine.load(folder, dtype="fp32", cache_bytes=2**20)


def test_an_index_without_files_and_templates_without_text(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "shards", num_shards=2)
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, 1)}))
    with pytest.raises(CheckpointError, match="no weight_map"):
        Engine.load(folder, dtype="fp32", cache_bytes=2**20)
    folder = write_random_checkpoint(tmp_path / "template")
    (folder / "chat_template.jinja").write_bytes("é".encode("latin-1"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        Engine.load(folder, dtype="fp32", cache_bytes=2**20)
    (folder / "chat_template.jinja").unlink()
    named = {"chat_template": [{"name": "default"}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(CheckpointError, match="no default chat template"):
        Engine.load(folder, dtype="fp32", cache_bytes=2**20)
