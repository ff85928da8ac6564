"""The error tree of mdiff: every error says where it happened and what to do.

::

    MDiffError
    ├── ConfigError (ValueError)      a setting out of its range, or unknown
    ├── CheckpointError               a checkpoint folder that cannot be used
    ├── ImageError (ValueError)       one image that cannot be read or is out of bounds
    ├── CapacityError                 a single request larger than the cache budget
    ├── DecodeError                   the network produced something unusable (NaN logits)
    ├── TrainingError                 a training run that cannot go on
    ├── EngineError                   an engine that cannot answer
    │   ├── EngineUnavailableError    engine, server or package is not there
    │   └── EngineTimeoutError        no answer in time
    ├── DocumentError                 a document or page that cannot be read
    │   ├── DocumentNotFoundError (FileNotFoundError)
    │   ├── EmptyDocumentError        no bytes, or no pages
    │   ├── CorruptDocumentError      bytes that are not what they claim to be
    │   ├── UnsupportedDocumentError  a readable file of a kind this library does not take
    │   ├── PasswordError
    │   │   ├── PasswordRequiredError
    │   │   └── WrongPasswordError
    │   ├── InputTooLargeError        pixels beyond the budget
    │   └── PageError                 one page failed; the others are kept
    ├── RegionError                   one region of a page failed; the page is kept
    └── PluginError                   a plugin that cannot be loaded
        └── DuplicateAdapterError
"""

from __future__ import annotations

from typing import Any


class MDiffError(Exception):
    """Base of all errors raised by mdiff.

    Args:
        message: What went wrong, in one sentence.
        hint: What the caller can do about it, appended to the message.
        source: Path, URL or name of the document, as the caller gave it.
        page: 0-based page index in the document.
        region: Region id on the page.
        adapter: Adapter, engine or plugin name.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        source: str | None = None,
        page: int | None = None,
        region: str | None = None,
        adapter: str | None = None,
    ) -> None:
        self.message = message
        self.hint = hint
        self.source = source
        self.page = page
        self.region = region
        self.adapter = adapter
        super().__init__(self._render())

    def _render(self) -> str:
        where = [str(self.source)] if self.source is not None else []
        if self.page is not None:
            where.append(f"page {self.page + 1}")
        if self.region is not None:
            where.append(f"region {self.region}")
        if self.adapter is not None:
            where.append(f"adapter {self.adapter}")
        text = f"{', '.join(where)}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __str__(self) -> str:
        # Rendered late: a border that learns the page or the file may set the attribute.
        return self._render()

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions, and errors
        # cross process borders (worker pools of the frameworks).
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(kind: type[MDiffError], message: str, state: dict[str, Any]) -> MDiffError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class ConfigError(MDiffError, ValueError):
    """A setting is unknown or out of its range."""


class CheckpointError(MDiffError):
    """A checkpoint folder is missing, incomplete or of another format."""


class ImageError(MDiffError, ValueError):
    """One image cannot be read, or its size cannot be used."""


class CapacityError(MDiffError):
    """A single request needs more cache than the whole budget allows."""


class DecodeError(MDiffError):
    """The network produced something that is not an answer, for example NaN logits."""


class TrainingError(MDiffError):
    """A training run cannot go on: numbers that are not finite, a state that does not fit."""


class EngineError(MDiffError):
    """An engine could not answer."""


class EngineUnavailableError(EngineError):
    """The engine, its server or a package it needs is not available."""


class EngineTimeoutError(EngineError):
    """The engine gave no answer in time."""


class DocumentError(MDiffError):
    """A document, or a page of it, cannot be read."""


class DocumentNotFoundError(DocumentError, FileNotFoundError):
    """There is no file at the given path."""

    def __str__(self) -> str:
        # OSError has a __str__ of its own (errno, filename); keep ours.
        return self._render()


class EmptyDocumentError(DocumentError):
    """The document has no bytes or no pages."""


class CorruptDocumentError(DocumentError):
    """The bytes are not a readable document of the kind they claim to be."""


class UnsupportedDocumentError(DocumentError):
    """The file is of a kind that this library does not read."""


class PasswordError(DocumentError):
    """The document is encrypted and could not be opened."""


class PasswordRequiredError(PasswordError):
    """The document needs a password and none was given."""


class WrongPasswordError(PasswordError):
    """The given password does not open the document."""


class InputTooLargeError(DocumentError):
    """The page or image has more pixels than the budget allows."""


class PageError(DocumentError):
    """One page failed; the other pages of the document are kept."""


class RegionError(MDiffError):
    """One region of a page failed; the rest of the page is kept."""


class PluginError(MDiffError):
    """A plugin cannot be loaded or breaks the plugin contract."""


class DuplicateAdapterError(PluginError):
    """Two plugins register the same name."""
