"""One command on a CUDA machine: parity of every fast path, then the full-size benchmark.

``make gpu-check`` needs only torch and the core, no weights and no network. Parity is in fp32
without TF32 against the oracle; the benchmark runs random weights of the released size in bf16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from mdiff_core import DecodeConfig, DecodeRequest, Engine
from mdiff_core.attention import choose_varlen
from mdiff_core.imaging import to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.prompts import Codec
from mdiff_core.reference import decode_reference
from mdiff_core.testing import write_random_checkpoint

from . import bench_decode
from .bench_decode import picture


def requests() -> list[DecodeRequest]:
    """A ragged batch over rules, thresholds and block lengths."""
    rules = ("dynamic", "static", "sequential", "entropy-bounded", "factor")
    return [
        DecodeRequest(
            image=picture(84 + 28 * (i % 5), 56),
            task=("text", "table", "formula")[i % 3],
            config=DecodeConfig(
                rule=rules[i % 5] if i % 2 else "dynamic",
                threshold=(0.3, 0.6, 0.95)[i % 3],
                denoising_steps=(6, 32)[i % 2],
                block_length=(32, 32, 8)[i % 3],
                max_tokens=72,
                ignore_end=True,
            ),
        )
        for i in range(16)
    ]


def parity(device: torch.device) -> bool:
    """Compare graphs and eager, alone and together, with the oracle; print each; return success."""
    ok = True
    batch = requests()
    with tempfile.TemporaryDirectory() as name:
        folder = write_random_checkpoint(Path(name), seed=1, gain=3.0)
        config = ModelConfig.from_folder(folder)
        model = load_model(folder, config, device=device, dtype=torch.float32)
        codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
        want = []
        for request in batch:
            patches = to_patches(
                request.image, patch_size=14, merge_size=2,
                min_pixels=config.image.min_pixels, max_pixels=config.image.max_pixels,
            )  # fmt: skip
            with torch.inference_mode():
                features = model.encode_images([patches])[0]
            ids = codec.prompt_ids(request.task, len(features))
            result = decode_reference(
                model, ids, features, request.config, max_tokens=72, end_ids=codec.end_ids
            )
            want.append((result.token_ids, result.step_map))
        for graphs in (False, True):
            with Engine.load(
                folder, device=device, dtype="fp32", cache_bytes=2**26, cuda_graphs=graphs,
                attention="sdpa",
            ) as engine:  # fmt: skip
                together = [(r.token_ids, r.step_map) for r in engine.generate(batch)]
                single = [engine.generate([request])[0] for request in batch]
                alone = [(r.token_ids, r.step_map) for r in single]
            for label, got in (("together", together), ("alone", alone)):
                same = sum(a == b for a, b in zip(got, want, strict=True))
                print(f"parity fp32 graphs={graphs} {label}: {same}/{len(want)}")
                ok &= same == len(want)
        ok &= tower_parity(model.to(torch.bfloat16), device)
    return ok


def tower_parity(model: torch.nn.Module, device: torch.device) -> bool:
    """Compare the image tower's variable-length kernels with SDPA in bf16."""
    ok = True
    patches = [
        to_patches(picture(w, h), patch_size=14, merge_size=2, min_pixels=3136, max_pixels=1605632)
        for w, h in ((280, 56), (140, 140), (560, 84))
    ]
    with torch.inference_mode():
        model.vision.varlen = None
        plain = torch.cat(model.encode_images(patches)).float()
        for prefer in ("varlen", "flash"):
            name, kernel = choose_varlen(device, torch.bfloat16, prefer)
            if kernel is None:
                print(f"image tower {prefer}: not here")
                continue
            model.vision.varlen = kernel
            other = torch.cat(model.encode_images(patches)).float()
            error = ((plain - other).norm() / plain.norm()).item()
            print(f"image tower {name} against sdpa, bf16: relative error {error:.1e}")
            ok &= error < 0.03
    return ok


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="full")
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--upstream", metavar="DIR", help="a checkpoint with upstream's code")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu-check needs a CUDA device; `make bench` measures on the CPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    start = time.perf_counter()
    ok = parity(torch.device("cuda"))
    print(f"parity {'holds' if ok else 'FAILS'} after {time.perf_counter() - start:.0f} s")
    options = ["--device", "cuda", "--dtype", "bf16", "--size", args.size]
    upstream = ["--upstream", args.upstream] if args.upstream else []
    bench_decode.main([*options, "--repeats", args.repeats, *upstream])
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
