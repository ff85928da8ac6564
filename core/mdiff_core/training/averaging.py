"""Averages of checkpoints: several fine-tunings of one model as a single set of weights.

Runs that began from the same weights lie in one basin of the loss, and their mean is often better
than each of them, at the cost of none. Source: model soups, arXiv 2203.05482.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.engine import choose_dtype
from mdiff_core.errors import CheckpointError, ConfigError
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.training.build import BY_TOKEN, export_checkpoint
from mdiff_core.training.config import ModelSettings

__all__ = ["average_checkpoints"]


def average_checkpoints(
    parts: Sequence[tuple[str, float]], output: Path, *, dtype: str = "bf16"
) -> Path:
    """Write the weighted mean of checkpoints of one shape as a checkpoint.

    Args:
        parts: Names or folders of checkpoints, each with its weight > 0; the mean is taken in fp32.
            Tokenizer, templates and capabilities are those of the first. Others may lack some of
            its tokens: they have no say in the rows of those.
        output: Folder to write, in the released format.
        dtype: Type of the weights that are written.

    Returns:
        The folder.

    Raises:
        CheckpointError: If one cannot be read, or has other shapes, weights or tokens than the
            first.
        ConfigError: If there is none, or a weight is not above 0.
    """
    if not parts or not all(0 < weight < math.inf for _, weight in parts):
        raise ConfigError("an average takes one or more checkpoints, each with a weight above 0")
    (first, weight), cpu = parts[0], torch.device("cpu")
    folder = resolve_checkpoint(first)
    config = ModelConfig.from_folder(folder)
    tokens = _tokens(folder)
    mean = load_model(folder, config, device=cpu, dtype=torch.float32)
    values = dict(mean.named_parameters())
    for value in values.values():
        value.mul_(weight)
    total = weight
    row_totals = torch.full((config.text.vocab_size, 1), float(weight))
    for name, weight in parts[1:]:
        folder = resolve_checkpoint(name)
        other = ModelConfig.from_folder(folder)
        rows = other.text.vocab_size
        resized = replace(other.text, vocab_size=config.text.vocab_size)
        if (resized, other.vision) != (config.text, config.vision) or rows > len(row_totals):
            raise CheckpointError(f"{name} has other shapes than {first}: no average of them")
        own = _tokens(folder)
        if any(tokens.get(index, token) != token for index, token in own.items()):
            raise CheckpointError(f"{name} has other tokens than {first}: no average of them")
        # A row that only the first one's tokenizer uses was never trained here.
        has_say = [[i in own or i not in tokens] for i in range(rows)]
        share = torch.tensor(has_say, dtype=torch.float32) * weight
        added = dict(load_model(folder, other, device=cpu, dtype=torch.float32).named_parameters())
        if added.keys() != values.keys():
            names = ", ".join(sorted(added.keys() ^ values.keys()))
            raise CheckpointError(
                f"only one of {name} and {first} has {names}: no average of them",
                hint="a head that is tied to the embedding has no weights of its own",
            )
        for key, value in added.items():
            if key in BY_TOKEN:
                values[key][:rows].add_(value * share)
            else:
                values[key].add_(value, alpha=weight)
        total += weight
        row_totals[:rows] += share
    for key, value in values.items():
        value.div_(row_totals if key in BY_TOKEN else total)
    export_checkpoint(mean, output, ModelSettings(base=first), choose_dtype(dtype, cpu))
    return output


def _tokens(folder: Path) -> dict[int, str]:
    """Return the tokens of a checkpoint by id."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return {index: token for token, index in vocabulary.items()}
