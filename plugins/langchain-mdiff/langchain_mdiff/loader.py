"""The loader: a file in, Documents out, page by page."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import PurePath
from typing import Any, BinaryIO

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document

from langchain_mdiff.documents import (
    DocumentFormat,
    Format,
    Mode,
    TableFormat,
    load_documents,
    make_parser,
)
from mdiff_adapters.engines import Engine, EngineSpec
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.offload import iterate_off_loop
from mdiff_adapters.parser import OnError
from mdiff_adapters.provenance import read_input


class MDiffLoader(BaseLoader):
    r"""Load PDFs and images with block-diffusion OCR.

    Setup:
        .. code-block:: bash

            pip install -U langchain-mdiff

    Instantiate:
        .. code-block:: python

            from langchain_mdiff import MDiffLoader

            loader = MDiffLoader("report.pdf", pages="1-3")

    Lazy load:
        .. code-block:: python

            for document in loader.lazy_load():
                print(document.metadata["page"], document.page_content[:80])

    Async load:
        .. code-block:: python

            async for document in loader.alazy_load():
                print(document.metadata["page_label"])

    The first page arrives when it is read, not when the file is; at most a window of pages is in
    memory. The engine is shared by all loaders of a process; the loader itself holds only its name,
    so it pickles and may be made once a file.

    Args:
        file_path: Path (str or PathLike) or URL (``https://…``, ``s3://…``, through fsspec).
        password: Password of an encrypted PDF.
        file: Binary file object or bytes in place of a path; read once, so that the loader can be
            run again.
        mode: ``page``, ``single`` or ``elements``, see
            :class:`~langchain_mdiff.documents.DocumentFormat`.
        pages: ``"1-3,7"`` (1-based) or 0-based integers; numbers in the metadata stay those of the
            document.
        format: ``markdown`` or ``text``.
        table_format: ``html`` or ``markdown``.
        pages_delimiter: Between pages in mode ``single``.
        include_blocks: Add the regions of a page as one JSON string.
        on_error: What a page that cannot be read becomes: ``record`` (an empty Document with
            ``mdiff_error``), ``skip`` or ``raise``. A file that cannot be opened always raises.
        engine: ``tiny``, a checkpoint folder or hub name, ``http://…``, a spec, or a live engine.
        threshold: Confidence above which a token is confirmed; None takes 0.95.
        fs: fsspec file system that ``file_path`` is on.
        **parser_options: Further options of :class:`mdiff_adapters.parser.DocumentParser`, for
            example ``device``, ``dpi``, ``window``, ``segmenter``.

    Raises:
        ConfigError: If an option is unknown or out of range, or neither or both of ``file_path``
            and ``file`` are given.
    """

    def __init__(
        self,
        file_path: str | os.PathLike[str] | PurePath | None = None,
        password: str | None = None,
        *,
        file: BinaryIO | bytes | None = None,
        mode: Mode = "page",
        pages: str | Sequence[int] | None = None,
        format: Format = "markdown",
        table_format: TableFormat = "html",
        pages_delimiter: str = "\n\f",
        include_blocks: bool = False,
        on_error: OnError = "record",
        engine: str | os.PathLike[str] | EngineSpec | Engine = "tiny",
        threshold: float | None = None,
        fs: Any = None,
        **parser_options: Any,
    ) -> None:
        if (file_path is None) == (file is None):
            raise ConfigError(
                "MDiffLoader needs a file_path or a file, and not both",
                hint="for a blob in memory use MDiffBlobParser",
            )
        self.file_path = file_path
        self._fs = fs
        self._engine: EngineSpec | Engine = (
            EngineSpec.parse(engine) if isinstance(engine, (str, os.PathLike)) else engine
        )
        self._form = DocumentFormat(
            mode=mode,
            format=format,
            table_format=table_format,
            pages_delimiter=pages_delimiter,
            include_blocks=include_blocks,
        )
        self._parser = make_parser(
            MDiffLoader,
            self._engine,
            threshold=threshold,
            pages=pages,
            password=password,
            on_error=on_error,
            **parser_options,
        )
        # Read at once: a second run and a pickle need the content, and a file object has one life.
        self._content = None if file is None else read_input(file)

    def lazy_load(self) -> Iterator[Document]:
        """Yield the documents as their pages are ready.

        Raises:
            DocumentError: If the file cannot be opened; says which and what to do.
            PageError: If a page fails and ``on_error="raise"``.
        """
        content = self._content or read_input(self.file_path, fs=self._fs)
        yield from load_documents(self._parser, content, self._form)

    async def alazy_load(self) -> AsyncIterator[Document]:
        """Yield the same documents without blocking the event loop.

        Pages are read in one thread an engine, so that any number of loaders may run at once; a
        cancelled load waits for the page that is being read, then closes the file.
        """
        pages = iterate_off_loop(self.lazy_load, self._engine)
        try:
            async for document in pages:
                yield document
        finally:
            await pages.aclose()  # type: ignore[attr-defined]  # an async generator
