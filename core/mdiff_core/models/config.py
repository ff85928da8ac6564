"""Shapes of the network, read from a checkpoint's ``config.json``.

Knows both spellings in use (``text_config``/``language_model_config``, ``vision_config``/
``vision_model_config``) and the defaults of the released V1. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdiff_core.config import Capabilities, strict_from_dict
from mdiff_core.errors import CheckpointError, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Shapes of the SDAR decoder; defaults are V1's."""

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Shapes of the image tower (Qwen2-VL without its merger); defaults are V1's."""

    depth: int = 32
    embed_dim: int = 1280
    num_heads: int = 16
    mlp_ratio: float = 4
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Image preparation, from ``preprocessor_config.json``; defaults are the reference's.

    Attributes:
        min_pixels: Smallest image area in px after resizing.
        max_pixels: Largest image area in px after resizing.
        mean: Channel means on the scale 0..1.
        std: Channel standard deviations on the scale 0..1.
    """

    min_pixels: int = 3136
    max_pixels: int = 1605632
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything ``config.json`` and ``preprocessor_config.json`` say.

    Attributes:
        text: Decoder shapes.
        vision: Image tower shapes.
        image: Image preparation.
        image_token_id: Placeholder id that image features replace.
        mask_token_id: Id of a position that is not confirmed yet.
        tie_word_embeddings: Whether the head shares the embedding matrix.
        capabilities: What the checkpoint can be asked.
    """

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    image: ImageConfig = field(default_factory=ImageConfig)
    image_token_id: int = 151655
    mask_token_id: int = 151669
    tie_word_embeddings: bool = False
    capabilities: Capabilities = field(default_factory=Capabilities)

    def __post_init__(self) -> None:
        text, vision = self.text, self.vision
        problems = []
        if text.num_attention_heads % text.num_key_value_heads:
            problems.append("num_attention_heads is not a multiple of num_key_value_heads")
        if text.head_dim % 2:
            problems.append("head_dim is odd")
        if vision.embed_dim % vision.num_heads or vision.embed_dim // vision.num_heads % 4:
            problems.append("vision head size is not a multiple of 4")
        if not (0 <= self.mask_token_id < text.vocab_size):
            problems.append("mask_token_id is not in the vocabulary")
        if problems:
            raise CheckpointError(f"config.json cannot be used: {'; '.join(problems)}")

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read the two configuration files of a checkpoint folder.

        Raises:
            CheckpointError: If ``config.json`` is missing, is no JSON, is of another model, or has
                values of a kind that cannot be used.
        """
        try:
            return cls._read(folder)
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(
                f"{folder / 'config.json'} cannot be used: {type(error).__name__}: {error}",
                hint="compare it with that of a released checkpoint",
            ) from error

    @classmethod
    def _read(cls, folder: Path) -> ModelConfig:
        raw = read_json(folder / "config.json")
        kind = raw.get("model_type")
        if kind != "mineru_diffusion":
            raise CheckpointError(
                f"{folder / 'config.json'} is of model_type {kind!r}",
                hint="this library reads mineru_diffusion checkpoints",
            )
        text_raw = _section(raw, "text_config", "language_model_config")
        vision_raw = _section(raw, "vision_config", "vision_model_config")
        if "rope_theta" not in text_raw and isinstance(text_raw.get("rope_parameters"), Mapping):
            # transformers 5 moves the rotary settings into a mapping of their own.
            text_raw = {**text_raw, "rope_theta": text_raw["rope_parameters"].get("rope_theta")}
        projector = raw.get("vision_projector_type", "patch_merger2x")
        if projector not in ("patch_merger2x", "pm2x"):
            raise CheckpointError(
                f"vision_projector_type {projector!r} is not known",
                hint="this library reads patch_merger2x (also spelt pm2x)",
            )
        try:
            capabilities = strict_from_dict(Capabilities, raw.get("mdiff", {}))
        except ConfigError as error:
            raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
        preprocessor = folder / "preprocessor_config.json"
        return cls(
            text=_pick(TextConfig, text_raw),
            vision=_pick(VisionConfig, vision_raw),
            image=_image_config(read_json(preprocessor) if preprocessor.exists() else {}),
            image_token_id=int(raw.get("image_token_id", 151655)),
            mask_token_id=int(raw.get("mask_token_id", 151669)),
            tie_word_embeddings=bool(
                raw.get("tie_word_embeddings", text_raw.get("tie_word_embeddings", False))
            ),
            capabilities=capabilities,
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing or broken file is a :class:`CheckpointError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path.name} is missing in {path.parent}",
            hint="give a folder that holds a downloaded checkpoint",
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def _section(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if isinstance(raw.get(name), Mapping):
            return dict(raw[name])
    return {}


def _pick(kind: Any, raw: Mapping[str, Any]) -> Any:
    # Foreign configuration files carry many keys that are not shapes: unknown ones are fine.
    given = {name: raw[name] for name in kind.__dataclass_fields__ if raw.get(name) is not None}
    for name, value in given.items():
        if kind.__dataclass_fields__[name].type == "int" and type(value) is not int:
            raise TypeError(f"{name} is {value!r}, not an integer")
    return kind(**given)


def _image_config(raw: Mapping[str, Any]) -> ImageConfig:
    size = raw.get("size")
    size = size if isinstance(size, Mapping) else {}
    defaults = ImageConfig()
    return ImageConfig(
        min_pixels=int(raw.get("min_pixels") or size.get("shortest_edge") or defaults.min_pixels),
        max_pixels=int(raw.get("max_pixels") or size.get("longest_edge") or defaults.max_pixels),
        mean=tuple(raw.get("image_mean") or defaults.mean),
        std=tuple(raw.get("image_std") or defaults.std),
    )
