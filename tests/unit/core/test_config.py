"""Settings, errors and the checkpoint's own configuration."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mdiff_core import Capabilities, DecodeConfig
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.errors import (
    CheckpointError,
    ConfigError,
    DocumentNotFoundError,
    MDiffError,
    PageError,
)
from mdiff_core.models.config import ModelConfig


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("threshold", 1.5, r"\[0, 1\]"),
        ("threshold", float("nan"), r"\[0, 1\]"),
        ("block_length", 0, "1024"),
        ("block_length", True, "1024"),
        ("denoising_steps", -3, "1024"),
        ("max_tokens", 0, ">= 1"),
        ("temperature", -0.1, ">= 0"),
        ("top_k", 1.5, "integer"),
        ("top_p", 0.0, r"\(0, 1\]"),
        ("seed", "x", "integer"),
        ("seed", 2**70, r"2\*\*64 - 1"),
        ("seed", -(2**63) - 1, r"-2\*\*63"),
        ("rule", 5, "unmask rule"),
        ("rule", "", "unmask rule"),
        ("temperature", 10**400, ">= 0"),
        ("ignore_end", 1, "True or False"),
    ],
)
def test_a_bad_value_names_field_value_and_range(name: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"DecodeConfig\.{name} = .*{allowed}"):
        DecodeConfig(**{name: value})  # type: ignore[arg-type]  # what the test is about


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'threshold'"):
        DecodeConfig.from_dict({"treshold": 0.9})
    assert DecodeConfig.from_dict({"threshold": 0.9}).threshold == 0.9


def test_capabilities_of_the_embedded_checkpoint() -> None:
    config = ModelConfig.from_folder(resolve_checkpoint("tiny"))
    caps = config.capabilities
    assert (caps.tasks, caps.text_unit, caps.segment_px) == (("text",), "segment", (896, 28))
    assert (caps.stretch, caps.line_air) == (2.4, 0.04)
    assert Capabilities().line_air is None
    assert caps.limit("text") == 96
    assert Capabilities().limit("table") == 2048
    assert Capabilities().limit("formula") == 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tasks", 5),
        ("tasks", [["text"]]),
        ("segment_px", 896),
        ("segment_px", ("a", 28)),
        ("segment_px", (896.5, True)),
        ("segment_px", (896, 28, 3)),
        ("max_tokens", 5),
    ],
)
def test_a_bad_capability_names_field_and_value(name: str, value: object) -> None:
    given = {"text_unit": "segment", "segment_px": (896, 28), name: value}
    with pytest.raises(ConfigError, match=re.escape(f"{name} = {value!r} is out of range")):
        Capabilities(**given)  # type: ignore[arg-type]  # what the test is about


def test_a_misspelt_capability_names_the_file(tmp_path: Path) -> None:
    raw = {"model_type": "mineru_diffusion", "mdiff": {"task": ["text"]}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=r"config\.json: .*did you mean 'tasks'"):
        ModelConfig.from_folder(tmp_path)


def test_defaults_are_the_released_shapes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mineru_diffusion"}')
    config = ModelConfig.from_folder(tmp_path)
    assert (config.text.hidden_size, config.text.num_hidden_layers) == (2048, 28)
    assert (config.vision.depth, config.vision.embed_dim) == (32, 1280)
    assert (config.mask_token_id, config.image_token_id) == (151669, 151655)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json is missing"),
        ("{", "is not JSON"),
        ('{"model_type": "qwen2"}', "model_type 'qwen2'"),
        (
            '{"model_type": "mineru_diffusion", "vision_projector_type": "mlp"}',
            "'mlp' is not known",
        ),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mdiff": None}, {"mdiff": {"tasks": None}}, {"mdiff": {"segment_px": 896}},
        {"mdiff": {"max_tokens": None}}, {"image_token_id": None},
        {"text_config": {"num_key_value_heads": 0}}, {"text_config": {"hidden_size": "48"}},
        {"text_config": {"hidden_size": 48.0}}, {"vision_config": {"num_heads": True}},
    ],
)  # fmt: skip
def test_values_of_a_wrong_kind_are_refused_as_a_checkpoint(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mineru_diffusion", **wrong}))
    with pytest.raises(CheckpointError, match=r"config\.json.* (cannot be used|is out of range)"):
        ModelConfig.from_folder(tmp_path)


def test_a_config_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        ModelConfig.from_folder(tmp_path)


def test_a_hub_name_without_network_says_where_a_folder_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"some-org/some-model .*give the folder"):
        resolve_checkpoint("some-org/some-model")


@pytest.mark.parametrize("name", ["/no/such/folder", "huge", Path("a/b")])
def test_a_missing_folder_is_no_hub_name(name: str | Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint folder"):
        resolve_checkpoint(name)


def test_errors_say_where_and_what_to_do_and_survive_pickling() -> None:
    error = PageError("cannot be rendered", source="a.pdf", page=2, hint="repair the file")
    text = "a.pdf, page 3: cannot be rendered (repair the file)"
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.page) == (PageError, text, 2)
    missing = DocumentNotFoundError("no such file", source="b.pdf")
    assert isinstance(missing, FileNotFoundError)
    assert str(missing) == "b.pdf: no such file"
    assert str(pickle.loads(pickle.dumps(missing))) == "b.pdf: no such file"
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, MDiffError)


@pytest.mark.parametrize("module", ["mdiff_core", "mdiff_core.scheduler", "mdiff_core.prompts"])
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
