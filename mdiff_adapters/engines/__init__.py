"""Engines: whatever answers (image, task) requests, named by one string. Loads no torch."""

from mdiff_adapters.engines.base import Answer, Capabilities, DecodeConfig, Engine, Request, Task
from mdiff_adapters.engines.registry import close_engines, open_engine
from mdiff_adapters.engines.spec import EngineSpec

__all__ = [
    "Answer",
    "Capabilities",
    "DecodeConfig",
    "Engine",
    "EngineSpec",
    "Request",
    "Task",
    "close_engines",
    "open_engine",
]
