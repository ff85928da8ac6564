"""Compute tests/data/golden_random.json: greedy runs of the oracle on a seeded random model.

Run from the repository root after a deliberate change of the algorithm, and say why in the commit:
``python tools/make_golden.py``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mdiff_core import DecodeConfig
from mdiff_core.imaging import to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.prompts import Codec
from mdiff_core.reference import decode_reference
from mdiff_core.testing import write_random_checkpoint

TARGET = Path(__file__).parent.parent / "tests" / "data" / "golden_random.json"
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "plain": {"seed": 11, "gain": 3.0, "text": {"vocab_size": 320}},
    "sharded_tied_ungrouped": {
        "seed": 12, "gain": 2.5, "num_shards": 3, "tied": True, "projector": "pm2x",
        "old_spelling": True,
        "text": {"num_key_value_heads": 4, "vocab_size": 320},
    },
}  # fmt: skip
IMAGES = {"line": (224, 28, "text"), "small": (61, 29, "formula"), "page": (168, 112, "layout")}
RUNS = [
    (32, 32, 0.95), (32, 32, 0.5), (32, 6, 0.95), (32, 32, 0.0), (32, 1, 0.95), (32, 32, 1.0),
    (8, 8, 0.6), (4, 4, 0.5),
]  # fmt: skip
NUM_TOKENS = 64


def draw(width: int, height: int) -> Image.Image:
    """Return a picture that any machine computes alike: integer ramps and bars."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 7 + y * 3, (x * y) // 5, (x // 9 + y // 5) % 2 * 255], axis=-1) % 256
    return Image.fromarray(pixels.astype(np.uint8))


def compute(name: str, folder: Path) -> dict[str, Any]:
    """Return all runs of one checkpoint."""
    write_random_checkpoint(folder, **CHECKPOINTS[name])
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, device=torch.device("cpu"), dtype=torch.float32)
    codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
    cases = {}
    for case, (width, height, task) in IMAGES.items():
        patches = to_patches(
            draw(width, height),
            patch_size=14,
            merge_size=2,
            min_pixels=config.image.min_pixels,
            max_pixels=config.image.max_pixels,
        )
        with torch.inference_mode():
            features = model.encode_images([patches])[0]
            ids = codec.prompt_ids(task, len(features))  # type: ignore[arg-type]
        runs = []
        for block_length, steps, threshold in RUNS:
            settings = DecodeConfig(
                block_length=block_length,
                denoising_steps=steps,
                threshold=threshold,
                ignore_end=True,
            )
            result = decode_reference(
                model, ids, features, settings, max_tokens=NUM_TOKENS, end_ids=()
            )
            runs.append(
                {
                    "block_length": block_length,
                    "denoising_steps": steps,
                    "threshold": threshold,
                    "token_ids": result.token_ids,
                    "step_map": result.step_map,
                }
            )
        cases[case] = {
            "task": task,
            "size": [width, height],
            "prompt_length": len(ids),
            "runs": runs,
        }
    return {"checkpoint": CHECKPOINTS[name], "max_tokens": NUM_TOKENS, "cases": cases}


def main() -> None:
    """Write the file."""
    golden = {}
    for name in CHECKPOINTS:
        with tempfile.TemporaryDirectory() as folder:
            golden[name] = compute(name, Path(folder))
    TARGET.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
