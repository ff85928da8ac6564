"""The three engines inside docling's real pipelines, with answers written down.

Nothing of docling is replaced: real converter, real stages and threads, real backends. Only the
engine is scripted, and where a test says so the layout, as if docling's own model had found it.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pymupdf
import pytest
from docling.datamodel.accelerator_options import AcceleratorDevice, AcceleratorOptions
from docling.datamodel.base_models import (
    Cluster,
    ConversionStatus,
    FailureCategory,
    InputFormat,
    LayoutPrediction,
)
from docling.datamodel.pipeline_options import (
    BaseLayoutOptions,
    OcrMode,
    ThreadedPdfPipelineOptions,
)
from docling.datamodel.settings import settings
from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption
from docling.exceptions import AcceleratorDeviceNotAvailableError, OperationNotAllowed
from docling.models.base_layout_model import BaseLayoutModel
from docling.models.factories import get_layout_factory
from docling.pipeline.standard_pdf_pipeline import StandardPdfPipeline
from docling_core.types.doc import BoundingBox, CoordOrigin, DocItemLabel
from PIL import Image, ImageDraw
from pydantic import Field

from docling_mdiff import (
    MDiffLayoutOptions,
    MDiffOcrOptions,
    MDiffPdfPipeline,
    MDiffTableOptions,
)
from docling_mdiff.engine import ask, open_stage_engine
from docling_mdiff.notes import num_noted_pages
from docling_mdiff.options import EngineOptions
from mdiff_adapters.engines import Answer, Capabilities, DecodeConfig, Request
from mdiff_adapters.errors import CheckpointError, EngineError, EngineTimeoutError
from mdiff_adapters.testing import ScriptedEngine, sample_pdf

PAGE_PT = (600, 800)
BOTTOM_UP = {"body", "furniture"}


# -- documents -----------------------------------------------------------------------------------


def scan(path: Path, num_pages: int = 1, size_px: tuple[int, int] = (600, 800)) -> Path:
    """Write a PDF of page images with some ink on each, 600 x 800 points."""
    pages = []
    for number in range(num_pages):
        page = Image.new("RGB", size_px, "white")
        draw = ImageDraw.Draw(page)
        # Stripes everywhere: no crop of this page is blank, none looks like another.
        for y in range(4 + number, size_px[1], 13):
            draw.line([(0, y), (size_px[0], y + 9)], fill="black", width=2)
        pages.append(page)
    dpi = 72 * size_px[0] / PAGE_PT[0]
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=dpi)
    return path


def record(box: str, kind: str, rotation: str = "up") -> str:
    return f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_{rotation}|>"


def answers(layout: str, **by_task: str):
    """Answer every page with one layout, and every region with its task's text."""

    def script(request: Request) -> str:
        if request.task == "layout":
            return layout
        if request.task in by_task:
            return by_task[request.task]
        return f"{request.task} {request.origin['order']}."

    return script


# -- docling -------------------------------------------------------------------------------------


class GivenLayoutOptions(BaseLayoutOptions):
    """Options of a layout model that finds what it is told: kind, box in points, label."""

    kind: ClassVar[str] = "given_layout"
    boxes: list[tuple[str, tuple[float, float, float, float]]] = Field(default_factory=list)


class GivenLayout(BaseLayoutModel):
    def __init__(self, *, options, **_):
        self.options = options

    @classmethod
    def get_options_type(cls):
        return GivenLayoutOptions

    def predict_layout(self, conv_res, pages):
        return [
            LayoutPrediction(
                clusters=[
                    Cluster(
                        id=i,
                        label=DocItemLabel(label),
                        confidence=0.9,
                        bbox=BoundingBox(
                            l=box[0], t=box[1], r=box[2], b=box[3], coord_origin=CoordOrigin.TOPLEFT
                        ),
                    )
                    for i, (label, box) in enumerate(self.options.boxes)
                ]
            )
            for _ in pages
        ]


@pytest.fixture(scope="session", autouse=True)
def given_layout():
    factory = get_layout_factory(allow_external_plugins=True)
    if GivenLayoutOptions not in factory.classes:
        factory.register(GivenLayout, "tests", __name__)


@pytest.fixture
def use(monkeypatch):
    """Return a function that puts an engine behind every spec."""

    def use(engine):
        monkeypatch.setattr("docling_mdiff.engine.open_engine", lambda spec, **options: engine)
        return engine

    return use


def converter(
    *, boxes=None, pipeline_cls=MDiffPdfPipeline, ocr=None, layout=None, table=None, **options
) -> DocumentConverter:
    small = {"scale": 1.0}  # pages of 600 x 800 px are rendered in no time
    chosen = ThreadedPdfPipelineOptions(
        allow_external_plugins=True,
        ocr_options=MDiffOcrOptions(**{**small, **(ocr or {})}),
        layout_options=(
            MDiffLayoutOptions(**{**small, **(layout or {})})
            if boxes is None
            else GivenLayoutOptions(boxes=boxes)
        ),
        table_structure_options=MDiffTableOptions(**{**small, **(table or {})}),
        batch_polling_interval_seconds=0.02,
        **options,
    )
    return DocumentConverter(
        allowed_formats=[InputFormat.PDF, InputFormat.IMAGE],
        format_options={
            InputFormat.PDF: PdfFormatOption(pipeline_cls=pipeline_cls, pipeline_options=chosen),
            InputFormat.IMAGE: ImageFormatOption(
                pipeline_cls=pipeline_cls, pipeline_options=chosen
            ),
        },
    )


def markdown(result) -> str:
    return result.document.export_to_markdown(escape_html=False, escape_underscores=False)


