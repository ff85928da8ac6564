"""Exit codes, the same for all commands."""

from __future__ import annotations

from mdiff_adapters.errors import CheckpointError, ConfigError

FAILED = 1
"""A document, or a page of one, could not be read or written; a run could not go on."""
WRONG_USAGE = 2
"""A setting that nothing could be done with, or an engine that cannot be opened."""


def exit_code(error: Exception, *, of_document: bool = True) -> int:
    """Return the code of a command that an error ended.

    Args:
        error: The error.
        of_document: Whether a setting may be wrong for the document alone that the error names: a
            page that it does not have. Else what it names is the command's own.
    """
    if isinstance(error, (ConfigError, CheckpointError)):
        return FAILED if of_document and error.source is not None else WRONG_USAGE
    return FAILED
