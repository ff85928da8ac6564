"""The same parity for everybody: a seeded random model, computed once by the oracle and committed.

The file is made by ``tools/make_golden.py``, never by this test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mdiff_core import DecodeConfig, DecodeRequest, Engine
from mdiff_core.testing import write_random_checkpoint

from .conftest import make_oracle

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "golden_random.json").read_text()
)


def draw(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 7 + y * 3, (x * y) // 5, (x // 9 + y // 5) % 2 * 255], axis=-1) % 256
    return Image.fromarray(pixels.astype(np.uint8))


def pairs(recorded: dict[str, Any]) -> list[tuple[DecodeRequest, dict[str, Any]]]:
    return [
        (
            DecodeRequest(
                image=draw(*case["size"]),
                task=case["task"],
                config=DecodeConfig(
                    block_length=run["block_length"],
                    denoising_steps=run["denoising_steps"],
                    threshold=run["threshold"],
                    max_tokens=recorded["max_tokens"],
                    ignore_end=True,
                ),
            ),
            run,
        )
        for case in recorded["cases"].values()
        for run in case["runs"]
    ]


@pytest.mark.parametrize("name", list(GOLDEN))
def test_engine_and_oracle_give_the_recorded_runs(tmp_path: Path, name: str) -> None:
    recorded = GOLDEN[name]
    folder = write_random_checkpoint(tmp_path / "checkpoint", **recorded["checkpoint"])
    requests = pairs(recorded)
    assert len(requests) == 24
    oracle = make_oracle(folder)
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=2**24) as engine:
        together = engine.generate([request for request, _ in requests])
        for (request, run), batched in zip(requests, together, strict=True):
            alone = engine.generate([request])[0]
            want = (run["token_ids"], run["step_map"])
            assert (batched.token_ids, batched.step_map) == want
            assert (alone.token_ids, alone.step_map) == want
    for case, result in zip(recorded["cases"].values(), together[::8], strict=True):
        assert result.num_prompt_tokens == case["prompt_length"]
    # The oracle made the file; one run a case shows that it still gives it.
    for request, run in requests[6::8]:
        result = oracle(request)
        assert (result.token_ids, result.step_map) == (run["token_ids"], run["step_map"])


def test_the_runs_are_worth_comparing() -> None:
    """A degenerate recording (one token, one step) would pass anything."""
    for recorded in GOLDEN.values():
        runs = [run for case in recorded["cases"].values() for run in case["runs"]]
        assert len({tuple(run["token_ids"]) for run in runs}) > 12
        assert len({len(set(run["step_map"])) for run in runs}) >= 4
