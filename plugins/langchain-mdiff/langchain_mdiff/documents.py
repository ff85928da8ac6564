"""From parsed pages to LangChain documents: the translation that loader and parser share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from langchain_core.documents import Document

from mdiff_adapters.document import ParsedPage
from mdiff_adapters.engines import Engine, EngineSpec
from mdiff_adapters.engines.registry import check_options, setting_names
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.export import page_to_markdown, page_to_text
from mdiff_adapters.export.elements import region_to_element
from mdiff_adapters.export.structure import has_content
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.provenance import (
    SCHEMA,
    Input,
    blocks_json,
    file_blocks_json,
    file_metadata,
    page_selection,
    pages_error,
    stable_id,
)

Mode = Literal["page", "single", "elements"]
Format = Literal["markdown", "text"]
TableFormat = Literal["html", "markdown"]

_ELEMENT_FIELDS = ("category", "element_id", "bbox", "parent_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFormat:
    r"""What becomes one Document, and how its text is written.

    Attributes:
        mode: ``page``: one a page; ``single``: one a file; ``elements``: one a region, with
            ``category``, ``element_id`` and ``bbox`` (fractions of the page, origin top left). A
            page, or else a region, that gave nothing but an error has the category ``error``.
        format: ``markdown`` or ``text``.
        table_format: ``html`` (a bare ``<table>``) or ``markdown``; for ``format="markdown"``.
        pages_delimiter: Between pages in mode ``single``; a form feed as other PDF loaders have it.
        include_blocks: Add ``mdiff_blocks``, a JSON string with the regions of the Document: of a
            page, of all pages with their ``page`` (mode ``single``), or the one region (mode
            ``elements``). Text splitters copy it into every chunk.
    """

    mode: Mode = "page"
    format: Format = "markdown"
    table_format: TableFormat = "html"
    pages_delimiter: str = "\n\f"
    include_blocks: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("mode", Mode), ("format", Format), ("table_format", TableFormat)):
            if getattr(self, name) not in get_args(allowed):
                raise ConfigError(
                    f"{name} = {getattr(self, name)!r} is unknown",
                    hint=f"allowed: {', '.join(get_args(allowed))}",
                )

    def text(self, page: ParsedPage, *, include_furniture: bool = False) -> str:
        """Return the text of a page."""
        if self.format == "text":
            return page_to_text(page, include_furniture=include_furniture)
        return page_to_markdown(
            page, table_format=self.table_format, include_furniture=include_furniture
        )


def make_parser(owner: type[Any], engine: EngineSpec | Engine, **options: Any) -> DocumentParser:
    """Return the parser of a loader.

    Args:
        owner: The class that takes the options; its other parameters are its own settings.
        engine: The engine.
        **options: Options of the parser, and of the engine where it is a spec.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """
    settings = setting_names(owner, DocumentParser)
    check_options(owner.__name__, settings, engine, options)
    return DocumentParser(engine, **options)


def load_documents(
    parser: DocumentParser,
    document: Input,
    form: DocumentFormat,
    metadata: Mapping[str, Any] | None = None,
) -> Iterator[Document]:
    """Parse one document and yield its LangChain documents as its pages are ready.

    Args:
        parser: Reads the pages.
        document: What is read.
        form: What becomes one Document.
        metadata: Known before, for example of a blob; wins over the file's own.

    Yields:
        The documents, with flat metadata of JSON scalars that is the same on every run.
    """
    with parser.open(document.source, name=document.name) as pages:
        base = {
            **file_metadata(pages),
            "format": form.format,
            "loader": "mdiff",
            "mdiff_schema": SCHEMA,
            **(metadata or {}),
        }
        if form.mode == "single":
            parts = list(pages)
            blocks = {"mdiff_blocks": file_blocks_json(parts)} if form.include_blocks else {}
            selection = page_selection(pages)
            yield Document(
                id=stable_id(document.digest, form.mode, *([selection] if selection else [])),
                page_content=form.pages_delimiter.join(form.text(page) for page in parts),
                metadata=base | blocks | _errors(*parts),
            )
            return
        for page in pages:
            where = {"page": page.index, "page_label": page.label}
            if form.mode == "elements":
                yield from _elements(page, document, form, base | where)
                continue
            blocks = {"mdiff_blocks": blocks_json(page)} if form.include_blocks else {}
            yield Document(
                id=stable_id(document.digest, form.mode, page.index),
                page_content=form.text(page),
                metadata=base | where | blocks | _errors(page),
            )


def _elements(
    page: ParsedPage, document: Input, form: DocumentFormat, base: dict[str, Any]
) -> Iterator[Document]:
    for region in page.regions:
        is_lost = not has_content(region)
        if is_lost and (region.error is None or page.error is not None):
            continue  # nothing to say, or the page says it once for all
        element = region_to_element(region, page)
        only = replace(page, regions=(region,))
        own: dict[str, Any] = {k: element[k] for k in _ELEMENT_FIELDS if k in element}
        if is_lost:
            own["category"] = "error"
        if form.include_blocks:
            own["mdiff_blocks"] = blocks_json(only)
        yield Document(
            id=stable_id(document.digest, form.mode, region.id),
            page_content=form.text(only, include_furniture=True),
            metadata=base | own | _errors(only),
        )
    if page.error is not None:
        yield Document(
            id=stable_id(document.digest, form.mode, page.index),
            page_content="",
            metadata=base | {"category": "error"} | _errors(page),
        )


def _errors(*pages: ParsedPage) -> dict[str, str]:
    error = pages_error(pages)
    return {} if error is None else {"mdiff_error": error}
