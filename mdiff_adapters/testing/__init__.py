"""For authors of plugins: an engine that follows a script, small documents, and the contracts.

Subclass a contract in a test module of your own, name the class ``Test…``, and fill in its
``make_…`` methods; pytest runs the rest. See ``docs/plugins.md``.
"""

from mdiff_adapters.testing.contracts import (
    DocumentContract,
    EngineContract,
    LoaderContract,
    ParserContract,
    ReaderContract,
)
from mdiff_adapters.testing.documents import sample_pdf
from mdiff_adapters.testing.engine import ONE_TEXT_REGION, ScriptedEngine, default_script

__all__ = [
    "ONE_TEXT_REGION",
    "DocumentContract",
    "EngineContract",
    "LoaderContract",
    "ParserContract",
    "ReaderContract",
    "ScriptedEngine",
    "default_script",
    "sample_pdf",
]
