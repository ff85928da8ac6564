"""Exit codes, the same for all commands."""

from __future__ import annotations

from mdiff_adapters.errors import CheckpointError, ConfigError

FAILED = 1
"""A document, or a page of one, could not be read or written; a run could not go on."""
WRONG_USAGE = 2
"""A setting that nothing could be done with, or an engine that cannot be opened."""


def exit_code(error: Exception) -> int:
    """Return the code of a command that an error ended."""
    if isinstance(error, (ConfigError, CheckpointError)):
        # A setting that is wrong for one document names it: a page that it does not have.
        return WRONG_USAGE if error.source is None else FAILED
    return FAILED
