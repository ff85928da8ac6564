"""Checkpoint folder to modules: every missing, extra or misshapen tensor is named in the error.

Reads a single ``model.safetensors`` or shards with their index, tied or untied heads, and any
floating type. Also writes that format, for training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mdiff_core.errors import CheckpointError
from mdiff_core.models.config import ModelConfig, read_json
from mdiff_core.models.mineru import MinerUDiffusion

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Slice:
    """One tensor of the checkpoint and the rows of our parameter that it fills."""

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int


def tensor_map(config: ModelConfig, *, tied: bool) -> list[Slice]:
    """Return every tensor of a checkpoint of these shapes, and where it goes.

    Args:
        config: Shapes.
        tied: Whether there is no ``lm_head.weight``.

    Returns:
        One entry a tensor. Our fused parameters (query/key/value, gate/up) take several tensors,
        stacked along their first dimension.
    """
    text, vision = config.text, config.vision
    hidden, head = text.hidden_size, text.head_dim
    q_size, kv_size = text.num_attention_heads * head, text.num_key_value_heads * head
    mlp, dim = text.intermediate_size, vision.embed_dim
    vision_mlp, window = int(dim * vision.mlp_ratio), vision.spatial_merge_size**2 * dim
    slices: list[Slice] = []

    def add(parameter: str, *tensors: tuple[str, tuple[int, ...]]) -> None:
        start = 0
        for name, shape in tensors:
            slices.append(Slice(name, shape, parameter, start))
            start += shape[0]

    def linear(parameter: str, name: str, out: int, inside: int, *, bias: bool) -> None:
        add(f"{parameter}.weight", (f"{name}.weight", (out, inside)))
        if bias:
            add(f"{parameter}.bias", (f"{name}.bias", (out,)))

    def layer_norm(parameter: str, name: str, size: int) -> None:
        for part in ("weight", "bias"):
            add(f"{parameter}.{part}", (f"{name}.{part}", (size,)))

    size = vision.patch_size
    add(
        "vision.patch_weight",
        (
            "vision_model.patch_embed.proj.weight",
            (dim, vision.in_channels, vision.temporal_patch_size, size, size),
        ),
    )
    for i in range(vision.depth):
        ours, theirs = f"vision.blocks.{i}", f"vision_model.blocks.{i}"
        layer_norm(f"{ours}.norm1", f"{theirs}.norm1", dim)
        linear(f"{ours}.qkv", f"{theirs}.attn.qkv", 3 * dim, dim, bias=True)
        linear(f"{ours}.proj", f"{theirs}.attn.proj", dim, dim, bias=True)
        layer_norm(f"{ours}.norm2", f"{theirs}.norm2", dim)
        linear(f"{ours}.fc1", f"{theirs}.mlp.fc1", vision_mlp, dim, bias=True)
        linear(f"{ours}.fc2", f"{theirs}.mlp.fc2", dim, vision_mlp, bias=True)
    projection = "vision_abstractor.projection"
    layer_norm("projector.ln_q", f"{projection}.ln_q", dim)
    linear("projector.fc1", f"{projection}.mlp.0", window, window, bias=True)
    linear("projector.fc2", f"{projection}.mlp.2", hidden, window, bias=True)

    model = "language_model.model"
    add(
        "decoder.embed_tokens.weight",
        (f"{model}.embed_tokens.weight", (text.vocab_size, hidden)),
    )
    for i in range(text.num_hidden_layers):
        ours, theirs = f"decoder.layers.{i}", f"{model}.layers.{i}"
        attn, ffn = f"{theirs}.self_attn", f"{theirs}.mlp"
        add(f"{ours}.input_norm.weight", (f"{theirs}.input_layernorm.weight", (hidden,)))
        add(
            f"{ours}.qkv.weight",
            (f"{attn}.q_proj.weight", (q_size, hidden)),
            (f"{attn}.k_proj.weight", (kv_size, hidden)),
            (f"{attn}.v_proj.weight", (kv_size, hidden)),
        )
        add(f"{ours}.q_norm.weight", (f"{attn}.q_norm.weight", (head,)))
        add(f"{ours}.k_norm.weight", (f"{attn}.k_norm.weight", (head,)))
        linear(f"{ours}.o_proj", f"{attn}.o_proj", hidden, q_size, bias=False)
        add(f"{ours}.post_norm.weight", (f"{theirs}.post_attention_layernorm.weight", (hidden,)))
        add(
            f"{ours}.gate_up.weight",
            (f"{ffn}.gate_proj.weight", (mlp, hidden)),
            (f"{ffn}.up_proj.weight", (mlp, hidden)),
        )
        linear(f"{ours}.down_proj", f"{ffn}.down_proj", hidden, mlp, bias=False)
    add("decoder.norm.weight", (f"{model}.norm.weight", (hidden,)))
    if not tied:
        add("decoder.lm_head.weight", ("language_model.lm_head.weight", (text.vocab_size, hidden)))
    return slices


def load_model(
    folder: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype
) -> MinerUDiffusion:
    """Build the network and fill it from a checkpoint folder.

    Args:
        folder: Checkpoint folder.
        config: Its configuration.
        device: Where the weights go.
        dtype: Type the weights are converted to.

    Returns:
        The network in evaluation mode, without gradients.

    Raises:
        CheckpointError: If weights are missing, superfluous or of another shape; all are named.
    """
    with ExitStack() as stack:
        tensors = _open(folder, stack)
        # A checkpoint without a head shares the embedding, whatever its configuration says.
        tied = "language_model.lm_head.weight" not in tensors or config.tie_word_embeddings
        slices = tensor_map(config, tied=tied)
        _check(folder, slices, tensors, tied=tied)
        with torch.device("meta"):
            model = MinerUDiffusion(config, tied=tied)
        model.to_empty(device=device)
        if tied:
            model.decoder.lm_head.weight = model.decoder.embed_tokens.weight
        model.to(dtype)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for item in slices:
                value = tensors[item.name].get_tensor(item.name)
                target = parameters[item.parameter]
                target[item.start : item.start + item.shape[0]].copy_(value)
    return model.eval().requires_grad_(False)


def named_tensors(model: MinerUDiffusion) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under the names of the released format."""
    tied = model.decoder.lm_head.weight is model.decoder.embed_tokens.weight
    parameters = dict(model.named_parameters())
    for item in tensor_map(model.config, tied=tied):
        stop = item.start + item.shape[0]
        yield item.name, parameters[item.parameter][item.start : stop].detach()


