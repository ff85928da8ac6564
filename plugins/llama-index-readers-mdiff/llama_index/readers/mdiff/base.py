"""The reader: a file in, LlamaIndex Documents out, page by page."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.readers.base import BasePydanticReader
from llama_index.core.schema import Document, MediaResource

from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.engines import Engine, EngineSpec, open_engine
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.export import page_to_markdown, page_to_text
from mdiff_adapters.offload import iterate_off_loop
from mdiff_adapters.parser import DocumentParser, DocumentStream
from mdiff_adapters.provenance import Input, blocks_json, page_error, read_input, stable_id
from mdiff_adapters.sources import DocumentSource, open_source

if TYPE_CHECKING:
    from PIL import Image

ExportType = Literal["markdown", "text", "docling_json"]
File = str | os.PathLike[str] | PurePath | bytes | BinaryIO


class MDiffReader(BasePydanticReader):
    """Read PDFs and images with block-diffusion OCR.

    Works as it is, and as the extractor of a directory reader::

        from llama_index.readers.mdiff import MDiffReader

        documents = MDiffReader().load_data("report.pdf")

        reader = SimpleDirectoryReader("docs", file_extractor={".pdf": MDiffReader()})

    The reader holds settings only and pickles as such; the engine is built on first use and shared
    by everything in a process that names it.

    Args:
        engine: ``tiny``, a checkpoint folder or hub name, ``http://…``, a spec, or a live engine.
        engine_options: Options of the engine, for example ``{"device": "cuda"}``.
        threshold: Confidence above which a token is confirmed; None takes 0.95.
        export_type: ``markdown`` or ``text``: one Document a page (or a file, see
            ``split_by_page``); ``docling_json``: one a file, for ``DoclingNodeParser``, with page
            and box of every item; needs docling-core.
        split_by_page: Whether each page is a Document of its own.
        pages: ``"1-3,7"`` (1-based) or 0-based integers.
        password: Password of encrypted PDFs; never serialised.
        table_format: ``html`` (a bare ``<table>``) or ``markdown``.
        page_images: ``resource`` puts a PNG of the page into ``Document.image_resource``.
        include_blocks: Add ``mdiff_blocks``, a JSON string with the regions and their boxes;
            excluded from embeddings and prompts, but copied into every chunk.
        skip_empty: Leave out pages without text; by default the number of pages is kept.
        on_error: What a page that cannot be read becomes: ``record`` (an empty Document with
            ``mdiff_error``), ``skip`` or ``raise``. A file that cannot be opened always raises.
        parser_options: Further options of :class:`mdiff_adapters.parser.DocumentParser`.
    """

    engine: str = Field(default="tiny", description="Name of the engine.")
    engine_options: dict[str, Any] = Field(default_factory=dict, description="Its options.")
    threshold: float | None = Field(default=None, description="Confidence limit of a token.")
    export_type: ExportType = Field(default="markdown", description="What a Document holds.")
    split_by_page: bool = Field(default=True, description="One Document a page.")
    pages: str | Sequence[int] | None = Field(default=None, description="Selected pages.")
    password: str | None = Field(
        default=None, description="Password of encrypted PDFs.", exclude=True, repr=False
    )
    table_format: Literal["html", "markdown"] = Field(default="html", description="Tables as.")
    page_images: Literal["none", "resource"] = Field(default="none", description="Page images.")
    include_blocks: bool = Field(default=False, description="Add the regions as JSON.")
    skip_empty: bool = Field(default=False, description="Leave out pages without text.")
    on_error: Literal["record", "skip", "raise"] = Field(
        default="record", description="What a failed page becomes."
    )
    parser_options: dict[str, Any] = Field(default_factory=dict, description="Further options.")

    _engine: Any = PrivateAttr(default=None)
    _parser: DocumentParser = PrivateAttr()

    def __init__(
        self, engine: str | os.PathLike[str] | EngineSpec | Engine = "tiny", **settings: Any
    ) -> None:
        unknown = sorted(set(settings) - set(type(self).model_fields))
        if unknown:
            raise ConfigError(
                f"MDiffReader has no setting {unknown[0]!r}",
                hint=f"known: {', '.join(type(self).model_fields)}",
            )
        live: Engine | None = None
        if isinstance(engine, EngineSpec):
            options = {**dict(engine.options), **settings.pop("engine_options", {})}
            settings |= {"engine": engine.spec, "engine_options": options}
        elif isinstance(engine, (str, os.PathLike)):
            settings["engine"] = os.fspath(engine)
        else:
            live = open_engine(engine)
            settings["engine"] = live.name
        settings.setdefault("is_remote", EngineSpec.parse(settings["engine"]).kind == "http")
        super().__init__(**settings)
        spec = EngineSpec.parse(self.engine, **self.engine_options)
        self._engine = live if live is not None else spec
        self._parser = DocumentParser(
            self._engine,
            threshold=self.threshold,
            pages=self.pages,
            password=self.password,
            on_error=self.on_error,
            **self.parser_options,
        )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the reader is serialised."""
        return "MDiffReader"

    def __getstate__(self) -> dict[str, Any]:
        # The base class deletes what cannot be pickled from the live object; settings always can.
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            "__dict__": fields,
            "__pydantic_private__": None,
            "__pydantic_extra__": None,
            "__pydantic_fields_set__": set(fields),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["__dict__"])  # type: ignore[misc]  # as the base class does

    def lazy_load_data(
        self,
        file: File | Iterable[File] | None = None,
        extra_info: dict[str, Any] | None = None,
        fs: Any = None,
        *,
        file_path: File | Iterable[File] | None = None,
    ) -> Iterator[Document]:
        """Yield Documents as their pages are ready.

        Args:
            file: Path (str, ``Path``, ``PurePosixPath``), URL, bytes or binary file object, or
                several of these.
            extra_info: Metadata of every Document; copied, and wins over ours.
            fs: fsspec file system that ``file`` is a path on.
            file_path: Another name for ``file``.

        Raises:
            ConfigError: If no file is given.
            DocumentError: If a file cannot be opened; says which and what to do.
            PageError: If a page fails and ``on_error="raise"``.
        """
        given = file if file is not None else file_path
        if given is None:
            raise ConfigError("MDiffReader needs a file", hint="load_data('report.pdf')")
        for one in _each(given):
            yield from self._read(read_input(one, fs=fs), dict(extra_info or {}))

    async def aload_data(self, *args: Any, **load_kwargs: Any) -> list[Document]:
        """Return the Documents without blocking the event loop."""
        pages = iterate_off_loop(lambda: self.lazy_load_data(*args, **load_kwargs), self._engine)
        return [document async for document in pages]

    async def alazy_load_data(self, *args: Any, **load_kwargs: Any) -> Iterable[Document]:
        """Return the Documents without blocking the event loop.

        The interface wants a plain iterable, which could only be advanced on the loop; so all are
        read, off the loop, before this returns.
        """
        return await self.aload_data(*args, **load_kwargs)

    # -- translation -------------------------------------------------------------------------

    def _read(self, content: Input, extra_info: dict[str, Any]) -> Iterator[Document]:
        with ExitStack() as stack:
            document = stack.enter_context(self._parser.open(content.source, name=content.name))
            pictures = stack.enter_context(self._open_pictures(content))
            shown: dict[str, Any] = {"file_name": PurePath(document.source).name}
            if document.metadata.get("title"):
                shown["title"] = document.metadata["title"]
            if self.export_type == "docling_json" or not self.split_by_page:
                pages = list(document)
                parsed = ParsedDocument(
                    source=document.source,
                    pages=tuple(pages),
                    num_pages=document.num_pages,
                    metadata=document.metadata,
                )
                name = _selection(document)
                yield self._document(content, name, self._whole(parsed), shown, extra_info, *pages)
                return
            for page in document:
                text = self._text(page)
                if self.skip_empty and not text.strip() and page.error is None:
                    continue
                labelled = {"page_label": page.label, **shown}
                one = self._document(content, page.index, text, labelled, extra_info, page)
                if pictures is not None:
                    one.image_resource = _png(pictures.load(page.index).image)
                yield one

    def _open_pictures(self, content: Input) -> AbstractContextManager[DocumentSource | None]:
        """Open the document a second time for page images, which parsing does not keep."""
        if self.page_images == "none":
            return nullcontext()
        return open_source(content.source, password=self.password, name=content.name)

    def _text(self, page: ParsedPage) -> str:
        if self.export_type == "text":
            return page_to_text(page)
        return page_to_markdown(page, table_format=self.table_format)

    def _whole(self, parsed: ParsedDocument) -> str:
        if self.export_type != "docling_json":
            return "\n\n".join(filter(None, map(self._text, parsed.pages)))
        exported: str = parsed.to_docling().model_dump_json()
        return exported

    def _document(
        self,
        content: Input,
        part: str | int,
        text: str,
        shown: dict[str, Any],
        extra_info: dict[str, Any],
        *pages: ParsedPage,
    ) -> Document:
        hidden: dict[str, Any] = {}
        errors = [error for page in pages if (error := page_error(page)) is not None]
        if errors:
            hidden["mdiff_error"] = "; ".join(errors)
        whole = self.export_type == "docling_json" or not self.split_by_page
        if self.include_blocks and not whole:
            hidden["mdiff_blocks"] = blocks_json(pages[0])
        return Document(
            id_=stable_id(content.digest, self.export_type, part),
            text=text,
            metadata={**shown, **hidden, **extra_info},
            excluded_embed_metadata_keys=list(hidden),
            excluded_llm_metadata_keys=list(hidden),
        )


def _selection(document: DocumentStream) -> str:
    """Return what tells Documents of different pages of one file apart."""
    if tuple(document.page_indices) == tuple(range(document.num_pages)):
        return "file"
    return f"pages {','.join(map(str, document.page_indices))}"


def _png(image: Image.Image) -> MediaResource:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return MediaResource(data=buffer.getvalue(), mimetype="image/png")


def _each(given: Any) -> Iterator[Any]:
    one = isinstance(given, (str, os.PathLike, PurePath, bytes, bytearray)) or hasattr(
        given, "read"
    )
    return iter((given,) if one else given)