def boxes_of(result) -> dict[str, tuple[float, float, float, float]]:
    """Return text to box, top left origin, of all items."""
    document = result.document
    found = {}
    for item, _ in document.iterate_items(
        traverse_pictures=True, included_content_layers=BOTTOM_UP
    ):
        for place in getattr(item, "prov", []):
            height = document.pages[place.page_no].size.height
            found[getattr(item, "text", item.label.value)] = place.bbox.to_top_left_origin(
                height
            ).as_tuple()
    return found


# -- layout and OCR ------------------------------------------------------------------------------

PAGE = "\n".join(
    [
        record("100 020 900 040", "header"),
        record("100 060 900 100", "title"),
        record("100 120 480 400", "text"),
        record("520 120 900 400", "text"),
        record("100 420 900 520", "equation"),
        record("100 540 900 700", "table"),
        record("100 705 900 730", "table_caption"),
        record("100 740 480 900", "image"),
        record("520 740 900 900", "code"),
        record("480 950 520 970", "page_number"),
    ]
)


def test_every_region_gets_the_prompt_of_its_type_and_its_place_in_the_document(use, tmp_path):
    engine = use(
        ScriptedEngine(
            answers(PAGE, formula=r"\[E = mc^{2}\]", table="<fcel>a<fcel>b<nl><fcel>1<fcel>2<nl>")
        )
    )
    result = converter().convert(scan(tmp_path / "scan.pdf"))
    assert result.status is ConversionStatus.SUCCESS
    assert [a.task for a in engine.asked].count("layout") == 1
    by_order = {a.origin["order"]: a for a in engine.asked if a.task != "layout"}
    # The picture is not read; what is asked follows the type.
    tasks = ["text", "text", "text", "text", "formula", "table", "text", "text", "text"]
    assert [by_order[i].task for i in sorted(by_order)] == tasks
    # 72 dpi: 800 permille of 600 pt are 480 px.
    assert by_order[4].size_px == (480, 80)
    text = markdown(result)
    assert text.count("$$E = mc^{2}$$") == 1
    assert text.count("$$") == 2
    assert "## text 1." in text
    assert "header" not in text and "text 0." not in text and "text 9." not in text
    assert "```" in text
    [table] = result.document.tables
    assert [[c.text for c in row] for row in table.data.grid] == [["a", "b"], ["1", "2"]]
    assert table.caption_text(result.document) == "text 6."
    assert len(result.document.pictures) == 1
    for name, box in {
        "text 2.": (60, 96, 288, 320),
        "E = mc^{2}": (60, 336, 540, 416),
        "table": (60, 432, 540, 560),
        "picture": (60, 592, 288, 720),
        "text 9.": (288, 760, 312, 776),
    }.items():
        assert boxes_of(result)[name] == pytest.approx(box, abs=0.5)
    labels = {i.text: i.content_layer.value for i in result.document.texts}
    assert labels["text 0."] == labels["text 9."] == "furniture"


def test_the_models_reading_order_wins_over_geometry(use, tmp_path):
    layout = "\n".join(
        [
            record("100 600 900 700", "text"),
            record("520 100 900 500", "text"),
            record("100 100 480 500", "text"),
        ]
    )
    use(ScriptedEngine(answers(layout)))
    path = scan(tmp_path / "scan.pdf")
    in_model_order = markdown(converter().convert(path))
    assert in_model_order.split() == ["text", "0.", "text", "1.", "text", "2."]
    in_geometric_order = markdown(converter(pipeline_cls=StandardPdfPipeline).convert(path))
    assert in_geometric_order.split() == ["text", "2.", "text", "1.", "text", "0."]


def test_a_paragraph_goes_on_only_in_one_that_begins_in_lower_case(use, tmp_path):
    layout = "\n".join(
        [
            record("100 100 480 500", "text"),
            record("520 100 900 300", "text"),
            record("520 350 900 500", "text"),
        ]
    )
    said = {0: "The paragraph goes on by", 1: "Question: which one", 2: "serializing it."}
    use(ScriptedEngine(lambda r: layout if r.task == "layout" else said[r.origin["order"]]))
    result = converter().convert(scan(tmp_path / "scan.pdf"))
    assert [item.text for item in result.document.texts] == list(said.values())


def test_formulas_survive_docling_s_own_pipeline_as_original_text_only(use, tmp_path):
    use(ScriptedEngine(answers(record("100 100 900 300", "equation"), formula="$$x_1$$")))
    result = converter(pipeline_cls=StandardPdfPipeline).convert(scan(tmp_path / "scan.pdf"))
    [formula] = result.document.texts
    assert (formula.text, formula.orig) == ("", "x_1")


def test_lists_are_told_once_by_their_items(use, tmp_path):
    layout = "\n".join(
        [
            record("100 100 900 200", "text"),
            record("100 200 900 300", "text"),
            record("100 100 900 300", "list"),
            record("100 500 900 600", "list"),
        ]
    )
    said = {0: "- one", 1: "- two", 3: "1. three\n2. four\nand more"}
    use(ScriptedEngine(lambda r: layout if r.task == "layout" else said[r.origin["order"]]))
    result = converter().convert(scan(tmp_path / "scan.pdf"))
    items = [t.text for t in result.document.texts if t.label is DocItemLabel.LIST_ITEM]
    assert items == ["one", "two", "three", "four and more"]


def test_an_unknown_word_for_a_type_is_text(use, tmp_path):
    layout = record("100 100 900 400", "index") + record("100 500 900 600", "ref_text")
    use(ScriptedEngine(answers(layout)))
    result = converter().convert(scan(tmp_path / "scan.pdf"))
    assert result.status is ConversionStatus.SUCCESS
    assert markdown(result).split("\n\n") == ["text 0.", "text 1."]


