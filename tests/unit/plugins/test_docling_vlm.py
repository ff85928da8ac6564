"""Whole pages: our VLM pipeline with a scripted engine, and docling's own on a server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from docling.datamodel.base_models import ConversionStatus, FailureCategory, InputFormat
from docling.datamodel.pipeline_options import VlmConvertOptions, VlmPipelineOptions
from docling.datamodel.pipeline_options_vlm_model import ResponseFormat
from docling.document_converter import DocumentConverter, PdfFormatOption
from docling.pipeline.vlm_pipeline import VlmPipeline
from PIL import Image, ImageDraw

from docling_mdiff import make_converter, server_vlm_options
from docling_mdiff.presets import PRESET_ID, register_preset
from mdiff_adapters.engines import Answer, Request
from mdiff_adapters.errors import EngineError, EngineTimeoutError
from mdiff_adapters.testing import ScriptedEngine


def scan(path: Path, num_pages: int = 1) -> Path:
    """Write a PDF of page images, 600 x 800 points, with ink all over them."""
    page = Image.new("RGB", (600, 800), "white")
    draw = ImageDraw.Draw(page)
    for y in range(4, 800, 13):
        draw.line([(0, y), (600, y + 9)], fill="black", width=2)
    page.save(path, save_all=True, append_images=[page] * (num_pages - 1), resolution=72)
    return path


def record(box: str, kind: str) -> str:
    return f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_up|>"


PAGE = "\n".join(
    [
        record("100 020 900 040", "header"),
        record("100 060 900 100", "title"),
        record("100 120 900 400", "text"),
        record("100 420 900 520", "equation"),
        record("100 540 900 700", "table"),
        record("100 705 900 730", "table_caption"),
        record("100 740 900 900", "image"),
        record("480 950 520 970", "page_number"),
    ]
)
SAID = {"table": "<fcel>n<fcel>m<nl><fcel>1<fcel>2<nl>", "formula": r"\[E = mc^{2}\]"}


def script(request: Request) -> str:
    if request.task == "layout":
        return PAGE
    place = request.origin
    return SAID.get(request.task, f"page {place['page'] + 1} region {place['order']}.")


@pytest.fixture
def convert(monkeypatch):
    """Return a function that converts with an engine behind every spec."""

    def convert(engine, path, **options):
        monkeypatch.setattr("docling_mdiff.engine.open_engine", lambda spec, **_: engine)
        converter = make_converter("tiny", pipeline="vlm", scale=1.0, **options)
        return converter.convert(path, raises_on_error=False)

    return convert


def markdown(result) -> str:
    return result.document.export_to_markdown(escape_html=False, escape_underscores=False)


def test_pages_are_read_as_a_whole_without_the_defects_of_docling_s_own_path(convert, tmp_path):
    engine = ScriptedEngine(script)
    result = convert(engine, scan(tmp_path / "report.pdf", num_pages=2))
    assert result.status is ConversionStatus.SUCCESS and result.errors == []
    # Both pages in two calls: the layouts, then all regions.
    assert engine.num_calls == 2
    text = markdown(result)
    assert text.count("$$E = mc^{2}$$") == 2 and text.count("$$") == 4
    for page in (1, 2):
        assert f"## page {page} region 1." in text
        assert f"page {page} region 2." in text
        # Furniture: header and page number.
        assert f"page {page} region 0." not in text and f"page {page} region 7." not in text
    layers = {t.text: t.content_layer.value for t in result.document.texts}
    assert layers["page 1 region 7."] == layers["page 2 region 0."] == "furniture"
    tables = result.document.tables
    assert [list(t.export_to_dataframe(result.document).columns) for t in tables] == [
        ["n", "m"]
    ] * 2
    assert [t.prov[0].page_no for t in tables] == [1, 2]
    assert tables[1].caption_text(result.document) == "page 2 region 5."
    box = tables[0].prov[0].bbox.to_top_left_origin(800)
    assert box.as_tuple() == pytest.approx((60, 432, 540, 560), abs=0.1)
    assert set(result.document.pages) == {1, 2}
    assert result.document.name == "report"
    assert result.document.origin.filename == "report.pdf"
    assert result.confidence.pages[1].ocr_score == result.confidence.ocr_score == 1.0


def test_page_ranges_keep_the_numbers_of_the_file(convert, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "docling_mdiff.engine.open_engine", lambda spec, **_: ScriptedEngine(script)
    )
    converter = make_converter("tiny", pipeline="vlm", scale=1.0)
    result = converter.convert(scan(tmp_path / "report.pdf", num_pages=3), page_range=(2, 3))
    assert set(result.document.pages) == {2, 3}
    assert "page 2 region 2." in markdown(result) and "page 1" not in markdown(result)


def test_a_failed_region_is_an_error_with_its_page_and_reason(convert, tmp_path):
    def failing(request):
        if request.task != "layout" and request.origin["page"] == 1:
            if request.task == "formula":
                raise EngineError("HTTP 500")
            if request.origin["order"] == 2:
                raise EngineTimeoutError("no answer in 60 s")
        return script(request)

    result = convert(ScriptedEngine(failing), scan(tmp_path / "report.pdf", num_pages=2))
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    found = {(e.page_no, e.category, e.error_message) for e in result.errors}
    assert found == {
        (2, FailureCategory.INFERENCE_FAILURE, "equation p1r3: HTTP 500"),
        (2, FailureCategory.TIMEOUT, "text p1r2: no answer in 60 s"),
    }
    assert "page 1 region 2." in markdown(result) and "## page 2 region 1." in markdown(result)


def test_truncated_answers_and_tables_without_structure_are_errors(convert, tmp_path):
    def cut(request):
        if request.task == "table":
            return "just words"
        if request.task == "text" and request.origin["order"] == 2:
            return Answer(id=request.id, text="half of", finish_reason="length")
        return script(request)

    result = convert(ScriptedEngine(cut), scan(tmp_path / "report.pdf"))
    messages = {e.error_message for e in result.errors}
    assert messages == {
        "table p0r4: no table structure was found",
        "text p0r2: the answer is incomplete (length)",
    }
    assert "just words" in markdown(result) and "half of" in markdown(result)


def test_garbage_for_a_layout_leaves_the_text_of_the_page(convert, tmp_path):
    def garbage(request):
        return "no idea" if request.task == "layout" else "all words"

    result = convert(ScriptedEngine(garbage), scan(tmp_path / "report.pdf"))
    assert result.status is ConversionStatus.PARTIAL_SUCCESS
    assert markdown(result) == "all words"
    assert result.errors[0].page_no == 1 and "no idea" in result.errors[0].error_message


def test_an_engine_that_dies_fails_the_conversion_with_its_message(convert, tmp_path):
    class Dead(ScriptedEngine):
        def answer(self, requests):
            raise RuntimeError("out of memory")

    result = convert(Dead(), scan(tmp_path / "report.pdf", num_pages=2))
    assert result.status is ConversionStatus.FAILURE
    assert {e.page_no for e in result.errors} == {1, 2}
    assert all("out of memory" in e.error_message for e in result.errors)


def test_a_blank_page_is_success_without_text(convert, tmp_path):
    Image.new("RGB", (600, 800), "white").save(tmp_path / "blank.pdf")
    engine = ScriptedEngine(script)
    result = convert(engine, tmp_path / "blank.pdf")
    assert result.status is ConversionStatus.SUCCESS
    assert engine.num_calls == 0 and markdown(result) == ""


def test_a_document_deadline_ends_the_reading_of_a_batch(convert, tmp_path, monkeypatch):
    engine = ScriptedEngine(script)
    # The time is over after the four layouts and three regions.
    monkeypatch.setattr(
        "docling_mdiff.engine._is_over",
        lambda deadline: deadline is not None and len(engine.asked) >= 7,
    )
    result = convert(engine, scan(tmp_path / "report.pdf", num_pages=4), document_timeout=600)
    assert len(engine.asked) == 7
    assert result.status is ConversionStatus.PARTIAL_SUCCESS and result.has_timeout_errors()
    # The largest regions were asked first: one paragraph each of three pages.
    assert "page 1 region 2." in markdown(result) and "page 3 region 2." in markdown(result)
    assert {e.page_no for e in result.errors} == {1, 2, 3, 4}
    assert all("time is over" in e.error_message for e in result.errors)


def test_pictures_can_be_kept(convert, tmp_path):
    result = convert(
        ScriptedEngine(script), scan(tmp_path / "report.pdf"), generate_picture_images=True
    )
    [picture] = result.document.pictures
    assert picture.get_image(result.document).size == (480, 128)


def test_an_unknown_pipeline_or_option_is_refused():
    with pytest.raises(ValueError, match="'pdf', 'vlm'"):
        make_converter(pipeline="page")
    with pytest.raises(ValueError, match="thresold"):
        make_converter(pipeline="vlm", thresold=0.5)


# -- docling's own VLM pipeline on a server ------------------------------------------------------


@pytest.fixture
def server():
    """A chat endpoint that answers like the model; yields its URL and the bodies it got."""
    bodies: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            prompt = body["messages"][-1]["content"][-1]["text"]
            text = record("100 100 900 400", "text") if "Layout" in prompt else "the words"
            answer = {
                "id": "1", "created": 0, "model": body["model"],
                "choices": [
                    {"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": text}}
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }  # fmt: skip
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/v1/chat/completions", bodies
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_docling_s_own_pipeline_keeps_special_tokens_whatever_the_caller_adds(server, tmp_path):
    url, bodies = server
    options = VlmPipelineOptions(
        enable_remote_services=True,
        vlm_options=server_vlm_options(url, model="mine", max_tokens=77),
    )
    converter = DocumentConverter(
        allowed_formats=[InputFormat.PDF],
        format_options={
            InputFormat.PDF: PdfFormatOption(pipeline_cls=VlmPipeline, pipeline_options=options)
        },
    )
    result = converter.convert(scan(tmp_path / "report.pdf"))
    assert markdown(result) == "the words"
    assert len(bodies) == 2
    for body in bodies:
        assert body["skip_special_tokens"] is False
        assert (body["model"], body["max_tokens"]) == ("mine", 77)


def test_the_preset_is_registered_once_and_speaks_the_models_format(caplog):
    register_preset()
    register_preset()
    assert not caplog.records
    options = VlmConvertOptions.from_preset(PRESET_ID)
    assert options.model_spec.response_format is ResponseFormat.MINERU2
    assert options.model_spec.prompt == "\nLayout Detection:"
