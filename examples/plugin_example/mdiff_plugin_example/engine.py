"""An engine around another: everything is passed on, digits in text answers are hidden."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from typing_extensions import Self

from mdiff_adapters.engines import Answer, Capabilities, Engine, EngineSpec, Request, open_engine
from mdiff_adapters.errors import EngineError


class RedactingEngine:
    """Hides every digit of what another engine reads."""

    def __init__(self, inner: Engine, name: str) -> None:
        self._inner = inner
        self.name = name
        self.closed = False

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Open the engine that stands behind ``redact:``; options are passed on to it."""
        return cls(open_engine(spec.target, **dict(spec.options)), spec.spec)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the other engine."""
        return self._inner.capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield the other engine's answers; layout answers are numbers and stay."""
        if self.closed:
            raise EngineError("the engine is closed", adapter=self.name)
        return self._answer(requests)

    def _answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        layouts: set[str] = set()

        def watched() -> Iterator[Request]:
            for request in requests:
                if request.task == "layout":
                    layouts.add(request.id)
                yield request

        for answer in self._inner.answer(watched()):
            if answer.id not in layouts:
                answer = replace(answer, text=re.sub(r"\d", "█", answer.text))
            yield answer

    def close(self) -> None:
        """Refuse further calls; the other engine is shared and closed by its owner."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
