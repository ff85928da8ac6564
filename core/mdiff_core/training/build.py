"""From settings to a network, and from a trained network to a checkpoint in the released format."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.config import strict_from_dict
from mdiff_core.errors import ConfigError
from mdiff_core.models.config import ModelConfig, read_json
from mdiff_core.models.loader import load_model, save_weights
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.prompts import Codec
from mdiff_core.training.config import (
    LoraConfig,
    ModelSettings,
    TrainConfig,
    check_types,
    require,
)
from mdiff_core.training.objective import attention_kernel

COPIED_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "added_tokens.json", "special_tokens_map.json", "merges.txt",
    "vocab.json", "generation_config.json",
)  # fmt: skip
BY_TOKEN = ("decoder.embed_tokens.weight", "decoder.lm_head.weight")
"""Parameters with a row for each token."""
_BRANCH_ENDS = ("o_proj.weight", "down_proj.weight", ".proj.weight", "fc2.weight")
SECTIONS = {
    "text": ("text_config", "language_model_config"),
    "vision": ("vision_config", "vision_model_config"),
}


def model_json(settings: ModelSettings, base: Path) -> dict[str, Any]:
    """Return the ``config.json`` of the network to train: the base's with the settings' changes."""
    raw = read_json(base / "config.json")
    for part, names in SECTIONS.items():
        changes = dict(getattr(settings, part))
        if not changes:
            continue
        name = next((n for n in names if n in raw), names[0])
        unknown = set(changes) - set(raw.get(name, {}))
        if unknown:
            raise ConfigError(f"[model.{part}] has no shapes {sorted(unknown)}")
        raw[name] = {**raw.get(name, {}), **changes}
        for other in SECTIONS["vision"] if "hidden_size" in changes and part == "text" else ():
            if "hidden_size" in raw.get(other, {}):
                # Where the base names it, the tower's output size is the decoder's.
                raw[other] = {**raw[other], "hidden_size": changes["hidden_size"]}
    if settings.mdiff:
        merged = {**raw.get("mdiff", {}), **settings.mdiff}
        if merged.get("text_unit") == "region":
            # What only pieces have goes with them.
            merged = {
                k: v for k, v in merged.items() if k not in ("segment_px", "stretch", "line_air")
            }
        raw["mdiff"] = merged
    return raw


def build_model(
    config: TrainConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[MinerUDiffusion, Codec]:
    """Build the network that a run starts from.

    Args:
        config: Settings of the run.
        device: Where it goes.
        dtype: Type it computes in.

    Returns:
        The network in training mode, with gradients where it is trained, and its codec.

    Raises:
        CheckpointError: If the base cannot be used.
        ConfigError: If the settings do not fit it.
    """
    settings = config.model
    base = resolve_checkpoint(settings.base)
    shapes = shapes_of(model_json(settings, base), base)
    codec = Codec.from_folder(base, image_token_id=shapes.image_token_id)
    if settings.init == "base":
        model = load_model(base, shapes, device=device, dtype=dtype)
    else:
        model = MinerUDiffusion(shapes)
        initialize(model, seed=config.run.seed)
        model.to(device=device, dtype=dtype)
    model.requires_grad_(True)
    for part in settings.freeze:
        getattr(model, part).requires_grad_(False)
    if config.lora.rank:
        add_lora(model, config.lora, seed=config.run.seed, freeze=settings.freeze)
    if config.run.recompute:
        recompute_layers(model)
    return model.train(), codec


def shapes_of(raw: Mapping[str, Any], base: Path) -> ModelConfig:
    """Return the shapes of a ``config.json``, with the base's image preparation.

    Raises:
        ConfigError: If a value cannot be used; names table and setting.
        CheckpointError: If the base cannot be used, or shapes do not fit each other.
    """
    known = ModelConfig.from_folder(base)
    if raw == read_json(base / "config.json"):
        return known
    text, vision = (
        _changed(part, getattr(known, part), next((raw[n] for n in names if n in raw), {}))
        for part, names in SECTIONS.items()
    )
    capabilities = strict_from_dict(type(known.capabilities), raw.get("mdiff", {}))
    return replace(known, text=text, vision=vision, capabilities=capabilities)


def _changed(part: str, shapes: Any, raw: Mapping[str, Any]) -> Any:
    names = shapes.__dataclass_fields__
    changed = replace(shapes, **{k: raw[k] for k in names if raw.get(k) is not None})
    check_types(f"model.{part}", changed)
    for name in names:
        value = getattr(changed, name)
        require(f"model.{part}", name, value, value > 0, "> 0")
    return changed


@torch.no_grad()
def initialize(model: MinerUDiffusion, *, seed: int) -> None:
    """Draw initial weights: normal with 1/sqrt(inputs), smaller where a residual branch ends.

    Args:
        model: The network, on the CPU in fp32, so that every machine draws the same.
        seed: Seed.
    """
    generator = torch.Generator().manual_seed(seed)
    depths = {
        "vision": model.config.vision.depth,
        "decoder": model.config.text.num_hidden_layers,
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0 if "norm" in name or "ln_q" in name else 0.0)
            if name.endswith("bias"):
                parameter.zero_()
            continue
        if "embed_tokens" in name:
            parameter.normal_(0, 1, generator=generator)
            continue
        std = parameter[0].numel() ** -0.5
        if name.endswith("patch_weight"):
            # A still image meets the kernel of each of its frames: the sum has the right size.
            std *= model.config.vision.temporal_patch_size**-0.5
        part = name.split(".")[0]
        if part in depths and name.endswith(_BRANCH_ENDS):
            std *= (2 * depths[part]) ** -0.5
        parameter.normal_(0, std, generator=generator)


def recompute_layers(model: MinerUDiffusion) -> None:
    """Let every layer of decoder and image tower compute its activations anew for its gradient."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # The backward pass runs outside of the forward's choice of kernels: choose them again.
        return nullcontext(), attention_kernel(model.device)

    for layer in [*model.decoder.layers, *model.vision.blocks]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)


