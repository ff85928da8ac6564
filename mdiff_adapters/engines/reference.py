"""Upstream's own code as an engine, for comparisons: ``reference:/path/to/checkpoint``.

The folder holds the release's Python files beside its weights, and they are executed: the word
``reference:`` in the spec is the permission. One request at a time, as upstream does it. Loads
torch and transformers when it is built.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import Self

from mdiff_adapters.engines.answers import failed, unsupported
from mdiff_adapters.engines.base import Answer, Capabilities, DecodeConfig, Request
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import CheckpointError, ConfigError, EngineError
from mdiff_adapters.text import cut_at_stop
from mdiff_core.config import strict_from_dict
from mdiff_core.protocol import END_TOKENS, SYSTEM_PROMPT, TASK_PROMPTS

MASK_TOKEN = "<|MASK|>"


class ReferenceEngine(SpecEngine):
    """Answers with the classes that the checkpoint folder brings along.

    Upstream always samples. At temperature 0 its sampler is replaced by argmax with the mask token
    banned, which is what the greedy figures of this project compare with; above 0 its own runs.

    Args:
        folder: A local checkpoint folder with upstream's ``*.py`` files.
        device: ``auto``, ``cpu``, ``cuda``, …
        dtype: ``auto`` (bfloat16), ``bfloat16``, ``float16`` or ``float32``.
        spec: The spec it stands for; its name, and what it pickles as.

    Raises:
        CheckpointError: If there is no such folder, or transformers cannot load it.
        ImportError: If transformers is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        spec: EngineSpec | None = None,
    ) -> None:
        path = Path(folder)
        if not (path / "config.json").is_file():
            raise CheckpointError(
                f"{path} is not a checkpoint folder: there is no config.json",
                hint="download the release with its Python files and give the local folder",
            )
        try:
            # By name: its classes are made at run time, and static types would be a guess.
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise ImportError(
                "engine reference: needs transformers: pip install transformers torchvision",
                name="transformers",
            ) from error
        import torch

        from mdiff_core.engine import DTYPES

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype != "auto" and dtype not in DTYPES:
            raise ConfigError(
                f"ReferenceEngine.dtype = {dtype!r} is out of range",
                hint=f"allowed: auto, {', '.join(DTYPES)}",
            )
        super().__init__(spec or EngineSpec(f"reference:{path}"))
        self._device = device
        self._dtype = torch.bfloat16 if dtype == "auto" else DTYPES[dtype]
        self._lock = threading.Lock()
        self._capabilities = _capabilities(path)
        options = {"trust_remote_code": True, "local_files_only": True}
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(path, **options)
            self._processor = transformers.AutoProcessor.from_pretrained(
                path, use_fast=False, **options
            )
            model = transformers.AutoModel.from_pretrained(path, torch_dtype=self._dtype, **options)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            raise CheckpointError(
                f"transformers {transformers.__version__} cannot load {path}: "
                f"{type(error).__name__}: {error}",
                hint="upstream's code was written for transformers 4.52",
            ) from error
        self._model: Any = model.eval().to(device)
        self._mask_id: int = self._tokenizer.convert_tokens_to_ids(MASK_TOKEN)
        self._own_sampler = self._model.language_model.sample_with_temperature_topk_topp

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Load the folder of ``spec``; options ``device`` and ``dtype``."""
        unknown = [name for name, _ in spec.options if name not in ("device", "dtype")]
        if unknown:
            raise ConfigError(
                f"engine reference: has no option {unknown[0]!r}", hint="known: device, dtype"
            )
        options: dict[str, Any] = dict(spec.options)
        return cls(spec.target, spec=spec, **options)

    @property
    def capabilities(self) -> Capabilities:
        """What ``config.json`` says the checkpoint was trained for."""
        return self._capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in order, one request at a time.

        Raises:
            EngineError: If the engine is closed.
        """
        self._check_open()
        return (self._answer(request) for request in requests)

    def _answer(self, request: Request) -> Answer:
        refusal = unsupported(request, self)
        if refusal is not None:
            return refusal
        try:
            # The lock covers one request and is free while the caller looks at the answer.
            with self._lock:
                return self._generate(request)
        except Exception as error:  # noqa: BLE001  foreign code; one bad request is an answer
            return failed(
                request.id,
                EngineError(
                    f"upstream's code raised {type(error).__name__}: {error}", adapter=self.name
                ),
            )

    def _generate(self, request: Request) -> Answer:
        import torch

        if self._closed:
            raise EngineError("the engine was closed")
        decode = request.decode
        inputs = self._inputs(request)
        limit = decode.max_tokens or self._capabilities.limit(request.task)
        num_blocks = -(-limit // decode.block_length)
        if decode.temperature > 0:
            torch.manual_seed(decode.seed or 0)
            self._model.language_model.sample_with_temperature_topk_topp = self._own_sampler
        else:
            self._model.language_model.sample_with_temperature_topk_topp = self._greedy
        with torch.inference_mode():
            ids, step_map, _ = self._model.generate(
                **inputs,
                mask_token_id=self._mask_id,
                denoising_steps=decode.denoising_steps,
                gen_length=num_blocks * decode.block_length,
                block_length=decode.block_length,
                temperature=decode.temperature or 1.0,
                top_k=decode.top_k,
                top_p=decode.top_p,
                remasking_strategy="low_confidence_dynamic",
                dynamic_threshold=_threshold(decode),
                tokenizer=self._tokenizer,
                stopping_criteria=None if decode.ignore_end else list(END_TOKENS),
            )
        answer = ids[0].tolist()
        ended = len(answer) < num_blocks * decode.block_length
        # Upstream cuts at the first token of its list that occurs; the earliest one counts.
        text = cut_at_stop(self._tokenizer.decode(answer[:limit], skip_special_tokens=False))
        steps = int(step_map.max()) if step_map.numel() else 0
        blocks = -(-step_map.shape[1] // decode.block_length)
        return Answer(
            id=request.id,
            text=text,
            finish_reason="empty" if not text.strip() else "stop" if ended else "length",
            num_tokens=min(len(answer), limit),
            # One prefill, the denoising steps, and one commit a block.
            num_forwards=1 + steps + blocks,
        )

    def _inputs(self, request: Request) -> dict[str, Any]:
        import torch

        messages = [
            {"role": "system", "content": [{"type": "text", "text": SYSTEM_PROMPT}]},
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": request.image},
                    {"type": "text", "text": TASK_PROMPTS[request.task]},
                ],
            },
        ]
        prompt = self._processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        # No truncation: a prompt that lost image tokens is a different question.
        batch = self._processor(
            images=[request.image.convert("RGB")], text=prompt, return_tensors="pt"
        )
        return {
            "input_ids": batch["input_ids"].to(self._device, torch.long),
            "image_grid_thw": batch["image_grid_thw"].to(self._device, torch.long),
            "pixel_values": batch["pixel_values"].to(self._device, self._dtype),
        }

    def _greedy(self, logits: Any, **_: Any) -> tuple[Any, Any]:
        logits[..., self._mask_id] = float("-inf")
        confidence, token = logits.float().softmax(-1).max(-1)
        return token, confidence

    def close(self) -> None:
        """Release the model."""
        with self._lock:
            super().close()
            self._model = self._processor = self._tokenizer = self._own_sampler = None


def _threshold(decode: DecodeConfig) -> float:
    if decode.rule == "dynamic":
        return decode.threshold
    if decode.rule == "static":
        return 1.0
    raise ConfigError(
        f"upstream's code has no rule {decode.rule!r}", hint="it knows dynamic and static"
    )


def _capabilities(folder: Path) -> Capabilities:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'} is not JSON: {error}") from error
    described = config.get("mdiff") if isinstance(config, dict) else None
    return strict_from_dict(Capabilities, described or {})
