"""The LangChain adapters keep the contracts."""

from __future__ import annotations

from typing import Any

from langchain_core.document_loaders import BaseBlobParser, BaseLoader, Blob

from langchain_mdiff import MDiffBlobParser, MDiffLoader
from mdiff_adapters.testing import LoaderContract, ParserContract


class TestMDiffLoader(LoaderContract):
    def make_adapter(self, source: Any, **options: Any) -> BaseLoader:
        return MDiffLoader(source, **options)


class TestMDiffBlobParser(ParserContract):
    def make_parser(self, **options: Any) -> BaseBlobParser:
        return MDiffBlobParser(**options)

    def make_blob(self, data: bytes, mime_type: str, **metadata: Any) -> Blob:
        return Blob.from_data(data, mime_type=mime_type, metadata=metadata)
