"""Interleaved timing, limits measured on the spot, and the report of a benchmark."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def interleaved(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int = 1
) -> tuple[dict[str, float], dict[str, Any]]:
    """Time several functions in turn; return the median seconds and the last value of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    values: dict[str, Any] = {}
    warmup = min(warmup, repeats - 1)
    for i in range(warmup + repeats):
        for name, run in runs.items():
            sync(device)
            start = time.perf_counter()
            values[name] = run()
            sync(device)
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}, values


def measured_limits(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Return the best FLOP/s of a large product and the best bytes/s of a large read."""
    size = 8192 if device.type == "cuda" else 1536
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    big = torch.empty(2**29 if device.type == "cuda" else 2**25, device=device)
    best_product = best_read = float("inf")
    for _ in range(8):
        for kind, run in (("product", lambda: a @ b), ("read", big.sum)):
            sync(device)
            start = time.perf_counter()
            run()
            sync(device)
            took = time.perf_counter() - start
            if kind == "product":
                best_product = min(best_product, took)
            else:
                best_read = min(best_read, took)
    return {
        "flops_per_s": 2 * size**3 / best_product,
        "bytes_per_s": big.numel() * 4 / best_read,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Return what a number needs beside it."""
    info: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", "-m", *_module_and_args()]),
        "commit": _commit(),
    }
    if device.type == "cuda":
        info["cuda"] = torch.version.cuda
    return info


def _module_and_args() -> list[str]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return [spec.name if spec else Path(sys.argv[0]).name, *sys.argv[1:]]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    family, model = fields.get("cpu family", "?"), fields.get("model", "?")
    return f"{fields.get('model name', 'CPU')} family {family} model {model}"


def _commit() -> str:
    try:
        out = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return out.stdout.strip()


class Report:
    """Prints a line a case and, at the end, everything as one JSON object on the last line."""

    def __init__(self, device: torch.device) -> None:
        self._all: dict[str, Any] = {"machine": machine(device), "cases": {}}
        print(json.dumps(self._all["machine"], indent=1))

    def note(self, name: str, value: Any) -> None:
        self._all[name] = value
        print(f"{name}: {json.dumps(value)}", flush=True)

    def case(self, name: str, **values: Any) -> None:
        tidy = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
        self._all["cases"][name] = tidy
        print(f"{name:34} " + "  ".join(f"{k}={v}" for k, v in tidy.items()), flush=True)

    def finish(self) -> None:
        print(json.dumps(self._all))
