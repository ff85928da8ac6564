"""Real documents through real docling with nothing but what is installed: no network, no hub."""

from __future__ import annotations

import json
import re
import socket
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest
from docling.datamodel.base_models import (
    Cluster,
    ConversionStatus,
    InputFormat,
    LayoutPrediction,
)
from docling.datamodel.pipeline_options import (
    BaseLayoutOptions,
    OcrMode,
    ThreadedPdfPipelineOptions,
)
from docling.document_converter import DocumentConverter, PdfFormatOption
from docling.models.base_layout_model import BaseLayoutModel
from docling.models.factories import get_layout_factory
from docling_core.types.doc import BoundingBox, ContentLayer, DocItemLabel
from packaging.version import Version
from PIL import Image, ImageDraw, ImageFont

from docling_mdiff import MDiffOcrOptions, make_converter
from mdiff_adapters.formulas import strip_delimiters, tidy_spacing
from mdiff_adapters.tables import parse_html


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Refuse and record every connection; an empty folder for everything from the hub."""
    attempts = []

    def refuse(self, address, *args):
        attempts.append(address)
        raise OSError(f"a test may not connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: refuse(None, args))
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HOME", str(hub))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    assert attempts == []
    assert not hub.exists()


def markdown(result) -> str:
    return result.document.export_to_markdown(escape_html=False, escape_underscores=False)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def char_error(text: str, truth: str) -> float:
    """Return the edit distance of two texts as a share of the truth, white space made equal."""
    a, b = " ".join(text.split()), " ".join(truth.split())
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1] / len(b)


# -- the embedded checkpoint ---------------------------------------------------------------------

TITLE = "Report on the harbour"
BODY = (
    "The old harbour was closed in the winter of 1987 because the quay had sunk by two feet. "
    "A new one was built further north, where the water is deeper and the wind is less strong. "
    "Since then the number of ships has grown every year, and so has the town behind it."
)


@pytest.fixture(scope="module")
def drawn_page(tmp_path_factory) -> Path:
    """A scanned page with a title and a paragraph, drawn here: 300 dpi, in a PDF."""
    page = Image.new("L", (1800, 1200), 247)
    draw = ImageDraw.Draw(page)
    draw.text((150, 120), TITLE, fill=20, font=ImageFont.load_default(72))
    font = ImageFont.load_default(40)
    line, y = "", 300
    for word in [*BODY.split(), ""]:
        if not word or draw.textlength(f"{line} {word}", font) > 1450:
            draw.text((150, y), line, fill=20, font=font)
            line, y = "", y + 56
        line = f"{line} {word}".strip()
    path = tmp_path_factory.mktemp("drawn") / "harbour.pdf"
    page.save(path, resolution=300)
    return path


@pytest.mark.parametrize("pipeline", ["pdf", "vlm"])
def test_a_scanned_page_becomes_markdown_on_the_embedded_checkpoint(drawn_page, pipeline):
    result = make_converter(pipeline=pipeline).convert(drawn_page)
    assert result.status is ConversionStatus.SUCCESS and result.errors == []
    title, body = markdown(result).split("\n\n")
    assert title.startswith("## ") and char_error(title[3:], TITLE) < 0.1
    assert char_error(body, BODY) < 0.05
    assert 0.8 < result.confidence.pages[1].ocr_score < 1.0
    [heading, paragraph] = result.document.texts
    for item, top, bottom in ((heading, 28, 50), (paragraph, 70, 145)):
        box = item.prov[0].bbox.to_top_left_origin(288)
        assert 30 < box.l < 40 and top - 4 < box.t < top + 8 and bottom - 25 < box.b < bottom + 10


class DrawnLayoutOptions(BaseLayoutOptions):
    """Options of a layout model that knows the drawn page."""

    kind: ClassVar[str] = "drawn_layout"


class DrawnLayout(BaseLayoutModel):
    def __init__(self, **_):
        pass

    @classmethod
    def get_options_type(cls):
        return DrawnLayoutOptions

    def predict_layout(self, conv_res, pages):
        def cluster(number, label, *box):
            bbox = BoundingBox(**dict(zip("ltrb", box, strict=True)))
            return Cluster(id=number, label=label, bbox=bbox, confidence=0.9)

        clusters = [
            cluster(0, DocItemLabel.SECTION_HEADER, 34.0, 28.0, 240.0, 52.0),
            cluster(1, DocItemLabel.TEXT, 34.0, 68.0, 400.0, 160.0),
        ]
        return [LayoutPrediction(clusters=clusters) for _ in pages]


@pytest.mark.parametrize("mode", [OcrMode.DEFAULT, OcrMode.FULL_PAGE])
def test_the_embedded_checkpoint_reads_lines_under_another_layout(drawn_page, mode):
    factory = get_layout_factory(allow_external_plugins=True)
    if DrawnLayoutOptions not in factory.classes:
        factory.register(DrawnLayout, "tests", __name__)
    options = ThreadedPdfPipelineOptions(
        allow_external_plugins=True,
        do_table_structure=False,
        ocr_options=MDiffOcrOptions(mode=mode),
        layout_options=DrawnLayoutOptions(),
    )
    converter = DocumentConverter(
        allowed_formats=[InputFormat.PDF],
        format_options={InputFormat.PDF: PdfFormatOption(pipeline_options=options)},
    )
    result = converter.convert(drawn_page)
    assert result.status is ConversionStatus.SUCCESS
    title, body = markdown(result).split("\n\n")
    assert title.startswith("## ") and char_error(title[3:], TITLE) < 0.1
    assert char_error(body, BODY) < 0.05
    # A cell a line, with the confidence of its reading.
    assert 0.8 < result.confidence.pages[1].ocr_score < 1.0


@pytest.mark.slow
def test_real_scans_convert_on_the_embedded_checkpoint(shared_dir):
    converter = make_converter()
    letter = converter.convert(shared_dir / "realdocs" / "ocr_test.pdf")
    assert letter.status is ConversionStatus.SUCCESS
    truth = (
        "Docling bundles PDF document conversion to JSON and Markdown in an easy self contained "
        "package"
    )
    assert char_error(markdown(letter), truth) < 0.05
    photo = converter.convert(shared_dir / "realdocs" / "phototest.tif")
    assert photo.status is ConversionStatus.SUCCESS
    truth = (shared_dir / "realdocs" / "phototest.txt").read_text("utf-8")
    assert char_error(markdown(photo), truth) < 0.05


# -- the recorded answers of the large model -----------------------------------------------------


@pytest.fixture(scope="module")
def recorded_dir(shared_dir) -> Path:
    return shared_dir / "recorded"


def recorded_pages() -> list[str]:
    return [
        "mineru_demo1_p0001", "mineru_demo2_p0002", "mineru_demo3_p0001", "mineru_demo3_p0003",
        "mineru_diffusion_paper_p0001", "mineru_diffusion_paper_p0002",
        "mineru_diffusion_paper_p0011", "mineru_diffusion_paper_p0033", "mineru_small_ocr_p0001",
        "mineru_small_ocr_p0002", "mineru_unit_test_p0001", "ragflow_doc1_p0001",
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["pdf", "vlm"])
def replaying(request, recorded_dir):
    return make_converter(f"replay:{recorded_dir}", pipeline=request.param)


@pytest.mark.parametrize("name", recorded_pages())
def test_recorded_pages_arrive_whole_in_order_and_in_place(replaying, recorded_dir, name):
    recorded = json.loads((recorded_dir / f"{name}.json").read_text("utf-8"))
    regions = [r for r in recorded["regions"] if not told_by_items(r, recorded["regions"])]
    result = replaying.convert(recorded_dir / f"{name}.jpg")
    document = result.document
    assert result.status is ConversionStatus.SUCCESS and result.errors == []

    items = [
        item
        for item, _ in document.iterate_items(included_content_layers=set(ContentLayer))
        if getattr(item, "prov", None)
    ]
    size = document.pages[1].size
    found = {
        tuple(place.bbox.to_top_left_origin(size.height).as_tuple()): item
        for item in items
        for place in item.prov
    }
    order = []
    for region in regions:
        x0, y0, x1, y1 = region["bbox"]
        box = (x0 * size.width, y0 * size.height, x1 * size.width, y1 * size.height)
        near, distance = nearest(box, list(found))
        assert distance <= 1.0, (region["type"], region["content"])
        check_content(document, found[near], region)
        order.append(near)
    # In the model's order; captions and footnotes stand with their figure or table.
    attached = {
        ref.cref
        for item in (*document.tables, *document.pictures)
        for ref in (*item.captions, *item.footnotes)
    }
    places = [items.index(found[box]) for box in order if found[box].self_ref not in attached]
    assert places == sorted(places)
    text = markdown(result)
    assert "<|" not in text and "\\[" not in text and "$$$" not in text


def told_by_items(region, regions) -> bool:
    """Whether a list is told by the regions inside of it, as all recorded lists are."""
    x0, y0, x1, y1 = region["bbox"]
    inside = [
        other
        for other in regions
        if other is not region
        and x0 - 0.002 <= other["bbox"][0] and other["bbox"][2] <= x1 + 0.002
        and y0 - 0.002 <= other["bbox"][1] and other["bbox"][3] <= y1 + 0.002
    ]  # fmt: skip
    return region["type"] == "list" and bool(inside)


def nearest(box, boxes):
    def distance(other):
        return max(abs(a - b) for a, b in zip(box, other, strict=True))

    best = min(boxes, key=distance)
    return best, distance(best)


def check_content(document, item, region) -> None:
    kind, content = region["type"], region["content"]
    if kind == "table":
        table = parse_html(content).table
        grid = [[cell.text for cell in row] for row in item.data.grid]
        assert grid == table.rows(fill_spans=True)
    elif kind == "image":
        assert item.label is DocItemLabel.PICTURE
    elif kind == "equation":
        assert item.label is DocItemLabel.FORMULA
        assert item.orig == strip_delimiters(content)
        assert item.text == tidy_spacing(item.orig)
    else:
        marker = getattr(item, "marker", "")
        assert "".join(words(content)) in "".join(words(f"{marker} {item.text}"))
        if kind == "title":
            assert item.label is DocItemLabel.SECTION_HEADER
        furniture = kind in ("header", "page_number", "footer")
        in_furniture = item.content_layer is ContentLayer.FURNITURE
        assert not furniture or in_furniture


# -- loaders of other frameworks, unchanged ------------------------------------------------------


@pytest.mark.slow  # docling's chunkers are slow to import
def test_langchain_s_docling_loader_runs_on_our_converter(drawn_page):
    loaders = pytest.importorskip("langchain_docling")
    from docling.chunking import HierarchicalChunker

    converter = make_converter()
    kinds = loaders.loader.ExportType
    [whole] = loaders.DoclingLoader(
        str(drawn_page), converter=converter, export_type=kinds.MARKDOWN
    ).load()
    assert whole.metadata["source"] == str(drawn_page)
    assert char_error(whole.page_content, f"## {TITLE} {BODY}") < 0.06
    [chunk] = loaders.DoclingLoader(
        str(drawn_page), converter=converter, chunker=HierarchicalChunker()
    ).load()
    # The chunk knows its heading, its page and its box.
    assert char_error(chunk.metadata["dl_meta"]["headings"][0], TITLE) < 0.1
    [item] = chunk.metadata["dl_meta"]["doc_items"]
    assert item["prov"][0]["page_no"] == 1 and item["prov"][0]["bbox"]["r"] > 300


@pytest.mark.slow
def test_llamaindex_s_docling_reader_and_parser_run_on_our_converter(drawn_page):
    readers = pytest.importorskip("llama_index.readers.docling")
    parsers = pytest.importorskip("llama_index.node_parser.docling")
    from docling.chunking import HierarchicalChunker

    reader = readers.DoclingReader(
        doc_converter=make_converter(), export_type=readers.DoclingReader.ExportType.JSON
    )
    documents = reader.load_data(str(drawn_page))
    nodes = parsers.DoclingNodeParser(chunker=HierarchicalChunker())(documents)
    assert len(nodes) == 1
    assert char_error(nodes[0].text, BODY) < 0.06
    assert nodes[0].metadata["doc_items"][0]["prov"][0]["page_no"] == 1


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture
def run():
    """Return a function that runs ``docling`` in this process."""
    from docling.cli.main import app
    from typer.testing import CliRunner

    def run(*arguments):
        result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    return run


needs_option_flags = pytest.mark.skipif(
    Version(version("docling-slim")) < Version("2.141"),
    reason="docling's command has --ocr-option and `options` since 2.141",
)


@needs_option_flags
def test_the_command_line_lists_our_options(run):
    output = run("options", "ocr", "mdiff_ocr", "--allow-external-plugins")
    for name in MDiffOcrOptions.model_fields:
        assert name in output
    assert "threshold" in run(
        "options", "table-structure", "mdiff_table", "--allow-external-plugins"
    )


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(
            ["--ocr-option", "threshold=0.9", "--layout-option", "segmenter=lines",
             "--table-structure-option", "header_rows=first", "--device", "cpu"],
            marks=needs_option_flags,
        ),
    ],
)  # fmt: skip
def test_the_command_line_converts_on_our_engines(run, drawn_page, tmp_path, options):
    run(
        drawn_page, "--to", "md", "--output", tmp_path / "out", "--allow-external-plugins",
        "--ocr-engine", "mdiff_ocr", "--layout-engine", "mdiff_layout",
        "--table-structure-engine", "mdiff_table", *options,
    )  # fmt: skip
    [path] = (tmp_path / "out").iterdir()
    assert char_error(path.read_text("utf-8"), f"## {TITLE} {BODY}") < 0.06
