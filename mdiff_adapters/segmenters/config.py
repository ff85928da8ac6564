"""The environment variable that the line detector respects."""

from __future__ import annotations

import os

__all__ = ["omp_num_threads"]


def omp_num_threads() -> int | None:
    """Return ``OMP_NUM_THREADS`` where it is a positive number, else None.

    ONNX Runtime does not read it by itself.
    """
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None
