"""The LlamaIndex reader keeps the contract."""

from __future__ import annotations

from typing import Any

from llama_index.readers.mdiff import MDiffReader
from mdiff_adapters.testing import ReaderContract


class TestMDiffReader(ReaderContract):
    def make_adapter(self, source: Any, **options: Any) -> MDiffReader:
        return MDiffReader(**options)
