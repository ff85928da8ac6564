"""Answers that an engine gives without asking its model: one shape for all engines."""

from __future__ import annotations

from mdiff_adapters.engines.base import Answer, Engine, Request
from mdiff_adapters.errors import EngineError, EngineTimeoutError


def failed(request_id: str, error: Exception) -> Answer:
    """Return the answer of a request that failed with ``error``."""
    timeout = isinstance(error, (EngineTimeoutError, TimeoutError))
    return Answer(id=request_id, finish_reason="timeout" if timeout else "error", error=error)


def unsupported(request: Request, engine: Engine) -> Answer | None:
    """Return the answer to a task that ``engine`` was not trained for; None if it was."""
    tasks = engine.capabilities.tasks
    if request.task in tasks:
        return None
    error = EngineError(
        f"task {request.task!r} is not among its tasks ({', '.join(tasks)})",
        hint="the released checkpoint opendatalab/MinerU-Diffusion-V1-0320-2.5B has all four",
        adapter=engine.name,
    )
    return failed(request.id, error)