@pytest.mark.parametrize(("rotation", "angle"), [("right", 90), ("down", 180), ("left", 270)])
def test_turned_regions_are_read_upright_and_stay_in_their_place(use, tmp_path, rotation, angle):
    corner_is_dark = []

    def script(request):
        if request.task == "layout":
            return record("100 100 300 700", "aside_text", rotation)
        size = request.image.size
        corners = [(2, 2), (2, size[1] - 3), (size[0] - 3, size[1] - 3), (size[0] - 3, 2)]
        corner_is_dark.append([request.image.getpixel(c)[0] < 128 for c in corners])
        return "turned"

    engine = use(ScriptedEngine(script))
    page = Image.new("RGB", (1200, 1600), "white")
    # One dark corner, the region's upper left on the page.
    ImageDraw.Draw(page).rectangle([100, 140, 180, 220], fill="black")
    page.save(tmp_path / "scan.pdf", resolution=144)
    result = converter(ocr={"scale": 2.0}).convert(tmp_path / "scan.pdf")
    width, height = engine.asked[-1].size_px
    assert (width > height) == (angle in (90, 270))
    # Corners counter-clockwise from upper left; each quarter turn moves the dark one by one.
    assert corner_is_dark == [[i == angle // 90 for i in range(4)]]
    assert boxes_of(result)["turned"] == pytest.approx((60, 80, 180, 560), abs=0.5)


def test_a_blank_page_costs_no_call_and_is_no_error(use, tmp_path):
    engine = use(ScriptedEngine())
    Image.new("RGB", (600, 800), "white").save(tmp_path / "blank.pdf")
    result = converter().convert(tmp_path / "blank.pdf")
    assert result.status is ConversionStatus.SUCCESS
    assert engine.asked == [] and markdown(result) == ""


def test_ocr_confidence_is_the_engines_and_unknown_where_it_gives_none(use, tmp_path):
    def script(request):
        if request.task == "layout":
            return record("100 100 900 300", "text") + record("100 400 900 700", "text")
        confidence = {0: 0.5, 1: 0.9}[request.origin["order"]]
        return Answer(id=request.id, text="text", confidence=confidence)

    use(ScriptedEngine(script))
    path = scan(tmp_path / "scan.pdf")
    assert converter().convert(path).confidence.pages[1].ocr_score == pytest.approx(0.7)
    silent = ScriptedEngine(
        lambda r: (
            record("100 100 900 300", "text")
            if r.task == "layout"
            else Answer(id=r.id, text="text")
        )
    )
    use(silent)
    assert math.isnan(converter().convert(path).confidence.pages[1].ocr_score)


def test_all_regions_of_a_batch_of_pages_are_one_call(use, tmp_path):
    engine = use(ScriptedEngine(answers(PAGE)))
    converter(layout_batch_size=8, ocr_batch_size=8, do_table_structure=False).convert(
        scan(tmp_path / "scan.pdf", num_pages=3)
    )
    # Pages arrive one by one, so a stage may see them in up to three batches, never more.
    assert engine.num_calls <= 6
    assert len(engine.asked) == 3 * 10


def test_the_largest_crop_is_asked_first():
    asked = []

    class Recorder(ScriptedEngine):
        def answer(self, requests):
            requests = list(requests)
            asked.extend(r.image.size for r in requests)
            return super().answer(requests)

    sizes = [(10, 10), (300, 20), (50, 50)]
    ask(Recorder(), [Request(id=str(s), image=Image.new("RGB", s)) for s in sizes])
    assert asked == [(300, 20), (50, 50), (10, 10)]


# -- docling's own layout ------------------------------------------------------------------------

TWO_COLUMNS = [
    ("text", (60.0, 100.0, 290.0, 400.0)),
    ("text", (308.0, 100.0, 540.0, 400.0)),
    ("formula", (60.0, 410.0, 540.0, 460.0)),
    ("table", (60.0, 470.0, 540.0, 600.0)),
]


@pytest.mark.parametrize("mode", [OcrMode.DEFAULT, OcrMode.LAYOUT_REGIONS, OcrMode.FULL_PAGE])
def test_crops_follow_docling_s_clusters_in_every_mode(use, tmp_path, mode):
    """docling's OCR rectangles would join all four clusters into one crop."""
    engine = use(ScriptedEngine(answers("", table="<fcel>a<fcel>b<nl>", formula="x^2")))
    result = converter(boxes=TWO_COLUMNS, ocr={"mode": mode}).convert(scan(tmp_path / "scan.pdf"))
    assert result.status is ConversionStatus.SUCCESS
    assert sorted(a.task for a in engine.asked) == ["formula", "table", "text", "text"]
    assert markdown(result).split("\n\n")[:3] == ["text 0.", "text 1.", "$$x^2$$"]
    assert [c.text for c in result.document.tables[0].data.table_cells] == ["a", "b"]


def test_text_is_placed_inside_its_cluster(use, tmp_path):
    use(ScriptedEngine(answers("")))
    box = (300.0, 400.0, 500.0, 450.0)
    result = converter(boxes=[("text", box)]).convert(scan(tmp_path / "scan.pdf"))
    assert boxes_of(result)["text 0."] == pytest.approx(box, abs=0.5)


def test_overlapping_guesses_of_docling_s_layout_are_read_once(use, tmp_path):
    engine = use(ScriptedEngine(answers("")))
    boxes = [
        ("text", (60.0, 100.0, 540.0, 400.0)),
        ("list_item", (60.0, 101.0, 540.0, 401.0)),
        ("text", (70.0, 110.0, 530.0, 390.0)),
    ]
    result = converter(boxes=boxes).convert(scan(tmp_path / "scan.pdf"))
    assert len(engine.asked) == 1
    assert len(result.document.texts) == 1


def test_several_lines_in_several_regions_all_survive(use, tmp_path):
    said = {0: "- a\n- b", 1: "c\n\nd"}
    use(ScriptedEngine(lambda r: said[r.origin["order"]]))
    boxes = [("text", (60.0, 100.0, 540.0, 300.0)), ("text", (60.0, 400.0, 540.0, 700.0))]
    result = converter(boxes=boxes).convert(scan(tmp_path / "scan.pdf"))
    words = markdown(result).replace("-", " ").split()
    assert words == ["a", "b", "c", "d"]


LINES_ONLY = Capabilities(tasks=("text",), text_unit="segment", segment_px=(896, 28), stretch=2.4)


def test_born_digital_pages_need_no_model_where_it_has_no_layout_task(use, tmp_path):
    engine = use(ScriptedEngine(capabilities=LINES_ONLY))
    document = pymupdf.open()
    page = document.new_page(width=600, height=800)
    page.insert_text((200, 60), "A short title", fontsize=24)
    for column, x in enumerate((40, 320)):
        for paragraph in range(2):
            for line in range(4):
                where = (x, 120 + 100 * paragraph + 14 * line)
                text = f"Column {column} paragraph {paragraph} line {line} and words."
                page.insert_text(where, text, fontsize=11)
    document.save(tmp_path / "digital.pdf")
    document.close()
    result = converter().convert(tmp_path / "digital.pdf")
    assert result.status is ConversionStatus.SUCCESS and engine.num_calls == 0
    title, *paragraphs = markdown(result).split("\n\n")
    assert title == "## A short title"
    starts = [" ".join(text.split()[:4]) for text in paragraphs]
    assert starts == [f"Column {c} paragraph {p}" for c in (0, 1) for p in (0, 1)]
    assert all(text.count("line") == 4 for text in paragraphs)


def test_a_page_with_text_and_a_large_picture_is_looked_at(use, tmp_path):
    engine = use(ScriptedEngine(lambda r: "line", capabilities=LINES_ONLY))
    path = tmp_path / "mixed.pdf"
    path.write_bytes(_with_picture(sample_pdf(1, size_pt=PAGE_PT)))
    result = converter().convert(path)
    assert engine.num_calls > 0 and "Page 1" in markdown(result)


def test_a_born_digital_page_is_not_read(use, tmp_path):
    engine = use(ScriptedEngine())
    (tmp_path / "digital.pdf").write_bytes(sample_pdf(2, size_pt=PAGE_PT))
    boxes = [("text", (0.0, 370.0, 300.0, 420.0))]
    result = converter(boxes=boxes).convert(tmp_path / "digital.pdf")
    assert engine.num_calls == 0
    assert markdown(result).split("\n\n") == ["Page 1", "Page 2"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(OcrMode.DEFAULT, ["Page 1", "text 0."]), (OcrMode.FULL_PAGE, ["text 0.", "text 1."])],
)
def test_a_page_with_text_and_a_scan_has_neither_twice(use, tmp_path, mode, expected):
    engine = use(ScriptedEngine(answers("")))
    path = tmp_path / "mixed.pdf"
    path.write_bytes(_with_picture(sample_pdf(1, size_pt=PAGE_PT)))
    boxes = [("text", (0.0, 370.0, 300.0, 420.0)), ("text", (60.0, 600.0, 540.0, 760.0))]
    result = converter(boxes=boxes, ocr={"mode": mode}).convert(path)
    assert markdown(result).split("\n\n") == expected
    assert len(engine.asked) == len([t for t in expected if t.startswith("text")])


def _with_picture(pdf: bytes) -> bytes:
    """Paint a picture over the lower part of a page that has a line of text in its middle."""
    import io

    import pypdfium2

    document = pypdfium2.PdfDocument(pdf)
    stripes = Image.effect_noise((480, 160), 90).convert("RGB")
    bitmap = pypdfium2.PdfBitmap.from_pil(stripes)
    picture = pypdfium2.PdfImage.new(document)
    picture.set_bitmap(bitmap)
    picture.set_matrix(pypdfium2.PdfMatrix().scale(480, 160).translate(60, 40))
    page = document[0]
    page.insert_obj(picture)
    page.gen_content()
    buffer = io.BytesIO()
    document.save(buffer)
    bitmap.close()
    page.close()
    document.close()
    return buffer.getvalue()


PICTURE = ("picture", (60.0, 100.0, 540.0, 500.0))


@pytest.mark.parametrize("read_pictures", [False, True])
def test_lettering_of_pictures_is_read_only_on_request(use, tmp_path, read_pictures):
    engine = use(ScriptedEngine(answers("")))
    boxes = [PICTURE, ("caption", (60.0, 510.0, 540.0, 540.0))]
    result = converter(boxes=boxes, ocr={"read_pictures": read_pictures}).convert(
        scan(tmp_path / "scan.pdf")
    )
    assert len(engine.asked) == 1 + read_pictures
    [picture] = result.document.pictures
    inside = [c.resolve(result.document).label.value for c in picture.children]
    assert inside.count("text") == read_pictures


@pytest.mark.parametrize("boxes", [[], [("picture", (0.0, 0.0, 600.0, 800.0))]])
def test_a_page_on_which_docling_finds_nothing_to_read_is_read_as_a_whole(use, tmp_path, boxes):
    layout = record("100 100 900 200", "title") + record("100 250 900 700", "text")
    engine = use(ScriptedEngine(answers(layout)))
    result = converter(boxes=boxes).convert(scan(tmp_path / "scan.pdf"))
    assert [a.task for a in engine.asked] == ["layout", "text", "text"]
    assert markdown(result).split("\n\n")[:2] == ["## text 0.", "text 1."]


def test_full_page_mode_with_a_picture_of_the_page_reads_it_once(use, tmp_path):
    engine = use(ScriptedEngine(answers(record("100 100 900 700", "text"))))
    result = converter(
        boxes=[("picture", (0.0, 0.0, 600.0, 800.0))], ocr={"mode": "full_page"}
    ).convert(scan(tmp_path / "scan.pdf"))
    assert [a.task for a in engine.asked] == ["layout", "text"]
    assert markdown(result).count("text 0.") == 1


# -- tables --------------------------------------------------------------------------------------

TABLE_ONLY = [("table", (60.0, 100.0, 540.0, 400.0))]


def test_a_table_is_read_once_for_ocr_and_table_stage(use, tmp_path):
    engine = use(ScriptedEngine(answers("", table="<fcel>n<fcel>m<nl><fcel>1<fcel>2<nl>")))
    result = converter(boxes=TABLE_ONLY).convert(scan(tmp_path / "scan.pdf"))
    assert [a.task for a in engine.asked] == ["table"]
    [table] = result.document.tables
    assert list(table.export_to_dataframe(result.document).columns) == ["n", "m"]
    assert result.confidence.pages[1].table_score == 1.0


@pytest.mark.parametrize(
    ("mode", "headers"), [("none", []), ("first", ["n", "m"]), ("auto", ["n", "m"])]
)
def test_header_rows(use, tmp_path, mode, headers):
    use(ScriptedEngine(answers("", table="<fcel>n<fcel>m<nl><fcel>1<fcel>2<nl>")))
    result = converter(boxes=TABLE_ONLY, table={"header_rows": mode}).convert(
        scan(tmp_path / "scan.pdf")
    )
    cells = result.document.tables[0].data.table_cells
    assert [c.text for c in cells if c.column_header] == headers


def test_the_table_stage_reads_by_itself_what_no_ocr_has_read(use, tmp_path):
    engine = use(ScriptedEngine(answers("", table="<fcel>a<lcel><nl><fcel>b<fcel>c<nl>")))
    result = converter(boxes=TABLE_ONLY, do_ocr=False).convert(scan(tmp_path / "scan.pdf"))
    assert [a.task for a in engine.asked] == ["table"]
    cells = result.document.tables[0].data.table_cells
    assert [(c.text, c.col_span) for c in cells] == [("a", 2), ("b", 1), ("c", 1)]


@pytest.mark.parametrize("do_ocr", [True, False])
@pytest.mark.parametrize("answer", ["", "no table at all", "<nl><nl>"])
def test_a_table_without_structure_keeps_its_text(use, tmp_path, do_ocr, answer):
    use(ScriptedEngine(answers("", table=answer, text="the words")))
    result = converter(boxes=TABLE_ONLY, do_ocr=do_ocr).convert(scan(tmp_path / "scan.pdf"))
    expected = answer if answer.startswith("no") else "the words"
    assert expected in markdown(result)
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert {e.page_no for e in result.errors} == {1}
    assert all("table 0: no table structure was found" in e.error_message for e in result.errors)


def test_without_table_structure_the_text_of_a_table_stays(use, tmp_path):
    use(ScriptedEngine(answers("", table="<fcel>a<fcel>b<nl><fcel>c<fcel>d<nl>")))
    result = converter(boxes=TABLE_ONLY, do_table_structure=False).convert(
        scan(tmp_path / "scan.pdf")
    )
    for word in "abcd":
        assert word in markdown(result)


# -- failures ------------------------------------------------------------------------------------


def failing_on(page: int, order: int, error: Exception):
    def script(request):
        if request.task == "layout":
            return record("100 100 900 300", "text") + record("100 400 900 700", "text")
        place = request.origin
        if place["page"] == page and place["order"] == order:
            raise error
        return f"page {place['page'] + 1} region {place['order']}."

    return script


def test_one_bad_region_costs_no_page_and_no_neighbour(use, tmp_path):
    use(ScriptedEngine(failing_on(1, 0, EngineError("boom"))))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=4), raises_on_error=False)
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    [error] = result.errors
    assert (error.page_no, error.category) == (2, FailureCategory.INFERENCE_FAILURE)
    assert error.error_message == "text 0: boom"
    text = markdown(result)
    assert [f"page {n} region {r}." in text for n in (1, 2, 3, 4) for r in (0, 1)] == [
        True, True, False, True, True, True, True, True,
    ]  # fmt: skip


