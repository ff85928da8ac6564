"""JSON: all that a parsed document holds, and back. Schema: ``docs/document.schema.json``."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from mdiff_adapters.document import (
    BBox,
    ErrorRecord,
    FinishReason,
    PageStatus,
    ParsedDocument,
    ParsedPage,
    Region,
    RegionType,
    TextLine,
)
from mdiff_adapters.tables import Cell, Table
from mdiff_core.config import strict_from_dict
from mdiff_core.errors import CorruptDocumentError, DocumentNotFoundError, UnsupportedDocumentError

__all__ = ["SCHEMA", "from_json", "to_json"]

SCHEMA = "mdiff-document/1"
"""Name and version of the format; the version changes when a reader of the old one would fail."""


def to_json(doc: ParsedDocument, *, indent: int | None = None) -> str:
    """Return a document as JSON from which :func:`from_json` rebuilds an equal one.

    Args:
        doc: The document.
        indent: Spaces of indentation; None for one line.

    Returns:
        JSON text. Boxes are ``[x0, y0, x1, y1]``, pictures base64.
    """
    data = {
        "schema": SCHEMA,
        "source": doc.source,
        "num_pages": doc.num_pages,
        "metadata": dict(doc.metadata),
        "pages": [_page(page) for page in doc.pages],
    }
    text = json.dumps(data, ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # File names may hold bytes that are no text; as escapes they survive the file.
        return json.dumps(data, indent=indent, allow_nan=False)
    return text


def from_json(text: str | os.PathLike[str]) -> ParsedDocument:
    """Read what :func:`to_json` wrote.

    Args:
        text: The JSON text, or the path of a file with it.

    Returns:
        The document.

    Raises:
        DocumentNotFoundError: If there is no file at the path.
        CorruptDocumentError: If the text is no JSON, or a field is missing, unknown or of the
            wrong kind.
        UnsupportedDocumentError: If it is JSON of another format or version.
    """
    source = None
    if isinstance(text, os.PathLike) or not text.lstrip().startswith("{"):
        source = os.fspath(text)
        try:
            text = Path(source).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DocumentNotFoundError("no such file", source=source) from error
        except (OSError, ValueError) as error:
            raise CorruptDocumentError(
                f"neither JSON text nor a readable file: {error}", source=source[:200]
            ) from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CorruptDocumentError(f"not JSON: {error}", source=source) from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise UnsupportedDocumentError(
            f"schema is {found!r}, this version reads {SCHEMA!r}", source=source
        )
    try:
        return ParsedDocument(
            source=data["source"],
            num_pages=data["num_pages"],
            metadata=data["metadata"],
            pages=tuple(_read_page(page) for page in data["pages"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise CorruptDocumentError(
            f"not a document of schema {SCHEMA}: {type(error).__name__}: {error}", source=source
        ) from error


def _page(page: ParsedPage) -> dict[str, Any]:
    return {
        "index": page.index,
        "label": page.label,
        "size_px": list(page.size_px),
        "size_pt": list(page.size_pt),
        "rotation": page.rotation,
        "status": page.status,
        "error": _error(page.error),
        "warnings": [_error(warning) for warning in page.warnings],
        "num_tokens": page.num_tokens,
        "num_forwards": page.num_forwards,
        "regions": [_region(region) for region in page.regions],
    }


def _read_page(data: dict[str, Any]) -> ParsedPage:
    _one_of(data["status"], PageStatus, "status")
    return strict_from_dict(
        ParsedPage,
        data
        | {
            "size_px": _pair(data["size_px"]),
            "size_pt": _pair(data["size_pt"]),
            "error": _read_error(data["error"]),
            "warnings": tuple(_read_error(warning) for warning in data["warnings"]),
            "regions": tuple(_read_region(region) for region in data["regions"]),
        },
    )


def _region(region: Region) -> dict[str, Any]:
    image = region.image
    return {
        "id": region.id,
        "order": region.order,
        "type": region.type,
        "raw_label": region.raw_label,
        "bbox": _box(region.bbox),
        "angle": region.angle,
        "text": region.text,
        "latex": region.latex,
        "table": None if region.table is None else _table(region.table),
        "lines": [
            {"text": line.text, "bbox": _box(line.bbox), "confidence": line.confidence}
            for line in region.lines
        ],
        "confidence": region.confidence,
        "finish_reason": region.finish_reason,
        "parent": region.parent,
        "flags": list(region.flags),
        "error": _error(region.error),
        "raw": region.raw,
        "image": None if image is None else base64.b64encode(image).decode("ascii"),
    }


def _read_region(data: dict[str, Any]) -> Region:
    _one_of(data["type"], RegionType, "type")
    if data["finish_reason"] is not None:
        _one_of(data["finish_reason"], FinishReason, "finish_reason")
    image, table = data["image"], data["table"]
    return strict_from_dict(
        Region,
        data
        | {
            "bbox": BBox(*data["bbox"]),
            "table": None if table is None else _read_table(table),
            "lines": tuple(
                strict_from_dict(TextLine, line | {"bbox": BBox(*line["bbox"])})
                for line in data["lines"]
            ),
            "flags": tuple(data["flags"]),
            "error": _read_error(data["error"]),
            "image": None if image is None else base64.b64decode(image, validate=True),
        },
    )


def _table(table: Table) -> dict[str, Any]:
    return {
        "num_rows": table.num_rows,
        "num_cols": table.num_cols,
        "caption": table.caption,
        "cells": [
            {
                "row": cell.row,
                "col": cell.col,
                "row_span": cell.row_span,
                "col_span": cell.col_span,
                "is_header": cell.is_header,
                "text": cell.text,
            }
            for cell in table.cells
        ],
    }


def _read_table(data: dict[str, Any]) -> Table:
    cells = tuple(strict_from_dict(Cell, cell) for cell in data["cells"])
    return strict_from_dict(Table, data | {"cells": cells})


def _error(error: ErrorRecord | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "kind": error.kind,
        "message": error.message,
        "stage": error.stage,
        "page": error.page,
        "region": error.region,
        "severity": error.severity,
    }


def _read_error(data: Mapping[str, Any] | None) -> ErrorRecord | None:
    return None if data is None else strict_from_dict(ErrorRecord, data)


def _box(box: BBox) -> list[float]:
    return [box.x0, box.y0, box.x1, box.y1]


def _pair(values: list[Any]) -> tuple[Any, Any]:
    first, second = values
    return first, second


def _one_of(value: object, allowed: Any, name: str) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(get_args(allowed))}")
