"""Blob parsers: for loaders that fetch, and for loaders that find pictures in PDFs."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from langchain_core.document_loaders import BaseBlobParser, Blob
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
from mdiff_adapters.errors import ConfigError, EngineUnavailableError, ImageError, MDiffError
from mdiff_adapters.provenance import read_input
from mdiff_adapters.sources.sniffing import display_name

logger = logging.getLogger(__name__)

Channels = Literal["auto", "rgb", "bgr", "rgba", "bgra", "cmyk"]


class MDiffBlobParser(BaseBlobParser):
    r"""Parse PDF and image blobs into Documents, lazily.

    .. code-block:: python

        loader = GenericLoader.from_filesystem("docs", glob="**/*.pdf", parser=MDiffBlobParser())

    The blob's metadata is merged and wins, so ``source`` stays what the loader that fetched it
    says and never becomes a temporary path.

    Args:
        mode: ``page``, ``single`` or ``elements``.
        engine: ``tiny``, a checkpoint folder or hub name, ``http://…``, a spec, or a live engine.
        format: ``markdown`` or ``text``.
        table_format: ``html`` or ``markdown``.
        pages_delimiter: Between pages in mode ``single``.
        include_blocks: Add the regions of a page as one JSON string.
        **parser_options: Options of :class:`mdiff_adapters.parser.DocumentParser`: ``password``,
            ``pages``, ``threshold``, ``on_error``, ``device``, ``dpi``, ``window``, ….
    """

    def __init__(
        self,
        *,
        mode: Mode = "page",
        engine: str | os.PathLike[str] | EngineSpec | Engine = "tiny",
        format: Format = "markdown",
        table_format: TableFormat = "html",
        pages_delimiter: str = "\n\f",
        include_blocks: bool = False,
        **parser_options: Any,
    ) -> None:
        self._form = DocumentFormat(
            mode=mode,
            format=format,
            table_format=table_format,
            pages_delimiter=pages_delimiter,
            include_blocks=include_blocks,
        )
        self._parser = make_parser(MDiffBlobParser, _named(engine), **parser_options)

    def lazy_parse(self, blob: Blob) -> Iterator[Document]:
        """Yield the documents of a blob as their pages are ready.

        Raises:
            DocumentError: If it is not a readable PDF or image; says which blob and what to do.
        """
        # By its bytes unless it is a plain file: some blobs have a path that only they can open.
        in_memory = blob.data is not None or type(blob) is not Blob
        content = read_input(blob.as_bytes() if in_memory else blob.path)
        known = dict(blob.metadata)
        if blob.source is not None:
            known["source"] = display_name(str(blob.source))
            content = replace(content, name=known["source"])
        yield from load_documents(self._parser, content, self._form, known)


class MDiffImageParser(BaseBlobParser):
    """Read the pictures that PDF loaders find: exactly one Document a blob.

    .. code-block:: python

        PyMuPDFLoader("scan.pdf", images_parser=MDiffImageParser(), images_inner_format="text")

    The text layer of the page is kept and the text of the pictures is added to it. Prefer
    ``images_inner_format="text"``: the others break tables. One odd picture does not end the load
    of the whole file: it gives an empty text and ``mdiff_error``. Wrong settings, and an engine
    that is not there, raise: they would empty every picture.

    Args:
        engine: ``tiny``, a checkpoint folder or hub name, ``http://…``, a spec, or a live engine.
        format: ``markdown`` or ``text``.
        channels: Order of the channels in arrays (``application/x-npy``). ``PyMuPDFLoader`` sends
            RGB, ``PyPDFium2Loader`` sends BGR: give ``bgr`` there. With ``auto`` three channels
            are RGB, and four are CMYK unless the fourth can only be an opacity.
        on_error: ``record`` or ``raise``.
        **parser_options: Options of :class:`mdiff_adapters.parser.DocumentParser`.
    """

    def __init__(
        self,
        *,
        engine: str | os.PathLike[str] | EngineSpec | Engine = "tiny",
        format: Format = "markdown",
        channels: Channels = "auto",
        on_error: Literal["record", "raise"] = "record",
        **parser_options: Any,
    ) -> None:
        for name, value, allowed in (
            ("channels", channels, get_args(Channels)),
            ("on_error", on_error, ("record", "raise")),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{name} = {value!r} is unknown", hint=f"allowed: {', '.join(allowed)}"
                )
        self._form = DocumentFormat(mode="single", format=format, pages_delimiter="\n")
        self._channels = channels
        self._on_error = on_error
        self._parser = make_parser(
            MDiffImageParser, _named(engine), on_error=on_error, **parser_options
        )

    def lazy_parse(self, blob: Blob) -> Iterator[Document]:
        """Yield one Document with the text of the picture, empty where there is none.

        Raises:
            MDiffError: If the engine cannot be built or a setting is wrong; with
                ``on_error="raise"`` whatever fails.
        """
        # Not the fault of a picture, so outside of what is recorded; shared after the first time.
        _ = (self._parser.engine, self._parser.segmenter)
        try:
            content = read_input(blob.as_bytes())
            if blob.mimetype == "application/x-npy":
                content = replace(content, source=_array_image(content.source, self._channels))
            [document] = load_documents(self._parser, content, self._form)
        except (ConfigError, EngineUnavailableError):
            raise
        except Exception as error:
            if self._on_error == "raise":
                raise
            logger.warning("a picture cannot be read: %s", error)
            document = Document(page_content="", metadata={"mdiff_error": _message(error)})
        # These Documents are looked into for their text and thrown away; a PDF has the metadata.
        kept = {k: v for k, v in document.metadata.items() if k in ("mdiff_error", "format")}
        yield Document(page_content=document.page_content, metadata={**kept, **blob.metadata})


def _named(engine: str | os.PathLike[str] | EngineSpec | Engine) -> EngineSpec | Engine:
    return EngineSpec.parse(engine) if isinstance(engine, (str, os.PathLike)) else engine


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, MDiffError) else f"{type(error).__name__}: {error}"


def _array_image(data: bytes, channels: Channels) -> Any:
    """Return the RGB or gray image of an array that was saved with ``numpy.save``."""
    import numpy as np
    from PIL import Image

    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        raise ImageError(f"not an array of numbers: {error}") from error
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    depth = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or depth not in (1, 3, 4):
        raise ImageError(
            f"an array of shape {array.shape} and type {array.dtype} is not a picture",
            hint="expected uint8 of shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)",
        )
    if 0 in array.shape:
        raise ImageError(f"a picture of shape {array.shape} has no pixels")
    if depth == 1:
        return Image.fromarray(array)
    if channels in ("bgr", "bgra"):
        array = array[:, :, [2, 1, 0, 3][:depth]]
    mode = "RGB" if depth == 3 else _four(array[:, :, 3], channels)
    return Image.frombytes(mode, (array.shape[1], array.shape[0]), array.tobytes())


def _four(last: Any, channels: Channels) -> Literal["RGBA", "CMYK"]:
    """Tell opacity from black: full black ink everywhere is no picture, full opacity is usual."""
    if channels != "auto":
        return "CMYK" if channels == "cmyk" else "RGBA"
    return "RGBA" if last.min() == 255 else "CMYK"