def add_lora(
    model: MinerUDiffusion, config: LoraConfig, *, seed: int, freeze: Sequence[str] = ()
) -> None:
    """Freeze the network and add trainable low-rank updates to its linear layers, in place.

    Args:
        model: The network.
        config: Settings.
        seed: Seed of the initial updates.
        freeze: Parts that get no updates.

    Raises:
        ConfigError: If peft is not installed, or no layer has one of the names.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            "LoRA needs the peft package", hint='pip install "mdiff-core[lora]"'
        ) from error
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and name.split(".")[-1] in config.targets
        and (config.vision or name.startswith("decoder."))
        and name.split(".")[0] not in freeze
    ]
    if not names:
        raise ConfigError(
            f"no linear layer is called {', '.join(config.targets)}",
            hint=f"outside of what model.freeze names: {', '.join(freeze)}" if freeze else None,
        )
    model.requires_grad_(False)
    settings = peft.LoraConfig(
        r=config.rank,
        # Declared as an integer there, but used as a factor: fractions are as good.
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=names,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def plain_model(model: MinerUDiffusion, weights: Mapping[str, Tensor]) -> MinerUDiffusion:
    """Return a copy with given weights, low-rank updates merged, for decoding or export.

    Args:
        model: The network in training.
        weights: Values of trained parameters by name.

    Returns:
        A network in evaluation mode, without gradients.
    """
    copied = copy.deepcopy(model).requires_grad_(False).eval()
    for layer in [*copied.decoder.layers, *copied.vision.blocks]:
        # Nothing is recomputed where nothing is differentiated.
        layer.__dict__.pop("forward", None)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    for name, module in list(copied.named_modules()):
        if hasattr(module, "lora_A") and hasattr(module, "merge"):
            module.merge()
            parent = copied.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.base_layer)
    return copied


def export_checkpoint(
    model: MinerUDiffusion, folder: Path, settings: ModelSettings, dtype: torch.dtype
) -> None:
    """Write a checkpoint folder in the released format.

    Args:
        model: A plain network.
        folder: Where; made where it is missing.
        settings: What it was built from: the base gives tokenizer and templates.
        dtype: Type of the weights.
    """
    base = resolve_checkpoint(settings.base)
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED_FILES:
        if (base / name).is_file() and (base / name).resolve() != (folder / name).resolve():
            shutil.copyfile(base / name, folder / name)
    raw = model_json(settings, base)
    raw["torch_dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    save_weights(model, folder, dtype)
