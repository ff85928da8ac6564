"""The engine against the reference algorithm on one set of random weights.

``python -m tests.benchmarks.bench_decode [--device cpu] [--dtype fp32] [--size mid|full|smoke]``.
Random weights never reach a threshold, so schedules drive the steps: static-6 is close to the
2.5B model at threshold 0.95 (5.2 tokens a forward), threshold 0 confirms a block at once. End
tokens are scripted by ``max_tokens``: the engine stops where the end would be confirmed, the
baseline at the end of that block. Both sides: same weights, dtype and tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mdiff_core import DecodeConfig, DecodeRequest, Engine
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.engine import choose_device, choose_dtype
from mdiff_core.imaging import Patches, to_patches
from mdiff_core.models.config import ModelConfig, TextConfig, VisionConfig
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.packing import bf16_is_fast_on_cpu
from mdiff_core.prompts import Codec
from mdiff_core.testing import random_model

from .baseline import decode_baseline
from .harness import Report, interleaved, measured_limits

MIX = json.loads((Path(__file__).parent / "page_mix.json").read_text(encoding="utf-8"))
SIZES: dict[str, tuple[TextConfig, VisionConfig]] = {
    "smoke": (
        TextConfig(
            vocab_size=320,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        ),
        VisionConfig(depth=1, embed_dim=32, num_heads=2),
    ),
    "mid": (
        TextConfig(
            vocab_size=16384,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
        ),
        VisionConfig(depth=4, embed_dim=192, num_heads=6),
    ),
    "full": (TextConfig(), VisionConfig()),
}


def build(size: str, device: torch.device, dtype: torch.dtype) -> tuple[MinerUDiffusion, Codec]:
    """Return a random network of a size, with the embedded byte tokenizer."""
    text, vision = SIZES[size]
    embedded = ModelConfig.from_folder(resolve_checkpoint("tiny"))
    config = ModelConfig(
        text=text,
        vision=vision,
        image_token_id=embedded.image_token_id,
        mask_token_id=embedded.mask_token_id,
    )
    codec = Codec.from_folder(resolve_checkpoint("tiny"), image_token_id=config.image_token_id)
    return random_model(config, device=device, dtype=dtype, seed=0), codec


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * 7919 + height).integers(0, 255, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def static(steps: int, num_tokens: int) -> DecodeConfig:
    return DecodeConfig(
        rule="static", denoising_steps=steps, max_tokens=num_tokens, ignore_end=True
    )


def at_once(num_tokens: int) -> DecodeConfig:
    return DecodeConfig(threshold=0.0, max_tokens=num_tokens, ignore_end=True)


class Bench:
    """One network, the engine on it and the baseline on the very same weights."""

    def __init__(self, size: str, device: torch.device, dtype: torch.dtype, repeats: int) -> None:
        self.device, self.repeats, self.size = device, repeats, size
        self.model, self.codec = build(size, device, dtype)
        # Packing replaces modules, so the engine on a CPU gets a network of its own.
        mine = self.model if device.type == "cuda" else build(size, device, dtype)[0]
        cache_bytes = 2**30 if size != "smoke" else 2**26
        self.engine = Engine(mine, self.codec, cache_bytes=cache_bytes, name=size)
        self.report = Report(device)
        self.report.note("engine", {k: getattr(self.engine.info, k) for k in (
            "dtype", "attention", "cuda_graphs", "packed_linears", "num_parameters")})  # fmt: skip
        self.limits = measured_limits(device, dtype)
        self.report.note("limits", self.limits)
        text = self.model.config.text
        head = text.vocab_size * text.hidden_size
        self.decoder_parameters = (
            sum(p.numel() for p in self.model.decoder.layers.parameters()) + head
        )
        self.bytes_per_forward = self.decoder_parameters * dtype.itemsize

    def patches(self, image: Image.Image) -> Patches:
        limits = self.model.config.image
        return to_patches(
            image,
            patch_size=14,
            merge_size=2,
            min_pixels=limits.min_pixels,
            max_pixels=limits.max_pixels,
        )

    def baseline(self, requests: list[DecodeRequest]) -> tuple[list[list[int]], int]:
        answers, forwards = [], 0
        for request in requests:
            patches = self.patches(request.image)
            result = decode_baseline(
                self.model,
                patches,
                self.codec.prompt_ids(request.task, patches.rows * patches.cols // 4),
                request.config,
                max_tokens=request.config.max_tokens or 1,
            )
            answers.append(result.token_ids)
            forwards += result.num_forwards
        return answers, forwards

    def ours(self, requests: list[DecodeRequest]) -> tuple[list[list[int]], int]:
        before = self.engine.stats.num_forwards
        answers = [result.token_ids for result in self.engine.generate(requests)]
        return answers, self.engine.stats.num_forwards - before

    def compare(self, name: str, requests: list[DecodeRequest], repeats: int | None = None) -> None:
        """Time both on the same requests and report."""
        seconds, values = interleaved(
            {"reference": lambda: self.baseline(requests), "ours": lambda: self.ours(requests)},
            self.device,
            repeats or self.repeats,
        )
        (want, ref_forwards), (got, our_forwards) = values["reference"], values["ours"]
        num_tokens = sum(len(answer) for answer in got)
        per_forward = seconds["ours"] / our_forwards
        same = sum(
            a == b for x, y in zip(want, got, strict=True) for a, b in zip(x, y, strict=True)
        )
        self.report.case(
            name,
            tokens_equal=same / num_tokens,
            forwards_reference=ref_forwards,
            forwards_ours=our_forwards,
            ms_per_forward_reference=1e3 * seconds["reference"] / ref_forwards,
            ms_per_forward_ours=1e3 * per_forward,
            tokens_per_s_reference=num_tokens / seconds["reference"],
            tokens_per_s_ours=num_tokens / seconds["ours"],
            ratio=seconds["reference"] / seconds["ours"],
            share_of_bandwidth=self.bytes_per_forward / per_forward / self.limits["bytes_per_s"],
            share_of_flops=2 * self.decoder_parameters * 32 * sum(
                -(-len(a) // 32) * (r.config.denoising_steps if r.config.rule == "static" else 1)
                for a, r in zip(got, requests, strict=True)
            ) / seconds["ours"] / self.limits["flops_per_s"],
        )  # fmt: skip

    def single_crop(self) -> None:
        crop = picture(700, 84)
        for name, config, blocks in (
            ("a static-6", static(6, 128), 4),
            ("a threshold-0", at_once(256), 8),
            ("a static-32", static(32, 32), 1),
        ):
            self.compare(f"{name}, {blocks} blocks", [DecodeRequest(image=crop, config=config)])

    def reduced_precision(self) -> None:
        """bf16 with packed weights against the reference path in fp32; only where bf16 is fast."""
        if self.device.type != "cpu" or not bf16_is_fast_on_cpu():
            self.report.note("bf16", "this device has no native bf16 product on the CPU: not run")
            return
        plain, codec = build(self.size, self.device, torch.float32)
        narrow, _ = build(self.size, self.device, torch.bfloat16)
        ours, self.model = self.engine, plain
        self.engine = Engine(narrow, codec, cache_bytes=2**28, name=self.size)
        request = DecodeRequest(image=picture(700, 84), config=static(6, 128))
        self.compare("f bf16 packed against fp32 reference", [request])
        self.engine.close()
        self.engine = ours

    def page_mix(self) -> None:
        layout, crops = MIX["layout"], MIX["crops"]
        first = DecodeRequest(
            image=picture(*layout["size_px"]), task="layout",
            config=static(6, layout["num_tokens"] + 1),
        )  # fmt: skip
        rest = [
            DecodeRequest(
                image=picture(*crop["size_px"]), task=crop["task"],
                config=static(6, crop["num_tokens"] + 1),
            )
            for crop in crops
        ]  # fmt: skip
        self.compare(
            "b page: 1 layout + 14 crops", [first, *rest], repeats=max(1, self.repeats - 2)
        )

    def concurrency(self) -> None:
        config = static(6, 64)
        requests = [DecodeRequest(image=picture(420 + i % 9 * 28, 56), config=config)
                    for i in range(64)]  # fmt: skip
        sizes = (1, 4, 16, 64)
        runs: dict[str, Any] = {"reference": lambda: self.baseline(requests[:2])}
        for count in sizes:
            runs[str(count)] = lambda count=count: self.ours(requests[:count])
        seconds, _ = interleaved(runs, self.device, max(1, self.repeats - 2))
        base = 2 * 64 / seconds["reference"]
        rates = {str(count): count * 64 / seconds[str(count)] for count in sizes}
        self.report.case(
            "c requests at once",
            tokens_per_s_reference=base,
            **{f"tokens_per_s_{count}": rate for count, rate in rates.items()},
            **{f"ratio_{count}": rate / base for count, rate in rates.items()},
        )

    def image_tower(self) -> None:
        images = [picture(1036, 1036), *(picture(*crop["size_px"]) for crop in MIX["crops"])]
        patches = [self.patches(image) for image in images]

        @torch.inference_mode()
        def one_by_one() -> int:
            return sum(len(self.model.encode_images([p])[0]) for p in patches)

        @torch.inference_mode()
        def packed() -> int:
            return sum(len(f) for f in self.engine._model.encode_images(patches))

        @torch.inference_mode()
        def packed_twice() -> int:
            return sum(len(f) for f in self.engine._model.encode_images([*patches, *patches]))

        seconds, values = interleaved(
            {"one_by_one": one_by_one, "packed": packed, "twice": packed_twice},
            self.device,
            self.repeats,
        )
        self.report.case(
            "d image tower: 1 page + 14 crops",
            image_tokens=values["packed"],
            ms_one_by_one=1e3 * seconds["one_by_one"],
            ms_packed=1e3 * seconds["packed"],
            ratio=seconds["one_by_one"] / seconds["packed"],
            cost_of_twice_the_images=seconds["twice"] / seconds["packed"],
        )

    def growth(self) -> None:
        def run(width: int, height: int, blocks: int) -> Any:
            request = DecodeRequest(image=picture(width, height), config=static(6, 32 * blocks))
            return lambda: self.ours([request])

        prompts = {56: run(140, 56, 4), 224: run(560, 56, 4), 896: run(560, 224, 4)}
        blocks = {2: run(280, 28, 2), 4: run(280, 28, 4), 8: run(280, 28, 8), 16: run(280, 28, 16)}
        seconds, _ = interleaved(
            {**{f"prompt{k}": v for k, v in prompts.items()},
             **{f"blocks{k}": v for k, v in blocks.items()}},
            self.device, self.repeats,
        )  # fmt: skip
        self.report.case(
            "e growth",
            **{f"ms_4_blocks_{k // 28 * 2}_image_tokens": 1e3 * seconds[f"prompt{k}"]
               for k in prompts},
            **{f"ms_per_block_of_{k}": 1e3 * seconds[f"blocks{k}"] / k for k in blocks},
        )  # fmt: skip


def against_upstream(report: Report, folder: str, device: torch.device, repeats: int) -> None:
    """Time upstream's own code on a checkpoint folder that holds it, beside the engine on it."""
    from mdiff_adapters.engines import Request, open_engine

    crop = picture(700, 84)
    for name, config in (("static-6", static(6, 128)), ("threshold-0", at_once(256))):
        requests = [Request(id="crop", image=crop, decode=config)]
        sides = {
            side: open_engine(spec, device=str(device), dtype="bfloat16")
            for side, spec in (("upstream", f"reference:{folder}"), ("ours", folder))
        }
        seconds, answers = interleaved(
            {
                side: lambda e=engine, r=requests: list(e.answer(r))
                for side, engine in sides.items()
            },
            device,
            repeats,
        )
        upstream, ours = answers["upstream"][0], answers["ours"][0]
        report.case(
            f"upstream {name}",
            texts_equal=upstream.text == ours.text,
            forwards_upstream=upstream.num_forwards,
            forwards_ours=ours.num_forwards,
            tokens_per_s_upstream=upstream.num_tokens / seconds["upstream"],
            tokens_per_s_ours=ours.num_tokens / seconds["ours"],
            ratio=seconds["upstream"] / seconds["ours"],
        )


def main(argv: list[str] | None = None) -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--size", choices=tuple(SIZES), default="mid")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--upstream", metavar="DIR", help="a checkpoint with upstream's code")
    args = parser.parse_args(argv)
    device = choose_device(args.device)
    bench = Bench(args.size, device, choose_dtype(args.dtype, device), args.repeats)
    bench.single_crop()
    bench.page_mix()
    bench.concurrency()
    bench.image_tower()
    bench.growth()
    bench.reduced_precision()
    if args.upstream:
        against_upstream(bench.report, args.upstream, device, args.repeats)
    bench.report.finish()


if __name__ == "__main__":
    main()
