"""Entry point of the plugin host; imports no framework."""

from mdiff_adapters.adapter import AdapterInfo
from mdiff_adapters.hookspecs import hookimpl


@hookimpl
def mdiff_register_adapters() -> list[AdapterInfo]:
    """Return the LlamaIndex adapter."""
    return [
        AdapterInfo(
            name="llama-index",
            framework="llama-index",
            factory="llama_index.readers.mdiff.base:MDiffReader",
            summary="reader: PDFs and images to Documents, for SimpleDirectoryReader and pipelines",
            requires={"llama-index-core": ">=0.13,<0.15"},
        )
    ]