def test_a_dead_engine_is_one_error_a_page(use, tmp_path):
    class Dead(ScriptedEngine):
        def answer(self, requests):
            requests = list(requests)
            if requests[0].task == "layout":
                return super().answer(requests)
            raise RuntimeError("out of memory")

    use(Dead(failing_on(9, 0, EngineError(""))))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=2), raises_on_error=False)
    # Pages end in any order: docling's stages are threads.
    assert sorted((e.page_no, e.error_message) for e in result.errors) == [
        (1, "text 0, text 1: out of memory"), (2, "text 0, text 1: out of memory"),
    ]  # fmt: skip
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert set(result.document.pages) == {1, 2}


def test_an_engine_that_stops_answering_is_an_error_of_what_is_left(use, tmp_path):
    class Lazy(ScriptedEngine):
        def answer(self, requests):
            return iter([a for a in super().answer(requests) if not a.id.endswith("r1")])

    use(Lazy(failing_on(9, 0, EngineError(""))))
    result = converter().convert(scan(tmp_path / "scan.pdf"), raises_on_error=False)
    [error] = result.errors
    assert error.error_message.startswith("text 1: ") and "gave no answer" in error.error_message
    assert "page 1 region 0." in markdown(result)


@pytest.mark.parametrize("reason", ["length", "loop"])
def test_a_truncated_answer_keeps_its_text_and_says_so(use, tmp_path, reason):
    def script(request):
        if request.task == "layout":
            return record("100 100 900 300", "text")
        return Answer(id=request.id, text="start " + "again " * 500, finish_reason=reason)

    use(ScriptedEngine(script))
    result = converter().convert(scan(tmp_path / "scan.pdf"), raises_on_error=False)
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    [error] = result.errors
    assert error.page_no == 1 and "incomplete" in error.error_message
    # The repetition is cut: what is left is text, not 3000 characters of noise.
    assert markdown(result).startswith("start again") and len(markdown(result)) < 50


