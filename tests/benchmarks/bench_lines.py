"""The embedded checkpoint on a folder of real text lines: threshold against error and speed.

``python -m tests.benchmarks.bench_lines LINES_DIR [--step 3] [--plot docs/threshold.png]``, where
the folder holds ``lines.json`` (``file``, ``text``) and the images. Timed in the same run: a plain
batched reader on the same weights and dtype (batches of 64, separate prompt and commit forwards,
the head on every row, a batch waits for its slowest line).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rapidfuzz.distance import Levenshtein
from torch import Tensor
from torch.nn import functional as F

from mdiff_adapters.text import unify_scripts
from mdiff_core import Capabilities, DecodeConfig, DecodeRequest, Engine
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.engine import choose_device, choose_dtype
from mdiff_core.imaging import Patches, to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.prompts import Codec
from mdiff_core.reference import block_causal_mask
from mdiff_core.segments import prepare_line

from .harness import Report, interleaved

THRESHOLDS = (0.3, 0.5, 0.7, 0.9, 0.95, 0.99)


class Lines:
    """Prepared pieces of every ``step``-th line, and the score of their texts."""

    def __init__(self, folder: Path, step: int, capabilities: Capabilities) -> None:
        entries = json.loads((folder / "lines.json").read_text(encoding="utf-8"))[::step]
        self.truths = [entry["text"] for entry in entries]
        self.pieces: list[Image.Image] = []
        self.layout: list[list[bool]] = []
        for entry in entries:
            with Image.open(folder / entry["file"]) as image:
                gray = np.asarray(image.convert("L"))
            prepared = prepare_line(gray, capabilities)
            self.pieces += [piece for piece, _ in prepared]
            self.layout.append([after_gap for _, after_gap in prepared])

    def error(self, texts: list[str]) -> float:
        """Return characters wrong / characters, runs of spaces joined."""
        wrong = total = at = 0
        for truth, gaps in zip(self.truths, self.layout, strict=True):
            parts = texts[at : at + len(gaps)]
            at += len(gaps)
            pairs = zip(gaps, parts, strict=True)
            line = "".join((" " if gap else "") + part for gap, part in pairs)
            read, true = unify_scripts(" ".join(line.split())), " ".join(truth.split())
            wrong += Levenshtein.distance(read, true)
            total += len(true)
        return wrong / total


class PlainReader:
    """A straightforward batched reader: equal prompts, a fixed batch, all rows to the end."""

    def __init__(self, model: MinerUDiffusion, codec: Codec, limit: int) -> None:
        self.model, self.codec, self.limit = model, codec, limit

    def read(self, images: list[Image.Image], threshold: float) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(images), 64):
            patches = [
                to_patches(image, patch_size=14, merge_size=2, min_pixels=1, max_pixels=2**24)
                for image in images[start : start + 64]
            ]
            texts += self._batch(patches, threshold)
        return texts

    @torch.inference_mode()
    def _batch(self, patches: list[Patches], threshold: float) -> list[str]:
        model, text = self.model, self.model.config.text
        group = text.num_attention_heads // text.num_key_value_heads
        batch, mask_id, length = len(patches), model.config.mask_token_id, 32
        features = torch.stack(model.encode_images(patches))
        prompt_ids = torch.tensor(self.codec.prompt_ids("text", features.shape[1]))
        prompt = len(prompt_ids)
        past: list[tuple[Tensor, Tensor] | None] = [None] * text.num_hidden_layers

        def forward(embeds: Tensor, start: int, mask: Tensor | None, *, store: bool) -> Tensor:
            count = embeds.shape[1]

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                q, k, v = (x.view(batch, count, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
                before = past[layer]
                if before is not None:
                    k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
                if store:
                    past[layer] = (k, v)
                wide = [x.repeat_interleave(group, dim=1) for x in (k, v)]
                out = F.scaled_dot_product_attention(q, *wide, attn_mask=mask)
                return out.transpose(1, 2).flatten(0, 1)

            positions = torch.arange(start, start + count).repeat(batch)
            hidden = model.decoder(embeds.flatten(0, 1), positions, attend)
            logits: Tensor = model.decoder.lm_head(hidden).view(batch, count, -1)
            return logits

        ids = prompt_ids.repeat(batch)
        embeds = model.embed(ids, features.flatten(0, 1)).view(batch, prompt, -1)
        forward(embeds, 0, block_causal_mask(prompt, prompt, length), store=True)
        answers: list[list[int]] = [[] for _ in patches]
        ended = [False] * batch
        while not all(ended) and len(answers[0]) < self.limit:
            start = prompt + len(answers[0])
            block = torch.full((batch, length), mask_id)
            while (masked := block == mask_id).any():
                embeds = model.decoder.embed_tokens(block)
                logits = forward(embeds, start, None, store=False).float()
                logits[..., mask_id] = -torch.inf
                confidence, tokens = logits.softmax(-1).max(-1)
                confidence = torch.where(masked, confidence, -1.0)
                best = F.one_hot(confidence.argmax(-1), length).bool()
                block = torch.where(masked & ((confidence > threshold) | best), tokens, block)
            forward(model.decoder.embed_tokens(block), start, None, store=True)
            for i, row in enumerate(block.tolist()):
                answers[i] += row
                ended[i] |= any(token in self.codec.end_ids for token in row)
        cut = (
            next((i for i, t in enumerate(row) if t in self.codec.end_ids), len(row))
            for row in answers
        )
        return [self.codec.decode(row[:end]) for row, end in zip(answers, cut, strict=True)]


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--step", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    device = choose_device("cpu")
    dtype = choose_dtype(args.dtype, device)
    engine = Engine.load(args.checkpoint, device=device, dtype=dtype)
    folder = resolve_checkpoint(args.checkpoint)
    config = ModelConfig.from_folder(folder)
    capabilities = config.capabilities
    if capabilities.segment_px is None:
        parser.error(f"{args.checkpoint} does not read pieces of lines")
    lines = Lines(args.lines, args.step, capabilities)
    model = load_model(folder, config, device=device, dtype=dtype)
    codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
    plain = PlainReader(model, codec, capabilities.limit("text"))
    report = Report(device)
    report.note("dtype", str(dtype))
    report.note("lines", {"lines": len(lines.truths), "pieces": len(lines.pieces)})

    def ours(threshold: float) -> tuple[list[str], float]:
        settings = DecodeConfig(threshold=threshold)
        requests = [DecodeRequest(image=piece, config=settings) for piece in lines.pieces]
        results = engine.generate(requests)
        forwards = sum(result.num_forwards for result in results)
        return [r.text for r in results], sum(r.num_tokens for r in results) / forwards

    points = []
    for threshold in THRESHOLDS:
        # The plain reader is timed at the default threshold only; it gives the same texts.
        timed = threshold == DecodeConfig().threshold
        runs: dict[str, Callable[[], Any]] = {"ours": lambda t=threshold: ours(t)}
        if timed:
            runs["plain"] = lambda t=threshold: plain.read(lines.pieces, t)
        seconds, values = interleaved(runs, device, args.repeats if timed else 1)
        texts, per_forward = values["ours"]
        point = {
            "character_error": lines.error(texts),
            "tokens_per_forward": per_forward,
            "lines_per_s": len(lines.truths) / seconds["ours"],
        }
        if timed:
            point["character_error_plain"] = lines.error(values["plain"])
            point["lines_per_s_plain"] = len(lines.truths) / seconds["plain"]
            point["ratio"] = seconds["plain"] / seconds["ours"]
        points.append(point)
        report.case(f"threshold {threshold}", **point)
    if args.plot:
        draw(args.plot, points)
    report.finish()


def draw(path: Path, points: list[dict[str, float]]) -> None:
    """Plot tokens per forward against character error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 3.6), layout="constrained")
    speed = [point["tokens_per_forward"] for point in points]
    wrong = [100 * point["character_error"] for point in points]
    axes.plot(speed, wrong, "o-", color="#1f5a99")
    for threshold, x, y in zip(THRESHOLDS, speed, wrong, strict=True):
        axes.annotate(f"{threshold:g}", (x, y), textcoords="offset points", xytext=(4, 5))
    axes.set_xlabel("tokens per forward")
    axes.set_ylabel("character error, %")
    axes.set_ylim(0, 1.12 * max(wrong))
    axes.set_title("Embedded checkpoint, real lines, by threshold", fontsize=10)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
