"""Seeded random checkpoints in the released format, for tests and benchmarks without weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import INDEX, SINGLE, tensor_map, write_tensors
from mdiff_core.models.mineru import MinerUDiffusion

SMALL_TEXT = {
    "model_type": "sdar",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}
SMALL_VISION = {
    "model_type": "qwen2_vl",
    "depth": 2,
    "embed_dim": 32,
    "num_heads": 4,
    "mlp_ratio": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def write_random_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    tied: bool = False,
    num_shards: int = 1,
    old_spelling: bool = False,
    projector: str = "patch_merger2x",
    dtype: torch.dtype = torch.float32,
    gain: float = 1.5,
) -> Path:
    """Write a complete checkpoint with random weights and the embedded byte tokenizer.

    Args:
        folder: Created if missing.
        seed: Seed of the weights.
        text: Decoder shapes that differ from the small defaults.
        vision: Image tower shapes that differ from the small defaults.
        tied: Leave out the head.
        num_shards: Files the weights are spread over.
        old_spelling: Use the older section names in ``config.json``.
        projector: ``vision_projector_type``.
        dtype: Type of the stored weights.
        gain: Scale of the weights; larger makes a random model surer of itself.

    Returns:
        ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    embedded = resolve_checkpoint("tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                 "preprocessor_config.json"):  # fmt: skip
        shutil.copyfile(embedded / name, folder / name)
    base = json.loads((embedded / "config.json").read_text(encoding="utf-8"))
    names = (
        ("language_model_config", "vision_model_config")
        if old_spelling
        else ("text_config", "vision_config")
    )
    raw = {
        "model_type": "mineru_diffusion",
        "architectures": base["architectures"],
        names[0]: {"vocab_size": base["text_config"]["vocab_size"], **SMALL_TEXT, **(text or {})},
        names[1]: {**SMALL_VISION, **(vision or {})},
        "image_token_id": base["image_token_id"],
        "mask_token_id": base["mask_token_id"],
        "vision_projector_type": projector,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    config = ModelConfig.from_folder(folder)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for item in tensor_map(config, tied=tied):
        noise = torch.randn(item.shape, generator=generator)
        fan_in = noise[0].numel() if noise.dim() > 1 else 1
        if "norm" in item.name or "ln_q" in item.name:
            value = 1 + 0.1 * noise if item.name.endswith("weight") else 0.1 * noise
        elif noise.dim() == 1:
            value = 0.1 * noise
        elif "embed_tokens" in item.name:
            value = noise
        else:
            value = gain * noise * fan_in**-0.5
        tensors[item.name] = value.to(dtype).contiguous()
    _save(folder, tensors, num_shards)
    return folder


def _save(folder: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        write_tensors(tensors, folder / SINGLE)
        return
    weight_map = {}
    names = list(tensors)
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        write_tensors(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def random_model(
    config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int
) -> MinerUDiffusion:
    """Return a network of any size with random weights, made where it runs.

    Args:
        config: Shapes.
        device: Where.
        dtype: Type of the weights.
        seed: Seed; the same gives the same weights on one kind of device.

    Returns:
        The network, ready for an :class:`~mdiff_core.engine.Engine`.
    """
    with torch.device("meta"):
        model = MinerUDiffusion(config)
    model.to_empty(device=device)
    model.to(dtype)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                scale = 1.0 if "embed_tokens" in name else parameter[0].numel() ** -0.5
                parameter.normal_(0, scale, generator=generator)
    return model.eval().requires_grad_(False)