def test_an_answer_that_came_too_late_is_a_timeout(use, tmp_path):
    use(ScriptedEngine(failing_on(0, 1, EngineTimeoutError("no answer in 3 s"))))
    result = converter().convert(scan(tmp_path / "scan.pdf"), raises_on_error=False)
    [error] = result.errors
    assert error.category is FailureCategory.TIMEOUT and result.has_timeout_errors()
    assert "page 1 region 0." in markdown(result)


def test_a_layout_that_cannot_be_read_leaves_the_page_as_one_text(use, tmp_path):
    use(ScriptedEngine(answers("I see a page.", text="all of it")))
    result = converter().convert(scan(tmp_path / "scan.pdf"), raises_on_error=False)
    assert markdown(result) == "all of it"
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    [error] = result.errors
    assert error.page_no == 1 and "I see a page." in error.error_message


def test_a_layout_request_that_fails_names_its_reason_and_page(use, tmp_path):
    def script(request):
        if request.task == "layout" and request.origin["page"] == 1:
            raise EngineError("layout boom")
        return record("100 100 900 300", "text") if request.task == "layout" else "some text"

    use(ScriptedEngine(script))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=2), raises_on_error=False)
    assert {e.page_no for e in result.errors} == {2}
    assert any("layout boom" in e.error_message for e in result.errors)
    assert markdown(result).count("some text") == 2


