"""The records that a plugin hands to the host: names and targets, nothing imported yet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mdiff_adapters.errors import ConfigError

API_VERSION = 1
"""Version of the hooks and records; raised when a plugin would have to change."""

_TARGET = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What every record says.

    Attributes:
        name: Unique among records of its kind.
        factory: ``module:attribute``, imported only when it is used.
        summary: One sentence for listings.
        requires: Distributions it needs with their version specifiers, for example
            ``{"langchain-core": ">=1.0,<2"}``; checked without importing them.
        api_version: The :data:`API_VERSION` it was written for.

    Raises:
        ConfigError: If the name is empty or the factory is not ``module:attribute``.
    """

    name: str
    factory: str
    summary: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    api_version: int = API_VERSION

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"{type(self).__name__}.name is empty")
        if not _TARGET.match(self.factory):
            raise ConfigError(
                f"{type(self).__name__}.factory = {self.factory!r} is not a target",
                hint="write module:attribute",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**values, "requires": dict(self.requires)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo(Registration):
    """A class that speaks a framework's interface.

    Attributes:
        framework: The framework, for example ``langchain``.
    """

    framework: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo(Registration):
    """A kind of engine: ``name:rest`` as a spec calls ``factory(EngineSpec)``, which returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterInfo(Registration):
    """A way to cut a page into requests: ``factory()`` returns the segmenter."""
