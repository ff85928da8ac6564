"""Small runs on drawn lines, with a font and a text that are the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mdiff_core.config import Capabilities
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.prompts import Codec
from mdiff_core.testing import write_random_checkpoint
from mdiff_core.training.config import TrainConfig

SEGMENT = Capabilities(tasks=("text",), text_unit="segment", segment_px=(896, 28), stretch=2.4)
REGION = Capabilities()
WORDS = (
    "The reader finds a block of tokens at once and confirms those it is sure of. "
    "What remains unclear waits for the next step, in which more is known. "
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of drawn data that depend on nothing of the machine."""
    folder = tmp_path_factory.mktemp("drawing")
    (folder / "fonts").mkdir()
    (folder / "corpus.txt").write_text("\n\n".join([WORDS] * 8))
    return {"corpus": [str(folder / "corpus.txt")], "fonts": [str(folder / "fonts")]}


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("random") / "checkpoint", seed=4)


Loaded = tuple[MinerUDiffusion, Codec, ModelConfig]


@pytest.fixture
def random_model(random_folder: Path) -> Loaded:
    config = ModelConfig.from_folder(random_folder)
    model = load_model(random_folder, config, device=torch.device("cpu"), dtype=torch.float32)
    return model, Codec.from_folder(random_folder, image_token_id=config.image_token_id), config


MakeConfig = Callable[..., TrainConfig]

SMALL_MODEL = {
    "base": "tiny",
    "init": "scratch",
    "text": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
    "vision": {"depth": 1, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2},
    # A short canvas and short blocks: a step takes a hundredth of a second.
    "mdiff": {"segment_px": [224, 28]},
}


@pytest.fixture
def make_config(tmp_path: Path, drawing: dict[str, Any]) -> MakeConfig:
    """Return ``make(name, run={...}, objective={...}, ...)``: a small run in its own folder."""

    def make(name: str = "run", **tables: Any) -> TrainConfig:
        run = {
            "out": str(tmp_path / name),
            "steps": 20,
            "batch_size": 2,
            "micro_batch": 2,
            "workers": 0,
            "device": "cpu",
            "dtype": "fp32",
            "log_every": 1,
            "save_every": 5,
            "seed": 7,
            **tables.pop("run", {}),
        }
        raw = {
            "run": run,
            "model": SMALL_MODEL,
            "optim": {"warmup_steps": 4},
            "objective": {
                "block_length": 8,
                "image_answer": [0.5, 0.1],
                "guide": [0.5, 0.1],
                "guide_heads": [[0, 0], [1, 1]],
            },
            "data": [{"kind": "lines", "max_chars": 40, **drawing}],
            **tables,
        }
        return TrainConfig.from_dict(raw)

    return make