def test_a_cut_off_layout_is_reported(use, tmp_path):
    use(ScriptedEngine(answers(record("100 100 900 300", "text") + "<|box_start|>100 400 9")))
    result = converter().convert(scan(tmp_path / "scan.pdf"), raises_on_error=False)
    assert markdown(result) == "text 0."
    assert any("cut short" in e.error_message for e in result.errors)


@pytest.mark.parametrize(
    "box", [(60.0, 100.0, 60.05, 100.05), (700.0, 900.0, 800.0, 1000.0), (590.0, 0.0, 900.0, 50.0)]
)
def test_boxes_without_pixels_or_beyond_the_page_cost_nothing_else(use, tmp_path, box):
    use(ScriptedEngine(answers("")))
    boxes = [("text", (60.0, 300.0, 540.0, 400.0)), ("text", box)]
    result = converter(boxes=boxes, ocr={"mode": "full_page"}).convert(scan(tmp_path / "scan.pdf"))
    assert markdown(result).startswith("text 0.")
    assert result.status in (ConversionStatus.SUCCESS, ConversionStatus.PARTIAL_SUCCESS)


def test_a_page_that_cannot_be_rendered_costs_no_other_page(use, tmp_path, monkeypatch):
    from docling_mdiff import layout, ocr

    use(ScriptedEngine(failing_on(9, 0, EngineError(""))))

    def broken(render):
        def render_or_fail(conv_res, page, **options):
            if page.page_no == 2:
                raise MemoryError("no room for the page")
            return render(conv_res, page, **options)

        return render_or_fail

    for module in (layout, ocr):
        monkeypatch.setattr(module, "render", broken(module.render))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=3), raises_on_error=False)
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert {e.page_no for e in result.errors} == {2}
    assert "page 1 region 0." in markdown(result) and "page 3 region 1." in markdown(result)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("docling_mdiff.ocr.read_clusters", "not read: a bug"),
        ("docling_mdiff.table.to_table_element", "tables not read: a bug"),
        ("docling_mdiff.layout.page_clusters", "no layout: a bug"),
        ("docling_mdiff.ocr.MDiffOcrModel.get_ocr_rects", "not prepared: a bug"),
    ],
)
def test_even_a_bug_of_ours_loses_no_page(use, tmp_path, monkeypatch, broken, message):
    def bug(*args, **kwargs):
        raise ValueError("a bug")

    monkeypatch.setattr(broken, bug)
    layout = record("100 100 900 300", "text") + record("100 400 900 700", "table")
    use(ScriptedEngine(answers(layout, table="<fcel>a<fcel>b<nl>")))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=2), raises_on_error=False)
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert set(result.document.pages) == {1, 2} and len(result.pages) == 2
    assert {(e.page_no, e.error_message) for e in result.errors} == {(1, message), (2, message)}


def test_a_document_deadline_stops_asking_and_keeps_what_is_there(use, tmp_path):
    engine = use(ScriptedEngine(answers(PAGE), delay_s=0.15))
    started = time.monotonic()
    result = converter(document_timeout=0.6).convert(
        scan(tmp_path / "scan.pdf", num_pages=8), raises_on_error=False
    )
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert result.has_timeout_errors()
    asked = len(engine.asked)
    assert asked < 40 and time.monotonic() - started < 30
    # Nothing goes on in the background: the call was abandoned.
    time.sleep(0.6)
    assert len(engine.asked) <= asked + 1


def test_ask_returns_what_came_before_the_deadline_and_timeouts_for_the_rest(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("docling_mdiff.engine.time", SimpleNamespace(monotonic=lambda: now[0]))

    def script(request):
        now[0] += 1
        return "read"

    engine = ScriptedEngine(script)
    requests = [Request(id=str(i), image=Image.new("RGB", (9, 9))) for i in range(10)]
    answers_by_id = ask(engine, requests, deadline=2.5)
    reasons = [answers_by_id[str(i)].finish_reason for i in range(10)]
    assert reasons == ["stop"] * 3 + ["timeout"] * 7
    late = ask(engine, requests, deadline=1)
    assert {a.finish_reason for a in late.values()} == {"timeout"}
    assert len(engine.asked) == 3


# -- construction --------------------------------------------------------------------------------


def test_a_checkpoint_that_is_not_there_is_a_clear_error(tmp_path):
    path = scan(tmp_path / "scan.pdf")
    broken = converter(ocr={"engine": str(tmp_path / "nowhere")}, layout={"engine": "scripted:"})
    with pytest.raises(CheckpointError, match="nowhere"):
        broken.convert(path)


def test_nothing_is_loaded_for_a_stage_that_is_off(monkeypatch, tmp_path):
    opened = []
    engine = ScriptedEngine(answers(record("100 100 900 300", "text")))
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **_: opened.append(spec) or engine
    )
    converter(do_ocr=False, do_table_structure=False).convert(scan(tmp_path / "scan.pdf"))
    assert len(opened) == 1  # the layout


