"""Training of MinerU-Diffusion checkpoints; needs the extra ``mdiff-core[train]``.

What belongs here: the masked objective, the synthetic documents, the loop with exact resume, and
the hard-sample curriculum. ``docs/training.md`` tells how to use it. Importing this package loads
no torch; the first use of a name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mdiff_core.training.config import TrainConfig, load_config

if TYPE_CHECKING:
    from mdiff_core.training.averaging import average_checkpoints
    from mdiff_core.training.curriculum import consistency, mine
    from mdiff_core.training.trainer import Trainer, train
    from mdiff_core.training.vocabulary import add_characters

__all__ = [
    "TrainConfig",
    "Trainer",
    "add_characters",
    "average_checkpoints",
    "consistency",
    "load_config",
    "mine",
    "train",
]

_HOMES = {
    "Trainer": "trainer",
    "train": "trainer",
    "add_characters": "vocabulary",
    "average_checkpoints": "averaging",
    "consistency": "curriculum",
    "mine": "curriculum",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
