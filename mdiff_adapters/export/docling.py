"""``DoclingDocument``: Docling's own document, without Docling having read the file."""

from __future__ import annotations

import io
import re
from pathlib import PurePath
from typing import Any

from PIL import Image

from mdiff_adapters.document import ParsedDocument, ParsedPage, Region, RegionType
from mdiff_adapters.export.structure import FURNITURE, Block, page_blocks
from mdiff_adapters.formulas import tidy_spacing
from mdiff_adapters.tables import Table
from mdiff_core.errors import EngineUnavailableError

try:
    from docling_core.types.doc import (
        BoundingBox,
        ContentLayer,
        CoordOrigin,
        DocItemLabel,
        DoclingDocument,
        ImageRef,
        ProvenanceItem,
        Size,
        TableCell,
        TableData,
    )
except ImportError as error:
    raise EngineUnavailableError(
        "docling-core is not installed", hint='pip install "mdiff-adapters[docling-core]"'
    ) from error

__all__ = ["LABELS", "table_data", "to_docling"]

LABELS: dict[RegionType, DocItemLabel] = {
    "text": DocItemLabel.TEXT,
    "title": DocItemLabel.SECTION_HEADER,
    "header": DocItemLabel.PAGE_HEADER,
    "footer": DocItemLabel.PAGE_FOOTER,
    "page_number": DocItemLabel.PAGE_FOOTER,
    "page_footnote": DocItemLabel.FOOTNOTE,
    "aside_text": DocItemLabel.TEXT,
    "image": DocItemLabel.PICTURE,
    "image_caption": DocItemLabel.CAPTION,
    "image_footnote": DocItemLabel.FOOTNOTE,
    "table": DocItemLabel.TABLE,
    "table_caption": DocItemLabel.CAPTION,
    "table_footnote": DocItemLabel.FOOTNOTE,
    "equation": DocItemLabel.FORMULA,
    "equation_block": DocItemLabel.FORMULA,
    "list": DocItemLabel.LIST_ITEM,
    "code": DocItemLabel.CODE,
    "code_caption": DocItemLabel.CAPTION,
    "algorithm": DocItemLabel.CODE,
    "ref_text": DocItemLabel.REFERENCE,
    "phonetic": DocItemLabel.TEXT,
    "unknown": DocItemLabel.TEXT,
    "other": DocItemLabel.TEXT,
}
"""Docling's label of every region type."""

# Docling keeps footnotes in the body; the other types that exports leave out are furniture.
_FURNITURE_LAYER = FURNITURE - {"page_footnote"}
_NUMBER = re.compile(r"^(\(?\d{1,3}[.)])\s+")


def to_docling(doc: ParsedDocument) -> Any:
    """Return a document as ``docling_core.types.doc.DoclingDocument``.

    Boxes are in page points with the origin at the bottom left, as Docling's own pipelines give
    them; pages keep their numbers in the file. Headers, footers and page numbers are furniture.

    Args:
        doc: The document.

    Returns:
        The document, named after the stem of its source.

    Raises:
        EngineUnavailableError: If docling-core is not installed.
    """
    out = DoclingDocument(name=PurePath(doc.source).stem or "document")
    for page in doc.pages:
        width, height = page.size_pt
        out.add_page(page_no=page.index + 1, size=Size(width=width, height=height))
        for block in page_blocks(page, include_furniture=True):
            _add_block(out, page, block)
    return out


def table_data(table: Table) -> Any:
    """Return a table as ``docling_core.types.doc.TableData``, spans and headers included.

    Args:
        table: The table.

    Returns:
        The data. A header cell below the header rows heads its row, or, where it is as wide as
        the table, a section.
    """
    cells = []
    for cell in table.cells:
        column_header = cell.is_header and cell.row < table.header_rows
        section = cell.is_header and not column_header and cell.col_span == table.num_cols
        cells.append(
            TableCell(
                text=cell.text,
                row_span=cell.row_span,
                col_span=cell.col_span,
                start_row_offset_idx=cell.row,
                end_row_offset_idx=cell.row + cell.row_span,
                start_col_offset_idx=cell.col,
                end_col_offset_idx=cell.col + cell.col_span,
                column_header=column_header,
                row_header=cell.is_header and not column_header and not section,
                row_section=section,
            )
        )
    return TableData(table_cells=cells, num_rows=table.num_rows, num_cols=table.num_cols)


def _add_block(out: Any, page: ParsedPage, block: Block) -> None:
    if block.items:
        layer = _layer(block.items[0][1])
        group = out.add_list_group(name="list", content_layer=layer)
        for text, region in block.items:
            number = _NUMBER.match(text)
            out.add_list_item(
                text=text[number.end() :] if number else text,
                enumerated=number is not None,
                marker=number.group(1) if number else "-",
                orig=text,
                prov=_prov(page, region, text),
                parent=group,
                content_layer=_layer(region),
            )
        return
    item = _add_region(out, page, block.region)
    for other in (*block.before, *block.after):
        # Footnotes stay items of the body: docling-core prints none that only a table refers to.
        is_caption = LABELS[other.type] is DocItemLabel.CAPTION and hasattr(item, "captions")
        note = out.add_text(
            label=LABELS[other.type],
            text=other.text,
            prov=_prov(page, other, other.text),
            parent=item if is_caption else None,
        )
        if is_caption:
            item.captions.append(note.get_ref())


def _add_region(out: Any, page: ParsedPage, region: Region) -> Any:
    layer, label = _layer(region), LABELS[region.type]
    if region.table is not None:
        item = out.add_table(
            data=table_data(region.table),
            prov=_prov(page, region, ""),
            content_layer=layer,
        )
        caption = " ".join(filter(None, (region.table.caption, region.text)))
        if caption:
            note = out.add_text(
                label=DocItemLabel.CAPTION,
                text=caption,
                prov=_prov(page, region, caption),
                parent=item,
            )
            item.captions.append(note.get_ref())
        return item
    if region.type == "image":
        return out.add_picture(
            image=_image(page, region), prov=_prov(page, region, ""), content_layer=layer
        )
    if region.latex:
        formula = tidy_spacing(region.latex)
        return out.add_formula(
            text=formula,
            orig=region.latex,
            prov=_prov(page, region, formula),
            content_layer=layer,
        )
    if label in (DocItemLabel.TABLE, DocItemLabel.FORMULA, DocItemLabel.LIST_ITEM):
        # No table or formula came of it, only its words.
        label = DocItemLabel.TEXT
    return out.add_text(
        label=label, text=region.text, prov=_prov(page, region, region.text), content_layer=layer
    )


def _layer(region: Region) -> Any:
    return ContentLayer.FURNITURE if region.type in _FURNITURE_LAYER else ContentLayer.BODY


def _prov(page: ParsedPage, region: Region, text: str) -> Any:
    left, top, right, bottom = region.bbox.scaled(page.size_pt)
    box = BoundingBox(l=left, t=top, r=right, b=bottom, coord_origin=CoordOrigin.TOPLEFT)
    return ProvenanceItem(
        page_no=page.index + 1,
        bbox=box.to_bottom_left_origin(page.size_pt[1]),
        charspan=(0, len(text)),
    )


def _image(page: ParsedPage, region: Region) -> Any:
    if region.image is None:
        return None
    dpi = round(page.size_px[0] / page.size_pt[0] * 72) if page.size_pt[0] else 72
    with Image.open(io.BytesIO(region.image)) as picture:
        return ImageRef.from_pil(picture, dpi=dpi)
