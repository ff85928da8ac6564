"""Small random models and an oracle call for the core's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mdiff_core import DecodeRequest, DecodeResult, Engine
from mdiff_core.imaging import to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.prompts import Codec
from mdiff_core.reference import decode_reference
from mdiff_core.testing import write_random_checkpoint

Oracle = Callable[..., DecodeResult]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """With small products on a busy machine, threads that wait for each other cost most."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded random checkpoint with small shapes."""
    return write_random_checkpoint(tmp_path_factory.mktemp("random") / "checkpoint", seed=1)


@pytest.fixture(scope="session")
def random_engine(random_checkpoint: Path) -> Engine:
    """An engine on the random checkpoint, fp32."""
    return Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**24)


@pytest.fixture(scope="session")
def tiny_engine() -> Engine:
    """The embedded checkpoint, fp32."""
    return Engine.load("tiny", device="cpu", dtype="fp32", cache_bytes=2**27)


def make_oracle(folder: Path) -> Oracle:
    """Return ``oracle(request, end_ids=None) -> DecodeResult`` for a checkpoint folder."""
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, device=torch.device("cpu"), dtype=torch.float32)
    codec = Codec.from_folder(folder, image_token_id=config.image_token_id)

    def oracle(request: DecodeRequest, end_ids: tuple[int, ...] | None = None) -> DecodeResult:
        patches = to_patches(
            request.image,
            patch_size=config.vision.patch_size,
            merge_size=config.vision.spatial_merge_size,
            min_pixels=config.image.min_pixels,
            max_pixels=config.image.max_pixels,
        )
        with torch.inference_mode():
            features = model.encode_images([patches])[0]
        return decode_reference(
            model,
            codec.prompt_ids(request.task, len(features)),
            features,
            request.config,
            max_tokens=request.config.max_tokens or config.capabilities.limit(request.task),
            end_ids=codec.end_ids if end_ids is None else end_ids,
        )

    return oracle


@pytest.fixture(scope="session")
def random_oracle(random_checkpoint: Path) -> Oracle:
    """The plain decoder on the random checkpoint."""
    return make_oracle(random_checkpoint)