def test_a_server_needs_permission_from_docling_or_from_the_options(monkeypatch):
    opened = []
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **o: opened.append((spec.spec, o))
    )
    url = "http://localhost:1/v1"
    device = AcceleratorOptions(device=AcceleratorDevice.CPU)
    with pytest.raises(OperationNotAllowed, match="MDIFF_DOCLING_ALLOW_REMOTE"):
        open_stage_engine(EngineOptions(engine=url), device)
    open_stage_engine(EngineOptions(engine=url), device, remote_services=True)
    open_stage_engine(EngineOptions(engine=url, allow_remote=True), device)
    # A server has its own device.
    assert opened == [(url, {}), (url, {})]


def test_the_device_reaches_the_engine_and_auto_leaves_the_choice_to_it(monkeypatch):
    opened = []
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **o: opened.append((spec.spec, o))
    )
    options = EngineOptions(engine="tiny", engine_options={"dtype": "fp32"})
    open_stage_engine(options, AcceleratorOptions(device=AcceleratorDevice.AUTO))
    open_stage_engine(options, AcceleratorOptions(device=AcceleratorDevice.CPU))
    assert opened == [("tiny", {"dtype": "fp32"}), ("tiny", {"dtype": "fp32", "device": "cpu"})]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("tiny", {"device": "cpu"}),
        ("org/name", {"device": "cpu"}),
        ("modelscope:org/name", {"device": "cpu"}),
        ("reference:/checkpoint", {"device": "cpu"}),
        ("replay:/folder", {}),
        ("theirs:x", {}),
    ],
)
def test_the_device_reaches_every_kind_of_engine_that_takes_one(monkeypatch, engine, expected):
    opened = []
    monkeypatch.setattr("docling_mdiff.engine.open_engine", lambda spec, **o: opened.append(o))
    open_stage_engine(
        EngineOptions(engine=engine), AcceleratorOptions(device=AcceleratorDevice.CPU)
    )
    assert opened == [expected]


def test_a_device_that_is_not_there_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(AcceleratorDeviceNotAvailableError):
        open_stage_engine(
            EngineOptions(engine="tiny"), AcceleratorOptions(device=AcceleratorDevice.CUDA)
        )


def test_a_checkpoint_in_doclings_artifacts_folder_is_preferred_to_the_hub(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **o: opened.append(spec.spec)
    )
    (tmp_path / "org--name").mkdir()
    for name in ("org/name", "org/other", "tiny"):
        open_stage_engine(EngineOptions(engine=name), AcceleratorOptions(), tmp_path)
    assert opened == [str(tmp_path / "org--name"), "org/other", "tiny"]


def test_languages_are_accepted_and_said_to_be_needless(use, tmp_path, caplog):
    use(ScriptedEngine(answers(record("100 100 900 300", "text"))))
    with caplog.at_level("INFO", logger="docling_mdiff"):
        result = converter(ocr={"lang": ["iso:de", "en"]}).convert(scan(tmp_path / "scan.pdf"))
    assert result.status is ConversionStatus.SUCCESS
    [message] = [r.getMessage() for r in caplog.records if "languages" in r.getMessage()]
    assert "iso:de-Latn, en" in message


def test_pages_larger_than_the_budget_are_rendered_smaller(use, tmp_path):
    sizes = []

    def script(request):
        sizes.append((request.task, request.image.size))
        return record("000 000 1000 1000", "text") if request.task == "layout" else "text"

    use(ScriptedEngine(script))
    # No resolution in the file: docling takes a pixel for a point, 3 would be 27 megapixels.
    page = Image.effect_noise((2000, 1500), 80).convert("RGB")
    page.save(tmp_path / "photo.png", compress_level=1)
    full = {"scale": 3.0, "max_pixels": 1_000_000}
    converter(layout=full, ocr=full).convert(tmp_path / "photo.png")
    [(_, size)] = [s for s in sizes if s[0] == "text"]
    assert size[0] * size[1] <= 1_010_000 and size[0] / size[1] == pytest.approx(4 / 3, abs=0.01)


def test_an_image_is_never_blown_up(use, tmp_path):
    sizes = []

    def script(request):
        sizes.append((request.task, request.image.size))
        return record("000 000 1000 1000", "text") if request.task == "layout" else "text"

    use(ScriptedEngine(script))
    Image.effect_noise((500, 700), 80).convert("RGB").save(tmp_path / "scan.png", dpi=(100, 100))
    converter(layout={"scale": 3.0}, ocr={"scale": 3.0}).convert(tmp_path / "scan.png")
    assert [size for task, size in sizes if task == "text"] == [(500, 700)]


# -- many documents ------------------------------------------------------------------------------


