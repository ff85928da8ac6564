"""Entry point of the plugin host; imports no framework."""

from mdiff_adapters.adapter import AdapterInfo
from mdiff_adapters.hookspecs import hookimpl

_REQUIRES = {"langchain-core": ">=1.0,<2"}


@hookimpl
def mdiff_register_adapters() -> list[AdapterInfo]:
    """Return the LangChain adapters."""
    return [
        AdapterInfo(
            name="langchain",
            framework="langchain",
            factory="langchain_mdiff.loader:MDiffLoader",
            summary="document loader: PDFs and images to Documents, page by page",
            requires=_REQUIRES,
        ),
        AdapterInfo(
            name="langchain-blob-parser",
            framework="langchain",
            factory="langchain_mdiff.parsers:MDiffBlobParser",
            summary="blob parser for GenericLoader, MimeTypeBasedParser and handlers=",
            requires=_REQUIRES,
        ),
        AdapterInfo(
            name="langchain-image-parser",
            framework="langchain",
            factory="langchain_mdiff.parsers:MDiffImageParser",
            summary="images_parser= of the PDF loaders: one text an image",
            requires=_REQUIRES,
        ),
    ]