def save_weights(model: MinerUDiffusion, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``model.safetensors`` in the released format."""
    tensors = {name: value.to("cpu", dtype).contiguous() for name, value in named_tensors(model)}
    write_tensors(tensors, folder / SINGLE)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file that others may read as they may any new file."""
    path.touch()
    mode = path.stat().st_mode
    # It is written as a private temporary file, and takes the place of the other.
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Return the open file that holds each tensor, by tensor name."""
    if (folder / INDEX).exists():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or {type(v) for v in weight_map.values()} != {str}:
            raise CheckpointError(f"{folder / INDEX} has no weight_map from tensors to files")
        files = sorted(set(weight_map.values()))
    elif (folder / SINGLE).exists():
        files = [SINGLE]
    else:
        raise CheckpointError(
            f"no weights in {folder}",
            hint=f"expected {SINGLE}, or shards with {INDEX}; is the download complete?",
        )
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight files are missing in {folder}: "
            f"{', '.join(missing)}",
            hint="is the download complete?",
        )
    tensors: dict[str, Any] = {}
    for name in files:
        try:
            opened = stack.enter_context(safe_open(folder / name, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{folder / name} is not a readable safetensors file: {error}",
                hint="a git-lfs pointer or a cut download looks like this",
            ) from error
        tensors.update(dict.fromkeys(opened.keys(), opened))
    return tensors


def _check(folder: Path, slices: list[Slice], tensors: dict[str, Any], *, tied: bool) -> None:
    expected = {item.name: item.shape for item in slices}
    problems = [
        f"missing {name} {shape}" for name, shape in expected.items() if name not in tensors
    ]
    for name, source in tensors.items():
        shape = tuple(source.get_slice(name).get_shape())
        if name not in expected:
            if not (tied and name == "language_model.lm_head.weight"):
                problems.append(f"unexpected {name} {shape}")
        elif shape != expected[name]:
            problems.append(f"{name} is {shape}, expected {expected[name]}")
    if problems:
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json, {len(problems)} problems: "
            + "; ".join(problems)
        )
