"""What the engines here have in common; engines of others need none of it. Loads no torch."""

from __future__ import annotations

from typing import Any

from mdiff_adapters.engines.registry import open_engine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import EngineError
from mdiff_core.closing import ClosedOnExit


class SpecEngine(ClosedOnExit):
    """The part of an engine that follows from its spec: name, closing, pickling.

    Args:
        spec: The spec it stands for; its name, and what it pickles as.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._closed = False

    @property
    def spec(self) -> EngineSpec:
        """The spec it was built from."""
        return self._spec

    @property
    def name(self) -> str:
        """The spec string it was built from."""
        return self._spec.spec

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> EngineError:
        return EngineError(
            "the engine is closed", hint="open_engine builds a new one", adapter=self.name
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Models and connections do not travel to another process; what they were built from does.
        return (open_engine, (self._spec,))
