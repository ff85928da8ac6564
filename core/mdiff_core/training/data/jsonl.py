"""Files of one JSON object a line, as programs and people write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mdiff_core.errors import ConfigError


def read_json_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read a file of one JSON object a line; empty lines are passed over.

    Args:
        path: UTF-8, with or without the byte order mark that some editors write.

    Returns:
        File and line for messages, and the object, in the order of the file.

    Raises:
        ConfigError: If the file cannot be read, or a line is no object; the line is named.
    """
    try:
        # Not splitlines(): texts hold the line separators of Unicode, which JSON does not escape.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{where} is no JSON object")
        found.append((where, value))
    return found
