"""Block-diffusion decoding of MinerU-Diffusion checkpoints.

``Engine.load("tiny")`` needs no network. Importing this package loads no torch; the first use of
``Engine`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdiff_core.config import TASKS, Capabilities, DecodeConfig, Task
from mdiff_core.types import DecodeRequest, DecodeResult

if TYPE_CHECKING:
    from mdiff_core.engine import Engine

__version__ = "0.1.0"

__all__ = [
    "TASKS",
    "Capabilities",
    "DecodeConfig",
    "DecodeRequest",
    "DecodeResult",
    "Engine",
    "Task",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from mdiff_core.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
