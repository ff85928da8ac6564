"""Parity with the recorded outputs of the public reference implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mdiff_core import DecodeConfig, DecodeRequest, Engine
from mdiff_core.imaging import to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model, tensor_map
from mdiff_core.prompts import Codec
from mdiff_core.reference import block_causal_mask, forward_dense

from .conftest import make_oracle

CASES = ("line", "small", "page")


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> Path:
    return shared_dir / "golden"


@pytest.fixture(scope="module")
def recorded(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "golden.json").read_text())["cases"]


def request_of(golden: Path, case: dict[str, Any], run: dict[str, Any]) -> DecodeRequest:
    return DecodeRequest(
        image=Image.open(golden / case["image"]),
        task=case["task"],
        config=DecodeConfig(
            block_length=run["block_length"],
            denoising_steps=run["denoising_steps"],
            threshold=run["threshold"],
            max_tokens=run["gen_length"],
            ignore_end=True,
        ),
    )


def test_full_size_names_and_shapes(golden: Path) -> None:
    recorded = json.loads((golden / "full_size_tensors.json").read_text())
    ours = {item.name: list(item.shape) for item in tensor_map(ModelConfig(), tied=False)}
    assert ours == recorded


@pytest.mark.parametrize("name", CASES)
def test_tensors(golden: Path, recorded: dict[str, Any], name: str) -> None:
    folder = golden / "checkpoint"
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, device=torch.device("cpu"), dtype=torch.float32)
    codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
    case = recorded[name]
    want = {
        key.removeprefix(f"{name}."): value
        for key, value in load_file(golden / "tensors.safetensors").items()
        if key.startswith(f"{name}.")
    }
    with Image.open(golden / case["image"]) as image:
        patches = to_patches(
            image,
            patch_size=14,
            merge_size=2,
            min_pixels=config.image.min_pixels,
            max_pixels=config.image.max_pixels,
        )
    assert [1, patches.rows, patches.cols] == want["image_grid_thw"][0].tolist()
    pixels = model.vision.normalize(torch.from_numpy(patches.pixels)).view(-1, 3, 1, 196)
    # A still image is its frame twice.
    twice = pixels.expand(-1, 3, 2, 196).reshape(-1, 1176)
    torch.testing.assert_close(twice, want["pixel_values"], atol=1e-6, rtol=0)
    assert codec.prompt_text(case["task"]) == case["prompt_text"]

    def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
        # The logits reach 18, and the recorded fp32 values are themselves 3e-4 from an fp64 run.
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)

    with torch.inference_mode():
        features = model.encode_images([patches])[0]
        ids = codec.prompt_ids(case["task"], len(features))
        assert ids == want["input_ids"][0].tolist()
        close(features, want["image_features"])
        embeds = model.embed(torch.tensor(ids), features)
        close(embeds, want["inputs_embeds"][0])
        mask = block_causal_mask(len(ids), len(ids), 32)
        close(forward_dense(model, embeds, mask)[-1], want["prefill_logits_last"][0])
        longer = ids + want["block_ids"][0].tolist()
        mask = block_causal_mask(len(longer), len(ids), 32)
        logits = forward_dense(model, model.embed(torch.tensor(longer), features), mask)
        close(logits[len(ids) :], want["block_logits"][0])


@pytest.mark.parametrize("together", [False, True])
def test_greedy_runs_of_the_engine(golden: Path, recorded: dict[str, Any], together: bool) -> None:
    engine = Engine.load(golden / "checkpoint", device="cpu", dtype="fp32", cache_bytes=2**26)
    pairs = [(request_of(golden, c, r), r) for c in recorded.values() for r in c["runs"]]
    assert len(pairs) == 24
    requests = [request for request, _ in pairs]
    with engine:
        if together:
            results = engine.generate(requests)
        else:
            results = [engine.generate([request])[0] for request in requests]
    for result, (_, run) in zip(results, pairs, strict=True):
        assert result.token_ids == run["token_ids"]
        assert result.step_map == run["step_map"]
        # Commits and the prompt ride along, so denoising is all there is.
        assert result.num_forwards == run["denoise_forwards"]


@pytest.mark.parametrize("name", CASES)
def test_greedy_runs_of_the_oracle(golden: Path, recorded: dict[str, Any], name: str) -> None:
    oracle = make_oracle(golden / "checkpoint")
    for run in recorded[name]["runs"]:
        result = oracle(request_of(golden, recorded[name], run))
        assert (result.token_ids, result.step_map) == (run["token_ids"], run["step_map"])


@pytest.fixture(scope="module")
def first_tiny(shared_dir: Path) -> Iterator[Engine]:
    """The first small checkpoint, which the recording was made with; the wheel's has moved on."""
    with Engine.load(shared_dir / "tiny", device="cpu", dtype="fp32") as engine:
        yield engine


@pytest.mark.parametrize("together", [False, True])
def test_trained_weights(golden: Path, first_tiny: Engine, together: bool) -> None:
    """41 pieces of real lines at two thresholds, with end tokens on."""
    cases = json.loads((golden / "tiny" / "runs.json").read_text())
    pairs = [(case["image"], run) for case in cases for run in case["runs"]]
    assert len(pairs) == 82
    requests = [
        DecodeRequest(
            image=Image.open(golden / "tiny" / image),
            config=DecodeConfig(threshold=run["threshold"]),
        )
        for image, run in pairs
    ]
    if together:
        results = first_tiny.generate(requests)
    else:
        results = [first_tiny.generate([request])[0] for request in requests]
    end = 258  # <|im_end|>: the recording keeps it where the reference stopped at <|endoftext|>
    for result, (_, run) in zip(results, pairs, strict=True):
        assert result.token_ids == [token for token in run["token_ids"] if token != end]
        assert result.text == run["text"]
        assert result.num_forwards <= run["denoise_forwards"]
