"""The reader: a file in, LlamaIndex Documents out, page by page."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import unquote, urlsplit

from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_serializer
from llama_index.core.readers.base import BasePydanticReader
from llama_index.core.schema import Document, MediaResource
from typing_extensions import Self

from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.engines import Engine, EngineSpec, open_engine
from mdiff_adapters.engines.registry import check_options, setting_names
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import is_key, mask_keys
from mdiff_adapters.errors import ConfigError, DocumentError
from mdiff_adapters.export import page_to_markdown, page_to_text
from mdiff_adapters.offload import iterate_off_loop
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.provenance import (
    Input,
    blocks_json,
    file_blocks_json,
    page_selection,
    pages_error,
    read_input,
    stable_id,
)
from mdiff_adapters.sources import DocumentSource, open_source
from mdiff_core.config import suggest

if TYPE_CHECKING:
    from PIL import Image

ExportType = Literal["markdown", "text", "docling_json"]
_PARSER_SETTINGS = setting_names(DocumentParser)
File = str | os.PathLike[str] | PurePath | bytes | BinaryIO


class MDiffReader(BasePydanticReader):
    """Read PDFs and images with block-diffusion OCR.

    Works as it is, and as the extractor of a directory reader::

        from llama_index.readers.mdiff import MDiffReader

        documents = MDiffReader().load_data("report.pdf")

        reader = SimpleDirectoryReader("docs", file_extractor={".pdf": MDiffReader()})

    The reader holds settings only and pickles as such; the engine is built on first use and shared
    by everything in a process that names it. A setting may be changed, and holds from the next file
    on. Engine options with ``key`` in their name are neither shown nor serialised, but pickled:
    workers need them.

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
        page_images: ``resource`` puts a PNG of the page into ``Document.image_resource``; only
            where a Document is a page.
        include_blocks: Add ``mdiff_blocks``, a JSON string with the regions and their boxes, and
            their ``page`` where a Document is a file; excluded from embeddings and prompts, but
            copied into every chunk.
        skip_empty: Leave out pages without text; by default the number of pages is kept.
        on_error: What a page that cannot be read becomes: ``record`` (an empty Document with
            ``mdiff_error``), ``skip`` or ``raise``. A file that cannot be opened always raises.
        parser_options: Further options of :class:`mdiff_adapters.parser.DocumentParser`.

    Raises:
        ConfigError: If a setting or option is unknown or out of range, or two do not go together.
    """

    model_config = ConfigDict(validate_assignment=True)

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

    # The engine as it was given, with the settings it was given as.
    _given: tuple[tuple[str, dict[str, Any]], EngineSpec | Engine] = PrivateAttr()

    def __init__(
        self, engine: str | os.PathLike[str] | EngineSpec | Engine = "tiny", **settings: Any
    ) -> None:
        _check_names(engine, settings, tuple(type(self).model_fields))
        live: Engine | None = None
        if isinstance(engine, (str, os.PathLike)):
            settings["engine"] = os.fspath(engine)
        else:
            options = settings.pop("engine_options", {})
            if not isinstance(engine, EngineSpec):
                live = open_engine(engine, **options)
                engine, options = _spec_of(live), {}
            options = {**dict(engine.options), **options}
            settings |= {"engine": engine.spec, "engine_options": options}
        settings.setdefault("is_remote", EngineSpec.parse(settings["engine"]).kind == "http")
        super().__init__(**settings)
        spec = EngineSpec.parse(self.engine, **self.engine_options)
        named = (self.engine, dict(self.engine_options))
        self._given = (named, spec if live is None else live)
        self._make_parser()  # wrong settings are refused here, not at the first file

    @property
    def _engine(self) -> EngineSpec | Engine:
        named, given = self._given
        if named == (self.engine, self.engine_options):
            return given
        return EngineSpec.parse(self.engine, **self.engine_options)

    def _make_parser(self) -> DocumentParser:
        """Return a parser with the settings as they are now; it opens nothing and costs nothing."""
        engine = self._engine
        if isinstance(engine, EngineSpec):
            engine.check_options()
        for name in self.parser_options:
            if name in type(self).model_fields and name in _PARSER_SETTINGS:
                raise ConfigError(
                    f"{name} in parser_options is a setting of the reader itself",
                    hint=f"write MDiffReader({name}=…)",
                )
        check_options("MDiffReader.parser_options", _PARSER_SETTINGS, engine, self.parser_options)
        if self.page_images == "resource" and self._whole_files:
            raise ConfigError(
                "page_images='resource' needs one Document a page: a Document has one image",
                hint="leave split_by_page=True, and export_type 'markdown' or 'text'",
            )
        return DocumentParser(
            engine,
            threshold=self.threshold,
            pages=self.pages,
            password=self.password,
            on_error=self.on_error,
            **self.parser_options,
        )

    @property
    def _whole_files(self) -> bool:
        return self.export_type == "docling_json" or not self.split_by_page

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the reader is serialised."""
        return "MDiffReader"

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, with changed settings if asked; unlike the base class's, they are checked.

        Args:
            update: The changed settings.
            deep: Whether settings that are containers are copied too.

        Raises:
            ValueError: If a changed setting is unknown or of the wrong kind.
            ConfigError: If it is out of range, or two settings do not go together.
        """
        copied = super().model_copy(deep=deep)
        for name, value in (update or {}).items():
            setattr(copied, name, value)
        copied._make_parser()
        return copied

    @field_serializer("engine_options", "parser_options")
    def _without_keys(self, options: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if not is_key(name)}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if name in ("engine_options", "parser_options"):
                value = mask_keys(value)
            yield name, value

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
        parser = self._make_parser()
        with ExitStack() as stack:
            document = stack.enter_context(parser.open(content.source, name=content.name))
            pictures = stack.enter_context(self._open_pictures(content, parser))
            shown: dict[str, Any] = {"file_name": _file_name(document.source)}
            if document.metadata.get("title"):
                shown["title"] = document.metadata["title"]
            if self._whole_files:
                pages = list(document)
                parsed = ParsedDocument(
                    source=document.source,
                    pages=tuple(pages),
                    num_pages=document.num_pages,
                    metadata=document.metadata,
                )
                name = page_selection(document) or "file"
                yield self._document(content, name, self._whole(parsed), shown, extra_info, *pages)
                return
            for page in document:
                text = self._text(page)
                if self.skip_empty and not text.strip() and pages_error([page]) is None:
                    continue
                labelled = {"page_label": page.label, **shown}
                one = self._document(content, page.index, text, labelled, extra_info, page)
                if pictures is not None:
                    self._add_picture(one, pictures, page)
                yield one

    def _open_pictures(
        self, content: Input, parser: DocumentParser
    ) -> AbstractContextManager[DocumentSource | None]:
        """Open the document a second time for page images, which parsing does not keep."""
        if self.page_images == "none":
            return nullcontext()
        return open_source(
            content.source,
            password=self.password,
            name=content.name,
            limits=parser.limits,
        )

    def _add_picture(self, one: Document, pictures: DocumentSource, page: ParsedPage) -> None:
        try:
            one.image_resource = _png(pictures.load(page.index).image)
        except DocumentError as error:
            if self.on_error == "raise":
                raise
            # A page that could not be rendered for reading has said so already.
            if page.error is None:
                found = filter(None, (one.metadata.get("mdiff_error"), f"no page image: {error}"))
                _hide(one, mdiff_error="; ".join(found))

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
        error = pages_error(pages)
        if error is not None:
            hidden["mdiff_error"] = error
        if self.include_blocks:
            blocks = file_blocks_json(pages) if self._whole_files else blocks_json(pages[0])
            hidden["mdiff_blocks"] = blocks
        one = Document(
            id_=stable_id(content.digest, self.export_type, part), text=text, metadata={**shown}
        )
        _hide(one, **hidden)
        one.metadata.update(extra_info)
        return one


def _hide(document: Document, **metadata: str) -> None:
    """Add metadata that is for programs only, neither embedded nor shown to a model."""
    document.metadata.update(metadata)
    for keys in (document.excluded_embed_metadata_keys, document.excluded_llm_metadata_keys):
        keys.extend(name for name in metadata if name not in keys)


def _check_names(engine: Any, settings: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse unknown settings, and say where those belong that the parser or the engine has."""
    options: tuple[str, ...] = ()
    if isinstance(engine, (str, os.PathLike, EngineSpec)):
        options = EngineSpec.parse(engine).known_options or ()
    for name in settings:
        if name in known:
            continue
        hint = suggest(name, (*known, *_PARSER_SETTINGS, *options))
        for field, names in (("parser_options", _PARSER_SETTINGS), ("engine_options", options)):
            if name in names:
                hint = f"write {field}={{{name!r}: …}}"
        raise ConfigError(f"MDiffReader has no setting {name!r}", hint=hint)


def _spec_of(engine: Engine) -> EngineSpec:
    """Return what another process builds the same engine from: its spec, else its name."""
    return engine.spec if isinstance(engine, SpecEngine) else EngineSpec(engine.name)


def _png(image: Image.Image) -> MediaResource:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return MediaResource(data=buffer.getvalue(), mimetype="image/png")


def _file_name(source: str) -> str:
    """Return the file's name; of a URL without its query, which may hold a key."""
    if "://" in source:
        return unquote(PurePosixPath(urlsplit(source).path).name)
    return PurePath(source).name


def _each(given: Any) -> Iterator[Any]:
    kinds = (str, os.PathLike, PurePath, bytes, bytearray, memoryview)
    one = isinstance(given, kinds) or hasattr(given, "read")
    return iter((given,) if one else given)
