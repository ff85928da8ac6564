"""Exports: every text once, in order, escaped for where it goes; JSON and Docling round trips."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import sys
from pathlib import Path
from typing import get_args
from urllib.parse import quote

import jsonschema
import pytest
from docling_core.types.doc import ContentLayer, CoordOrigin, DoclingDocument
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

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
from mdiff_adapters.engines.replay import ReplayEngine
from mdiff_adapters.errors import (
    ConfigError,
    CorruptDocumentError,
    DocumentNotFoundError,
    EngineUnavailableError,
    UnsupportedDocumentError,
)
from mdiff_adapters.export import (
    draw_layout,
    from_json,
    page_to_markdown,
    to_docling,
    to_elements,
    to_html,
    to_json,
    to_markdown,
    to_text,
)
from mdiff_adapters.export.docling import LABELS, table_data
from mdiff_adapters.formulas import tidy_spacing
from mdiff_adapters.segmenters import PageImage, SegmenterOptions
from mdiff_adapters.segmenters.model import ModelSegmenter
from mdiff_adapters.tables import Table
from mdiff_core.config import DecodeConfig

ROOT = Path(__file__).parents[3]
PNG = b"\x89PNG\r\n\x1a\n"
OTHER_PNG = PNG + b"another"


def region(order: int, kind: RegionType = "text", text: str = "", **fields: object) -> Region:
    top = min(0.04 * order, 0.9)
    values: dict[str, object] = {
        "id": f"p0r{order}", "order": order, "type": kind, "text": text,
        "bbox": BBox(0.1, top, 0.9, top + 0.03),
    }  # fmt: skip
    return Region(**(values | fields))  # type: ignore[arg-type]


def page(*regions: Region, index: int = 0) -> ParsedPage:
    return ParsedPage(
        index=index, label=str(index + 1), size_px=(850, 1100), size_pt=(612.0, 792.0),
        regions=regions,
    )  # fmt: skip


def document(*regions: Region) -> ParsedDocument:
    return ParsedDocument(source="dir/a.pdf", pages=(page(*regions),), num_pages=1)


def markdown(*regions: Region, **options: object) -> str:
    return to_markdown(document(*regions), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> ParsedDocument:
    """The two drawn pages, read through the replay engine."""
    folder = ROOT / "tests" / "data" / "replay"
    images = []
    for index in range(2):
        with Image.open(folder / f"report_p{index + 1:04d}.jpg") as image:
            images.append(
                PageImage(index=index, label="i" * (index + 1), image=image.convert("RGB"),
                          size_pt=(612.0, 792.0), source="report.pdf", stem="report")
            )  # fmt: skip
    pages = ModelSegmenter().read(
        images, ReplayEngine(folder), DecodeConfig(), SegmenterOptions(images="embed")
    )
    return ParsedDocument(
        source="report.pdf", pages=tuple(pages), num_pages=2, metadata={"title": "Tides & tables"}
    )


def test_titles_paragraphs_and_lists() -> None:
    assert (
        markdown(
            region(0, "title", "A\ntitle"),
            region(1, "text", "One.\n\nTwo."),
            region(2, "list", "• one\n• two\ngoes on"),
            region(3, "list", "1. first\n2. second"),
        )
        == "# A title\n\nOne.\n\nTwo.\n\n- one\n- two goes on\n\n1. first\n2. second"
    )


def test_a_list_told_by_its_items_is_one_list() -> None:
    parts = (
        region(0, "text", "one", parent="p0r3"), region(1, "text", "two", parent="p0r3"),
        region(2, "text", "between"), region(3, "list"), region(4, "text", "three", parent="p0r3"),
    )  # fmt: skip
    assert markdown(*parts) == "- one\n- two\n\nbetween\n\n- three"
    assert to_text(document(*parts)) == "one\ntwo\n\nbetween\n\nthree"
    assert '<ul id="p0r3"><li>one</li><li>two</li></ul>' in to_html(document(*parts))


def test_captions_stand_beside_their_figure() -> None:
    parts = (
        region(0, "table_caption", "Table 1", parent="p0r2"), region(1, "text", "between"),
        region(2, "table", table=Table.from_rows([["a"]])), region(3, "text", "after"),
        region(4, "table_footnote", "note", parent="p0r2"),
        region(5, "image_caption", "lost", parent="p9r9"),
    )  # fmt: skip
    assert markdown(*parts) == (
        "between\n\nTable 1\n\n<table><tr><td>a</td></tr></table>\n\nnote\n\nafter\n\nlost"
    )


FURNITURE = ("header", "footer", "page_number", "aside_text", "page_footnote", "unknown")


@pytest.mark.parametrize("kind", get_args(RegionType))
def test_every_type_is_in_each_export(kind: RegionType) -> None:
    one = region(0, kind, "words", raw_label="odd" if kind == "other" else None)
    doc = document(one)
    left_out = kind in FURNITURE
    assert ("words" in to_markdown(doc)) is not left_out
    assert ("words" in to_html(doc)) is not left_out
    assert ("words" in to_text(doc)) is not left_out
    assert "words" in to_markdown(doc, include_furniture=True)
    assert to_elements(doc)[0]["text"] == "words"
    assert kind in LABELS
    if kind != "image":
        assert "words" in to_docling(doc).export_to_markdown(
            included_content_layers={ContentLayer.BODY, ContentLayer.FURNITURE}
        )
    assert from_json(to_json(doc)) == doc


def test_formulas_are_wrapped_once_d1() -> None:
    formula = region(0, "equation", latex=r"x \tag{1}")
    assert markdown(formula) == "\\[\nx \\tag{1}\n\\]"
    assert markdown(formula, formula_delimiters="dollars") == "$$\nx \\tag{1}\n$$"
    assert markdown(formula, formula_delimiters="none") == r"x \tag{1}"
    assert markdown(region(0, "equation", latex=r"\[x\]")) == "\\[\nx\n\\]"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (r"costs $5, \(x = \$2\)", r"costs \$5, \(x = \$2\)"),
        ("# no heading", r"\# no heading"),
        ("#hashtag", "#hashtag"),
        ("> no quote", r"\> no quote"),
        ("above\n---", "above\n\\---"),
        ("a < b, x<y>z, <script>", r"a < b, x\<y>z, \<script>"),
        ("x<sup>2</sup>", "x<sup>2</sup>"),
        ("*Corresponding author", "*Corresponding author"),
    ],
)
def test_text_is_escaped_for_markdown_only_where_it_must(text: str, escaped: str) -> None:
    assert markdown(region(0, "text", text)) == escaped
    assert to_text(document(region(0, "text", text))) == text


@pytest.mark.parametrize(
    "text",
    [
        "~~~ Fin ~~~", "``` code fence", "```", "* * *", "- - -", "_  _ _", "***", "above\n=",
        "above\n-", "above\n--", "   # indented", "  > quoted", "[x]: http://evil", "&copy; &#169;",
        "![i](http://evil/?q=1)", "[a](b)", "<img src=x onerror=alert(1)>", "[1]: Smith, [2](3)",
        "<!-- gone -->", "[1][2] and [3] (see [4])", "a | b\n--- | ---\nc | d",
        "| a |\n| :-: |", "a|b\n-|-", "a | b\n  :-- | --:  |",
    ],
)  # fmt: skip
def test_markdown_renders_as_the_text_and_leaves_what_follows_alone(text: str) -> None:
    exported = markdown(region(0, "text", text), region(1, "text", "what follows"))
    rendered = MarkdownIt().enable("table").render(exported)
    assert set(re.findall(r"<(\w+)", rendered)) == {"p"}
    shown = html.unescape(re.sub(r"</?p>", "", rendered)).strip().split("\n")
    assert [" ".join(line.split()) for line in shown if line] == [
        *(" ".join(line.split()) for line in text.split("\n")), "what follows",
    ]  # fmt: skip


@pytest.mark.parametrize("title", ["Introduction to C #", "#", "F#", "## #", "a ##b"])
def test_hashes_of_a_title_are_part_of_it(title: str) -> None:
    assert MarkdownIt().render(markdown(region(0, "title", title))) == f"<h1>{title}</h1>\n"


def test_an_even_number_of_backslashes_escapes_no_tag() -> None:
    rendered = MarkdownIt().render(markdown(region(0, "text", r"See \\<server>\share")))
    assert rendered == "<p>See \\&lt;server&gt;\\share</p>\n"


def test_code_in_a_list_stays_code_with_its_caption() -> None:
    parts = (
        region(0, "list"), region(1, "text", "1. first", parent="p0r0"),
        region(2, "code", "def f():\n    return 1", parent="p0r0"),
        region(3, "code_caption", "Listing 1", parent="p0r2"),
        region(4, "text", "2. second", parent="p0r0"),
    )  # fmt: skip
    fenced = "```\ndef f():\n    return 1\n```"
    assert markdown(*parts) == f"1. first\n\n{fenced}\n\nListing 1\n\n2. second"
    assert "Listing 1" in to_text(document(*parts))
    page_html = to_html(document(*parts))
    assert "<pre><code>def f():\n    return 1</code></pre>" in page_html
    ids = re.findall(r'id="([^"]+)"', page_html)
    assert len(ids) == len(set(ids))
    assert [item.text for item in to_docling(document(*parts)).texts] == [
        "first", "def f():\n    return 1", "Listing 1", "second",
    ]  # fmt: skip


def test_numbers_in_brackets_are_items() -> None:
    rendered = MarkdownIt().render(markdown(region(0, "list", "(1) first\n(2) second")))
    assert re.findall(r"<li>(.*?)</li>", rendered) == ["(1) first", "(2) second"]


def test_cells_and_captions_of_pipe_tables_are_escaped_as_text_is() -> None:
    cells = "<img src=x onerror=alert(1)>", "$10 and $20", "a|b", "[a](http://evil)", "&copy;"
    table = dataclasses.replace(
        Table.from_rows([["h"], *([cell] for cell in cells)]), caption="<script>x</script>"
    )
    rendered = MarkdownIt().enable("table").render(table.to_markdown())
    assert not {"img", "script", "a"} & set(re.findall(r"<(\w+)", rendered))
    shown = re.findall(r"<td>(.*?)</td>", rendered)
    assert [html.unescape(cell) for cell in shown] == list(cells)
    assert r"\$10 and \$20" in table.to_markdown()


def test_code_gets_a_fence_longer_than_any_inside() -> None:
    code = "```\nx\n````"
    assert markdown(region(0, "code", code)) == f"`````\n{code}\n`````"


def test_table_formats() -> None:
    plain = region(0, "table", table=Table.from_rows([["a", "b"]]))
    headed = region(1, "table", table=Table.from_rows([["a", "b"], ["c", "d"]], header_rows=1))
    spanned = region(2, "table", table=Table.from_otsl("<ched>a<lcel><nl>"))
    assert markdown(plain) == "<table><tr><td>a</td><td>b</td></tr></table>"
    assert markdown(plain, table_format="markdown").startswith("| a | b |")
    auto = markdown(plain, headed, spanned, table_format="auto")
    assert auto.count("<table>") == 2
    assert "| a | b |\n| --- | --- |\n| c | d |" in auto


@pytest.mark.parametrize("options", [{"table_format": "htlm"}, {"formula_delimiters": "dollar"}])
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        markdown(region(0, "text", "words"), **options)


def test_images_are_left_out_embedded_or_written(tmp_path: Path) -> None:
    figure = region(0, "image", image=PNG)
    assert markdown(figure) == ""
    assert markdown(figure, images="embed").startswith("![image](data:image/png;base64,iVBOR")
    folder = tmp_path / "pictures of it"
    link = markdown(figure, images=folder)
    [written] = folder.iterdir()
    assert link == f"![image]({quote(written.as_posix())})" and "%20" in link
    assert f'<img src="{quote(written.as_posix())}"' in to_html(document(figure), images=folder)
    assert written.read_bytes() == PNG
    # A page of another document in the same folder.
    markdown(region(0, "image", image=OTHER_PNG), images=folder)
    assert sorted(path.read_bytes() for path in folder.iterdir()) == sorted([PNG, OTHER_PNG])
    assert '<img src="data:image/png;base64,' in to_html(document(figure), images="embed")
    assert markdown(region(0, "image"), images="embed") == ""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        markdown(figure, images=tmp_path / "file")


def test_page_separators() -> None:
    pages = (page(region(0, "text", "a")), page(index=1), page(region(0, "text", "c"), index=2))
    doc = ParsedDocument(source="a.pdf", pages=pages, num_pages=3)
    assert to_markdown(doc) == "a\n\nc"
    assert to_markdown(doc, page_separator="\n\n---\n\n") == "a\n\n---\n\n\n\n---\n\nc"
    assert to_text(doc) == "a\f\fc"
    assert page_to_markdown(pages[0]) == pages[0].to_markdown() == "a"
    assert doc.to_html().count("<section") == 3


def test_html_escapes_all_text_once() -> None:
    evil = "<script>alert('1 & 2')</script> H<sub>2</sub>O &lt;"
    doc = ParsedDocument(
        source="<a>.pdf", num_pages=1,
        pages=(page(region(0, "text", evil), region(1, "code", evil), region(2, "title", evil),
                    region(3, "equation", latex="a < b"),
                    region(4, "table", table=Table.from_rows([[evil]]))),),
    )  # fmt: skip
    out = to_html(doc)
    assert "<script" not in out
    assert out.count("&lt;script&gt;alert('1 &amp; 2')&lt;/script&gt;") == 4
    assert out.count("H<sub>2</sub>O &amp;lt;") == 3
    assert "<title>&lt;a&gt;.pdf</title>" in out
    assert "a &lt; b" in out


def test_elements_are_flat_scalars(report: ParsedDocument) -> None:
    elements = to_elements(report)
    assert json.loads(json.dumps(elements)) == elements
    assert all(isinstance(v, (str, int, float, bool)) for e in elements for v in e.values())
    table = next(e for e in elements if e["category"] == "table")
    assert (table["page"], table["page_label"], table["element_id"]) == (0, "i", "p0r13")
    assert table["bbox"] == "0.1,0.665,0.9,0.76"
    assert table["text"] == "Station\tLines\tErrors\nNorth pier\t8 760\t31\nLock\t8 760\t12"
    assert str(table["text_as_html"]).startswith("<table>")
    assert len({e["element_id"] for e in elements}) == len(elements)
    told = [r for r in report.regions if r.text or r.table or r.latex or r.type == "image"]
    assert len(elements) == len(told)
    assert not [
        e for e in to_elements(report, include_furniture=False) if e["category"] in FURNITURE
    ]


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
unit = st.floats(0, 1)


@st.composite
def boxes(draw: st.DrawFn) -> BBox:
    x0, x1 = sorted((draw(unit), draw(unit)))
    y0, y1 = sorted((draw(unit), draw(unit)))
    return BBox(x0, y0, x1, y1)


errors = st.builds(
    ErrorRecord, kind=texts, message=texts, stage=texts, page=st.none() | st.integers(0, 9),
    region=st.none() | texts,
)  # fmt: skip
random_tables = (
    st.integers(1, 3)
    .flatmap(
        lambda cols: st.lists(st.lists(texts, min_size=cols, max_size=cols), min_size=1, max_size=3)
    )
    .map(lambda rows: Table.from_rows(rows, header_rows=len(rows) % 2))
)
random_regions = st.builds(
    Region, id=texts, order=st.integers(0, 99), type=st.sampled_from(get_args(RegionType)),
    bbox=boxes(), raw_label=st.none() | texts, angle=st.sampled_from([0, 90, 180, 270]),
    text=texts, table=st.none() | random_tables, latex=st.none() | texts,
    lines=st.lists(st.builds(TextLine, text=texts, bbox=boxes(), confidence=st.none() | unit),
                   max_size=2).map(tuple),
    confidence=st.none() | unit, finish_reason=st.none() | st.sampled_from(get_args(FinishReason)),
    parent=st.none() | texts, raw=texts, error=st.none() | errors,
    flags=st.lists(texts, max_size=2).map(tuple), image=st.none() | st.binary(max_size=5),
)  # fmt: skip
random_pages = st.builds(
    ParsedPage, index=st.integers(0, 9), label=texts,
    size_px=st.tuples(st.integers(0, 999), st.integers(0, 999)),
    size_pt=st.tuples(st.floats(1, 999), st.floats(1, 999)),
    rotation=st.sampled_from([0, 90]), regions=st.lists(random_regions, max_size=2).map(tuple),
    status=st.sampled_from(get_args(PageStatus)), error=st.none() | errors,
    warnings=st.lists(errors, max_size=1).map(tuple), num_tokens=st.integers(0, 9),
    num_forwards=st.integers(0, 9),
)  # fmt: skip
random_documents = st.builds(
    ParsedDocument, source=st.text(max_size=8), pages=st.lists(random_pages, max_size=2).map(tuple),
    num_pages=st.integers(0, 9), metadata=st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip


@given(random_documents, st.sampled_from([None, 2]))
@settings(max_examples=25)
def test_json_round_trip_is_lossless(doc: ParsedDocument, indent: int | None) -> None:
    text = to_json(doc, indent=indent)
    text.encode()
    assert from_json(text) == doc
    VALIDATOR.validate(json.loads(text))


@given(random_documents)
@settings(max_examples=25)
def test_any_document_can_be_exported(doc: ParsedDocument) -> None:
    assert isinstance(to_markdown(doc, include_furniture=True), str)
    assert isinstance(to_html(doc, include_furniture=True), str)
    assert to_text(doc).count("\f") >= max(len(doc.pages) - 1, 0)
    assert len(to_elements(doc)) <= len(list(doc.regions))


SCHEMA = json.loads((ROOT / "docs" / "document.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_names_what_the_code_has(report: ParsedDocument) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(json.loads(report.to_json()))
    parts = SCHEMA["$defs"]
    assert parts["region"]["properties"]["type"]["enum"] == list(get_args(RegionType))
    assert parts["page"]["properties"]["status"]["enum"] == list(get_args(PageStatus))
    finish = parts["region"]["properties"]["finish_reason"]["enum"]
    assert finish == [*get_args(FinishReason), None]
    for name, kind in (("region", Region), ("page", ParsedPage), ("error", ErrorRecord)):
        fields = {field.name for field in dataclasses.fields(kind)}
        assert set(parts[name]["properties"]) == fields
        assert set(parts[name]["required"]) == fields


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: d.pop("pages"), CorruptDocumentError),
        (lambda d: d["pages"][0].pop("label"), CorruptDocumentError),
        (lambda d: d["pages"][0].update(extra=1), CorruptDocumentError),
        (lambda d: d["pages"][0].update(status="fine"), CorruptDocumentError),
        (lambda d: d["pages"][0]["regions"][0].update(type="paragraph"), CorruptDocumentError),
        (lambda d: d["pages"][0]["regions"][0].update(bbox=[0, 0, 2, 1]), CorruptDocumentError),
        (lambda d: d["pages"][0]["regions"][0].update(image="é"), CorruptDocumentError),
        (lambda d: d.update(schema="mdiff-document/2"), UnsupportedDocumentError),
        (lambda d: d.pop("schema"), UnsupportedDocumentError),
    ],
)
def test_json_of_another_form_is_refused(change, error, report: ParsedDocument) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(report.to_json())
    change(data)
    with pytest.raises(error):
        from_json(json.dumps(data))


def test_json_from_files(tmp_path: Path, report: ParsedDocument) -> None:
    path = tmp_path / "a.json"
    path.write_text(report.to_json(), encoding="utf-8")
    assert ParsedDocument.from_json(path) == ParsedDocument.from_json(str(path)) == report
    with pytest.raises(DocumentNotFoundError):
        from_json(tmp_path / "b.json")
    with pytest.raises(CorruptDocumentError, match="not JSON"):
        from_json("{")
    with pytest.raises(CorruptDocumentError, match="readable file"):
        from_json(tmp_path)


def body_texts(doc: ParsedDocument) -> list[str]:
    """All texts of the drawn pages that are told, in the order of the pages."""
    told = []
    for found in doc.regions:
        told += [cell.text for cell in found.table.cells] if found.table is not None else []
        told += [text for text in (tidy_spacing(found.latex or ""), found.text) if text]
    return [text for text in told if text]


def test_drawn_pages_in_markdown_html_and_text(report: ParsedDocument) -> None:
    out = to_markdown(report, include_furniture=True)
    end = 0
    repeated = "The same words stand here."
    for found in report.regions:
        for text in filter(None, [found.text, tidy_spacing(found.latex or "")]):
            shown = text.replace("$", r"\$")
            assert out.count(shown) == (2 if text == repeated else out.count(shown)) > 0
            end = out.index(shown, end) + len(shown)
    assert out.count(repeated) == 2
    assert out.count("\\[") == out.count("\\]") == 3
    assert "<|" not in out
    page_html = to_html(report, include_furniture=True)
    plain = html.unescape(re.sub(r"<br>|</?su[bp]>", "", page_html))
    for text in body_texts(report):
        assert re.sub(r"</?su[bp]>", "", text).split("\n")[0] in plain
    assert "<title>Tides &amp; tables</title>" in page_html


def test_docling_document(report: ParsedDocument) -> None:
    out = to_docling(report)
    assert DoclingDocument.model_validate_json(out.model_dump_json()) == out
    assert out.name == "report"
    assert list(out.pages) == [1, 2]
    assert (out.pages[1].size.width, out.pages[1].size.height) == (612.0, 792.0)
    told = out.export_to_markdown(
        included_content_layers={ContentLayer.BODY, ContentLayer.FURNITURE}, escape_html=False
    )
    for text in body_texts(report):
        assert text.split("\n")[0].replace("_", "") in told.replace("\\_", "").replace("_", "")
    body = out.export_to_markdown()
    assert "Draft of 3 May" not in body
    assert body.count("Errors: lines that differ in any digit.") == 1
    assert body.count("Figure 1") == body.count("Table 1") == body.count("Listing 1") == 1


def test_docling_boxes_are_points_from_the_bottom_left() -> None:
    out = to_docling(document(region(0, "text", "words", bbox=BBox(0.25, 0.1, 0.75, 0.3))))
    (prov,) = out.texts[0].prov
    assert prov.page_no == 1
    assert prov.bbox.coord_origin is CoordOrigin.BOTTOMLEFT
    assert prov.bbox.as_tuple() == pytest.approx((153.0, 554.4, 459.0, 712.8))
    assert prov.charspan == (0, 5)
    back = prov.bbox.to_top_left_origin(792.0).as_tuple()
    assert back == pytest.approx((153.0, 79.2, 459.0, 237.6))


def test_docling_tables_captions_pictures_and_lists(report: ParsedDocument) -> None:
    out = to_docling(report)
    first, second = out.tables
    assert first.caption_text(out) == "Table 1: Lines and differences, 1938."
    assert (second.data.num_rows, second.data.num_cols) == (4, 3)
    volume, night = second.data.table_cells[:2]
    assert (volume.row_span, volume.column_header) == (2, True)
    assert (night.start_col_offset_idx, night.end_col_offset_idx) == (1, 3)
    assert second.data.table_cells[4].row_header
    assert [cell.text for row in second.data.grid for cell in row][-3:] == ["II", "", "9"]
    (picture,) = out.pictures
    assert picture.caption_text(out).startswith("Figure 1")
    box = report.pages[0].regions[10].bbox.pixels((850, 1100))
    assert picture.get_image(out).size == (box[2] - box[0], box[3] - box[1])
    items = [text for text in out.texts if text.label == "list_item"]
    assert [item.text for item in items] == [
        "Read every page twice, by two readers.", "Compare the readings line by line.",
        "Look at the page again where they differ.",
    ]  # fmt: skip
    assert len({item.parent.cref for item in items}) == 1


def test_docling_numbered_lists_and_sections() -> None:
    out = to_docling(document(region(0, "list", "1. one\n2. two")))
    assert [(item.marker, item.enumerated, item.text) for item in out.texts] == [
        ("1.", True, "one"), ("2.", True, "two"),
    ]  # fmt: skip
    data = table_data(Table.from_otsl("<ched>a<ched>b<nl><srow>s<lcel><nl><fcel>c<fcel>d<nl>"))
    assert [(cell.column_header, cell.row_section) for cell in data.table_cells] == [
        (True, False), (True, False), (False, True), (False, False), (False, False),
    ]  # fmt: skip


def test_missing_extras_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docling_core.types.doc", None)
    monkeypatch.delitem(sys.modules, "mdiff_adapters.export.docling")
    with pytest.raises(EngineUnavailableError, match=r"mdiff-adapters\[docling-core\]"):
        to_docling(document())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EngineUnavailableError, match=r"mdiff-adapters\[pandas\]"):
        Table.from_rows([["a"]]).to_pandas()


def test_layout_pictures_show_every_box() -> None:
    canvas = Image.new("L", (200, 100), 255)
    figure = region(0, "image", bbox=BBox(0.1, 0.5, 0.4, 0.9))
    failed = region(
        1, "text", bbox=BBox(0.5, 0.5, 1.0, 1.0), confidence=0.5,
        error=ErrorRecord(kind="EngineError", message="lost"),
    )  # fmt: skip
    drawn = draw_layout(canvas, page(figure, failed))
    assert (drawn.mode, drawn.size, canvas.getextrema()) == ("RGB", (200, 100), (255, 255))
    assert drawn.getpixel((20, 70)) == (0x6A, 0x1B, 0x9A)
    assert drawn.getpixel((50, 70)) == (255, 255, 255)
    # the cross of a region with an error passes through its middle
    middle = drawn.crop((145, 70, 155, 80)).getcolors()
    assert middle is not None
    assert (0x15, 0x65, 0xC0) in [color for _, color in middle]
    assert draw_layout(Image.new("RGB", (1, 1)), page(figure)).size == (1, 1)
