"""The one place where the Docling plugin reads environment variables.

docling-serve and the ``docling`` command can pick an engine by its kind without setting its
options; these variables are then the only way to set them. They are read when options are built.

``MDIFF_DOCLING_ENGINE``
    Engine of all stages, as a spec string; default ``tiny``.
``MDIFF_DOCLING_ENGINE_OPTIONS``
    Options of that engine as a JSON object, for example ``{"dtype": "bfloat16"}``.
``MDIFF_DOCLING_THRESHOLD``
    Confidence in [0, 1] above which a token is confirmed; default 0.95.
``MDIFF_DOCLING_ALLOW_REMOTE``
    ``1``: an ``http(s)://`` engine may be used although docling's remote services are not enabled.
``MDIFF_DOCLING_SEGMENTER``
    How the layout engine finds regions: ``auto``, ``model``, ``lines``, or a plugin's name.
``MDIFF_DOCLING_HEADER_ROWS``
    Which table rows become column headers: ``none``, ``first`` or ``auto``.
``MDIFF_DOCLING_READ_PICTURES``
    ``1``: text inside of pictures is read too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from mdiff_adapters.errors import ConfigError

DEFAULTS: dict[str, Any] = {
    "engine": "tiny",
    "engine_options": {},
    "threshold": 0.95,
    "allow_remote": False,
    "segmenter": "auto",
    "header_rows": "auto",
    "read_pictures": False,
}
"""Default of each option that has an environment variable, ``MDIFF_DOCLING_<NAME>``."""


def env_default(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the default of an option: its environment variable, else :data:`DEFAULTS`.

    Args:
        name: Option name, a key of :data:`DEFAULTS`.
        environ: Variables in place of the process environment.

    Returns:
        The value; its range is checked by the options class.

    Raises:
        ConfigError: If the variable cannot be read as the option's type.
    """
    default = DEFAULTS[name]
    variable = f"MDIFF_DOCLING_{name.upper()}"
    text = (os.environ if environ is None else environ).get(variable, "").strip()
    if not text:
        return dict(default) if isinstance(default, dict) else default
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes"):
            return True
        if text.lower() in ("0", "false", "no"):
            return False
        raise ConfigError(f"{variable} = {text!r} is not a switch", hint="write 1 or 0")
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{variable} = {text!r} is not a number") from None
    if isinstance(default, dict):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{variable} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError(
                f"{variable} = {text!r} is not an object",
                hint='write for example {"dtype": "bfloat16"}',
            )
        return value
    return text
