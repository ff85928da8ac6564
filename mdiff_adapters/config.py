"""The one place where the document layer reads environment variables.

``MDIFF_LOAD_PLUGINS``
    Names of the plugins that may load, comma separated; unset allows all, empty allows none.
``MDIFF_DISABLE_PLUGINS``
    Names of plugins that must not load.
``MDIFF_STRICT_PLUGINS``
    ``1``: a plugin that fails raises, in place of being listed with its reason.
``MDIFF_API_KEY``
    Key sent to an ``http(s)://`` engine as a bearer token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Which plugins may load.

    Attributes:
        load: Allow list of plugin names; None allows all.
        disable: Deny list; wins over ``load``.
        strict: Raise where a plugin fails.
    """

    load: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    strict: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environ``, by default the process environment."""
        values = os.environ if environ is None else environ
        allowed = values.get("MDIFF_LOAD_PLUGINS")
        return cls(
            load=None if allowed is None else _names(allowed),
            disable=_names(values.get("MDIFF_DISABLE_PLUGINS", "")),
            strict=values.get("MDIFF_STRICT_PLUGINS", "").lower() in ("1", "true", "yes"),
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def server_api_key() -> str | None:
    """Return the key for ``http(s)://`` engines, or None."""
    return os.environ.get("MDIFF_API_KEY") or None
