"""Exit codes, the same for all commands."""

from __future__ import annotations

import typer

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


class FailedPages:
    """Shows the reason for each page that cannot be read, and ends the command with the count."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, message: str) -> None:
        """Show why a page cannot be read, and count it."""
        self._count += 1
        typer.echo(f"error: {message}", err=True)

    def end_command(self) -> None:
        """Exit with :data:`FAILED` if there was one."""
        if self._count:
            noun = "page" if self._count == 1 else "pages"
            typer.echo(f"{self._count} {noun} could not be read", err=True)
            raise typer.Exit(FAILED)