def test_documents_side_by_side_share_one_engine_and_mix_nothing(monkeypatch, tmp_path):
    seen, side_by_side = set(), threading.Event()

    def script(request):
        place = request.origin
        seen.add(place["stem"])
        if len(seen) > 1:
            side_by_side.set()
        # The first document stands still until the second one asks: neither blocks the other.
        assert side_by_side.wait(60)
        if request.task == "layout":
            return record("100 100 900 300", "text") + record("100 400 900 700", "text")
        return f"{place['stem']} page {place['page'] + 1} region {place['order']}."

    opened = []
    engine = ScriptedEngine(script)
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **o: opened.append(spec) or engine
    )
    monkeypatch.setattr(settings.perf, "doc_batch_concurrency", 2)
    monkeypatch.setattr(settings.perf, "doc_batch_size", 2)
    paths = [scan(tmp_path / f"{name}.pdf", num_pages=3) for name in ("one", "two", "three")]
    results = list(converter().convert_all(paths))
    assert len(opened) == 3  # one pipeline: OCR, layout and table, each once
    for path, result in zip(paths, results, strict=True):
        assert result.status is ConversionStatus.SUCCESS
        expected = [f"{path.stem} page {p} region {r}." for p in (1, 2, 3) for r in (0, 1)]
        assert markdown(result).split("\n\n") == expected


def test_three_stages_and_two_pipelines_load_one_model(tmp_path):
    """The real registry: a spec is built once, whatever asks for it."""
    from mdiff_adapters.engines import open_engine

    options = EngineOptions(engine="scripted:")
    accelerator = AcceleratorOptions()
    engines = {id(open_stage_engine(options, accelerator)) for _ in range(3)}
    assert engines == {id(open_engine("scripted:"))}


def test_nothing_is_kept_of_documents_that_are_done(use, tmp_path):
    use(ScriptedEngine(answers(PAGE)))
    result = converter().convert(scan(tmp_path / "scan.pdf", num_pages=2))
    assert num_noted_pages() > 0  # the formulas are looked up while the result lives
    del result
    gc.collect()
    assert num_noted_pages() == 0


# -- formulas of born-digital pages --------------------------------------------------------------


def test_formula_enrichment_reads_the_formulas_of_born_digital_pages(use, tmp_path):
    engine = use(ScriptedEngine(answers("", formula=r"\(a^2\)")))
    (tmp_path / "digital.pdf").write_bytes(sample_pdf(1, size_pt=PAGE_PT, texts=["a2"]))
    boxes = [("formula", (0.0, 370.0, 300.0, 420.0))]
    plain = converter(boxes=boxes).convert(tmp_path / "digital.pdf")
    assert engine.num_calls == 0 and "formula-not-decoded" in markdown(plain)
    enriched = converter(boxes=boxes, do_formula_enrichment=True).convert(tmp_path / "digital.pdf")
    assert [a.task for a in engine.asked] == ["formula"]
    assert markdown(enriched) == "$$a^2$$"
    [item] = enriched.document.texts
    assert item.orig == "a2"


SPACED = r"\[\operatorname {m a x} _ {1 0} (d _ {k}) < 0 . 5\]"
BARE = r"\operatorname {m a x} _ {1 0} (d _ {k}) < 0 . 5"
TIDY = r"\operatorname{max}_{10} (d_{k}) < 0.5"


def test_spaced_formulas_are_delivered_without_the_blanks(use, tmp_path):
    """docling#2374: docling exports the text of a formula as it is."""
    layout = "\n".join([record("100 100 900 300", "equation"), record("100 400 900 600", "text")])
    inline = r"Let \(d_k < 3\) hold."
    use(ScriptedEngine(answers(layout, formula=SPACED, text=inline)))
    document = converter().convert(scan(tmp_path / "scan.pdf")).document
    formula = document.texts[0]
    assert (formula.text, formula.orig) == (TIDY, BARE)
    assert document.export_to_text() == f"$${TIDY}$$\n\n{inline}"
    # Nothing is escaped in a formula of its own; in the text it is, unless one says otherwise.
    assert document.export_to_markdown().split("\n\n")[0] == f"$${TIDY}$$"
    whole = document.export_to_markdown(escape_underscores=False, escape_html=False)
    assert whole == f"$${TIDY}$$\n\n{inline}"
    page = document.export_to_html()
    assert f'<annotation encoding="TeX">{TIDY.replace("<", "&lt;")}</annotation>' in page
    assert "<mn>10</mn>" in page and "<mn>0.5</mn>" in page


def test_spaced_formulas_of_born_digital_pages_lose_the_blanks_too(use, tmp_path):
    use(ScriptedEngine(answers("", formula=SPACED)))
    (tmp_path / "digital.pdf").write_bytes(sample_pdf(1, size_pt=PAGE_PT, texts=["a2"]))
    boxes = [("formula", (0.0, 370.0, 300.0, 420.0))]
    result = converter(boxes=boxes, do_formula_enrichment=True).convert(tmp_path / "digital.pdf")
    assert markdown(result) == f"$${TIDY}$$"


def test_a_formula_that_cannot_be_read_is_an_error_of_its_page(use, tmp_path):
    def script(request):
        raise EngineError("formula boom")

    use(ScriptedEngine(script))
    (tmp_path / "digital.pdf").write_bytes(sample_pdf(1, size_pt=PAGE_PT, texts=["a2"]))
    result = converter(
        boxes=[("formula", (0.0, 370.0, 300.0, 420.0))], do_formula_enrichment=True
    ).convert(tmp_path / "digital.pdf", raises_on_error=False)
    [error] = result.errors
    assert error.page_no == 1 and "formula boom" in error.error_message
    assert result.status is ConversionStatus.PARTIAL_SUCCESS


def test_thresholds_of_each_stage_reach_the_engine(use, tmp_path):
    engine = use(ScriptedEngine(answers(PAGE)))
    converter(layout={"threshold": 0.3}, ocr={"threshold": 0.6}).convert(scan(tmp_path / "s.pdf"))
    assert {(a.task == "layout", a.threshold) for a in engine.asked} == {(True, 0.3), (False, 0.6)}
    assert DecodeConfig().threshold == 0.95
