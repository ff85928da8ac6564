"""Upstream's own code as an engine.

The release's Python files are not here, so a small stand-in of transformers' three Auto classes
shows what is asked of them; the interface is that of upstream's runner.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from mdiff_adapters.engines import DecodeConfig, Request, open_engine
from mdiff_adapters.engines.reference import ReferenceEngine
from mdiff_adapters.errors import CheckpointError, ConfigError, EngineError

VOCABULARY = ["<|MASK|>", "<|im_end|>", "<|endoftext|>", "a", "b", "c"]
PIXEL = Image.new("RGB", (28, 28))


class Sampler:
    """Upstream's language model, as far as its sampler goes."""

    def sample_with_temperature_topk_topp(
        self, logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = (logits / temperature).softmax(-1)
        token = torch.multinomial(probabilities.view(-1, logits.shape[-1]), 1).view(
            logits.shape[:-1]
        )
        return token, probabilities.gather(-1, token[..., None])[..., 0]


class Model:
    """Answers one block: ``abc``, the end token, then rubbish; the mask token looks likeliest."""

    def __init__(self) -> None:
        self.language_model = Sampler()
        self.calls: list[dict[str, Any]] = []
        self.fail = False

    def eval(self) -> Model:
        return self

    def to(self, device: str) -> Model:
        self.device = device
        return self

    def generate(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.calls.append(options)
        if self.fail:
            raise RuntimeError("index out of range")
        length = options["block_length"]
        logits = torch.full((1, length, len(VOCABULARY)), -30.0)
        for position, token in enumerate([3, 4, 5, 1, *[3] * (length - 4)]):
            logits[0, position, token] = 30.0
        logits[..., 0] = 60.0
        tokens, _ = self.language_model.sample_with_temperature_topk_topp(
            logits, temperature=options["temperature"], top_k=0, top_p=1.0
        )
        steps = torch.ones(1, length, dtype=torch.long)
        if options["stopping_criteria"] and 1 in tokens[0]:
            tokens = tokens[:, : int((tokens[0] == 1).nonzero()[0])]
        return tokens, steps, steps.float()


class Processor:
    def __init__(self) -> None:
        self.prompts: list[Any] = []

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        self.prompts.append((messages, options))
        return "prompt"

    def __call__(self, *, images: Any, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
        assert [image.mode for image in images] == ["RGB"]
        return {
            "input_ids": torch.zeros(1, 4),
            "image_grid_thw": torch.ones(1, 3),
            "pixel_values": torch.zeros(4, 1176),
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"mdiff": {"tasks": ["text", "layout"]}}))
    return tmp_path


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(model=Model(), processor=Processor(), asked=[])

    def auto(result: Any) -> Any:
        def from_pretrained(path: Path, **options: Any) -> Any:
            made.asked.append(options)
            return result

        return SimpleNamespace(from_pretrained=from_pretrained)

    module = ModuleType("transformers")
    module.__version__ = "4.52.4"  # type: ignore[attr-defined]
    tokenizer = SimpleNamespace(
        convert_tokens_to_ids=VOCABULARY.index,
        decode=lambda ids, skip_special_tokens: "".join(VOCABULARY[i] for i in ids),
    )
    module.AutoTokenizer = auto(tokenizer)  # type: ignore[attr-defined]
    module.AutoProcessor = auto(made.processor)  # type: ignore[attr-defined]
    module.AutoModel = auto(made.model)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    return made


def test_greedy_takes_the_likeliest_token_that_is_not_the_mask(folder, parts) -> None:
    with ReferenceEngine(folder, device="cpu", dtype="fp32") as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL.convert("RGBA"))])
    assert (answer.text, answer.finish_reason, answer.error) == ("abc", "stop", None)
    assert (answer.num_tokens, answer.num_forwards) == (3, 3)
    [call] = parts.model.calls
    assert (call["dynamic_threshold"], call["denoising_steps"], call["temperature"]) == (
        0.95,
        32,
        1.0,
    )
    assert call["gen_length"] == 1024 and call["input_ids"].dtype == torch.long
    assert all(o["trust_remote_code"] and o["local_files_only"] for o in parts.asked)
    [(messages, options)] = parts.processor.prompts
    assert [part["type"] for part in messages[1]["content"]] == ["image", "text"]
    assert options == {"add_generation_prompt": True, "tokenize": False}


def test_sampling_is_upstreams_own(folder, parts) -> None:
    decode = DecodeConfig(temperature=1.0, seed=1, max_tokens=40)
    with ReferenceEngine(folder, device="cpu") as engine:
        answers = list(engine.answer(Request(id=i, image=PIXEL, decode=decode) for i in "ab"))
    # Unbanned, the mask token wins: that is how upstream samples.
    assert [answer.text for answer in answers] == ["<|MASK|>" * 32] * 2
    assert parts.model.calls[0]["gen_length"] == 64


def test_static_and_the_limit(folder, parts) -> None:
    decode = DecodeConfig(rule="static", max_tokens=2, ignore_end=True, block_length=8)
    with ReferenceEngine(folder, device="cpu") as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL, decode=decode)])
    assert (answer.text, answer.finish_reason, answer.num_tokens) == ("ab", "length", 2)
    assert parts.model.calls[0]["dynamic_threshold"] == 1.0
    assert parts.model.calls[0]["stopping_criteria"] is None


def test_bad_requests_are_answers(folder, parts) -> None:
    with ReferenceEngine(folder, device="cpu") as engine:
        rule = DecodeConfig(rule="sequential")
        requests = [
            Request(id="table", image=PIXEL, task="table"),
            Request(id="rule", image=PIXEL, decode=rule),
            Request(id="good", image=PIXEL),
        ]
        table, wrong_rule, good = engine.answer(requests)
        parts.model.fail = True
        [failed] = engine.answer([Request(id="bad", image=PIXEL)])
    assert "not among its tasks" in str(table.error)
    assert "no rule 'sequential'" in str(wrong_rule.error)
    assert good.text == "abc"
    assert "upstream's code raised RuntimeError: index out of range" in str(failed.error)


def test_it_opens_by_its_spec_and_closes(folder, parts) -> None:
    engine: Any = open_engine(f"reference:{folder}", device="cpu")
    assert pickle.loads(pickle.dumps(engine)) is engine
    assert engine.capabilities.tasks == ("text", "layout")
    engine.close()
    assert engine.closed
    with pytest.raises(EngineError, match="closed"):
        engine.answer([])
    with pytest.raises(ConfigError, match="no option 'revision'"):
        open_engine(f"reference:{folder}", revision="x")
    with pytest.raises(ConfigError, match="dtype = 'int8'"):
        open_engine(f"reference:{folder}", dtype="int8")


def test_what_is_missing_is_said(folder: Path, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_engine("reference:org/name")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        open_engine(f"reference:{folder}")
    (folder / "config.json").write_text("not json")
    with pytest.raises((CheckpointError, ImportError)):
        open_engine(f"reference:{folder}")


def test_what_transformers_cannot_load_is_a_checkpoint_error(folder, parts) -> None:
    def fail(path: Path, **options: Any) -> Any:
        raise AttributeError("'list' object has no attribute 'keys'")

    sys.modules["transformers"].AutoModel.from_pretrained = fail  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"transformers 4\.52\.4 cannot load.*'keys'.*4\.52"):
        ReferenceEngine(folder, device="cpu")
