"""The errors of the document layer: the one tree of :mod:`mdiff_core.errors`, re-exported.

Plugins and applications import from here; nothing else is defined in this module.
"""

from mdiff_core.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    DecodeError,
    DocumentError,
    DocumentNotFoundError,
    DuplicateAdapterError,
    EmptyDocumentError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    ImageError,
    InputTooLargeError,
    MDiffError,
    PageError,
    PasswordError,
    PasswordRequiredError,
    PluginError,
    RegionError,
    UnsupportedDocumentError,
    WrongPasswordError,
)

__all__ = [
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "CorruptDocumentError",
    "DecodeError",
    "DocumentError",
    "DocumentNotFoundError",
    "DuplicateAdapterError",
    "EmptyDocumentError",
    "EngineError",
    "EngineTimeoutError",
    "EngineUnavailableError",
    "ImageError",
    "InputTooLargeError",
    "MDiffError",
    "PageError",
    "PasswordError",
    "PasswordRequiredError",
    "PluginError",
    "RegionError",
    "UnsupportedDocumentError",
    "WrongPasswordError",
]
