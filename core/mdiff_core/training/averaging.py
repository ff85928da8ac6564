"""Averages of checkpoints: several fine-tunings of one model as a single set of weights.

Runs that began from the same weights lie in one basin of the loss, and their mean is often better
than each of them, at the cost of none. Source: model soups, arXiv 2203.05482.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.engine import choose_dtype
from mdiff_core.errors import CheckpointError, ConfigError
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.training.build import export_checkpoint
from mdiff_core.training.config import ModelSettings

__all__ = ["average_checkpoints"]


def average_checkpoints(
    parts: Sequence[tuple[str, float]], output: Path, *, dtype: str = "bf16"
) -> Path:
    """Write the weighted mean of checkpoints of one shape as a checkpoint.

    Args:
        parts: Names or folders of checkpoints, each with its weight > 0; the mean is taken in fp32.
            Tokenizer, templates and capabilities are those of the first.
        output: Folder to write, in the released format.
        dtype: Type of the weights that are written.

    Returns:
        The folder.

    Raises:
        CheckpointError: If one cannot be read, or has other shapes than the first.
        ConfigError: If there is none, or a weight is not above 0.
    """
    if not parts or not all(0 < weight < math.inf for _, weight in parts):
        raise ConfigError("an average takes one or more checkpoints, each with a weight above 0")
    total = sum(weight for _, weight in parts)
    (first, weight), cpu = parts[0], torch.device("cpu")
    folder = resolve_checkpoint(first)
    config = ModelConfig.from_folder(folder)
    mean = load_model(folder, config, device=cpu, dtype=torch.float32)
    values = dict(mean.named_parameters())
    for value in values.values():
        value.mul_(weight / total)
    for name, weight in parts[1:]:
        folder = resolve_checkpoint(name)
        other = ModelConfig.from_folder(folder)
        if (other.text, other.vision) != (config.text, config.vision):
            raise CheckpointError(f"{name} has other shapes than {first}: no average of them")
        model = load_model(folder, other, device=cpu, dtype=torch.float32)
        for key, value in model.named_parameters():
            values[key].add_(value, alpha=weight / total)
    export_checkpoint(mean, output, ModelSettings(base=first), choose_dtype(dtype, cpu))
    return output
