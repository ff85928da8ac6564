"""The command line: what goes where, and how it ends."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from mdiff_adapters.cli import _with_progress, app
from mdiff_adapters.document import ParsedDocument
from mdiff_adapters.engines import Answer, Request
from mdiff_adapters.errors import EngineError
from mdiff_adapters.host import list_plugins
from mdiff_adapters.parser import DocumentParser
from mdiff_adapters.testing import ScriptedEngine, sample_pdf

PdfMaker = Callable[..., bytes]


def run(*arguments: Any, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin, env={"COLUMNS": "200"})


def parse(*arguments: Any, **options: Any) -> Result:
    return run("parse", *arguments, "--engine", "scripted:", **options)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.pdf"
    path.write_bytes(sample_pdf(3))
    return path


def test_the_document_goes_to_standard_output_and_the_summary_does_not(three: Path) -> None:
    result = parse(three)
    assert result.exit_code == 0
    assert result.stdout == "Text of page 1\n\nText of page 2\n\nText of page 3\n"
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("3 pages, ")
    assert "tokens per forward" in result.stderr
    assert "scripted:" in result.stderr
    assert "\x1b" not in result.stderr, "no colours and no progress bar where there is no terminal"
    assert parse(three, "-q").stderr == ""


def test_pages_from_standard_input(three: Path) -> None:
    result = parse("-", "--pages", "2-", stdin=three.read_bytes())
    assert (result.exit_code, result.stdout) == (0, "Text of page 2\n\nText of page 3\n")


@pytest.mark.parametrize(
    ("kind", "suffix", "check"),
    [
        ("md", ".md", lambda text: text.startswith("Text of page 1")),
        ("text", ".txt", lambda text: "Text of page 3" in text),
        ("html", ".html", lambda text: "<html" in text and "Text of page 2" in text),
        ("json", ".json", lambda text: ParsedDocument.from_json(text).num_pages == 3),
        ("docling", ".docling.json", lambda text: len(json.loads(text)["pages"]) == 3),
    ],
)
def test_formats_and_files(
    three: Path, tmp_path: Path, kind: str, suffix: str, check: Callable[[str], bool]
) -> None:
    one = tmp_path / "new folder" / "out.file"
    result = parse(three, "-f", kind, "-o", one)
    assert (result.exit_code, result.stdout) == (0, "")
    assert check(one.read_text("utf-8"))
    folder = tmp_path / "folder"
    folder.mkdir()
    assert parse(three, "-f", kind, "-o", folder).exit_code == 0
    assert (folder / f"three{suffix}").read_text("utf-8") == one.read_text("utf-8")


def test_several_files_go_to_a_folder_and_do_not_collide(three: Path, tmp_path: Path) -> None:
    other = tmp_path / "sub" / "three.pdf"
    other.parent.mkdir()
    other.write_bytes(sample_pdf(1))
    long = tmp_path / ("试" * 70 + ".pdf")
    long.write_bytes(sample_pdf(1))
    out = tmp_path / "out"
    result = parse(three, other, long, "-o", out)
    assert result.exit_code == 0
    names = {path.name for path in out.iterdir()}
    assert {"three.md", "three-2.md"} < names
    assert len(names) == 3
    assert (out / "three-2.md").read_text() == "Text of page 1\n"


def test_one_bad_file_does_not_stop_the_others(three: Path, tmp_path: Path) -> None:
    bad = tmp_path / "page.pdf"
    bad.write_bytes(b"<!doctype html><html>404")
    out = tmp_path / "out"
    result = parse(bad, tmp_path / "none.pdf", three, "-o", out, "-q")
    assert result.exit_code == 1
    assert [path.name for path in out.iterdir()] == ["three.md"]
    html, missing = result.stderr.splitlines()
    assert html.startswith(f"error: {bad}: ")
    assert "an HTML page, not a PDF" in html
    assert "none.pdf: there is no such file" in missing
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no bytes"),
        (b"<html>", "an HTML page, not a PDF"),
        (b"%PDF-1.7\nxx", "damaged"),
    ],
)
def test_a_document_that_cannot_be_read_is_one_clear_line(
    tmp_path: Path, data: bytes, says: str
) -> None:
    path = tmp_path / "bad.pdf"
    path.write_bytes(data)
    result = parse(path)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert says in line


def test_a_broken_page_is_reported_and_the_others_are_printed(
    make_pdf: PdfMaker, tmp_path: Path
) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(make_pdf(["/MediaBox [0 0 144 144]", ""]))
    result = parse(path, "-q")
    assert result.exit_code == 1
    assert result.stdout.startswith("Text of page 1\n")
    [line] = result.stderr.splitlines()
    assert f"{path}, page 2: " in line
    raised = parse(path, "-q", "--on-error", "raise")
    assert raised.exit_code == 1
    assert raised.stdout == ""
    assert "page 2" in raised.stderr


def test_passwords(tmp_path: Path) -> None:
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(1)))
    writer.encrypt(user_password="geheim-7", algorithm="AES-256")
    path = tmp_path / "locked.pdf"
    writer.write(path)
    needed, wrong = parse(path), parse(path, "--password", "falsch-9")
    assert (needed.exit_code, wrong.exit_code) == (1, 1)
    assert "is encrypted (give its password with --password)" in needed.stderr
    assert "does not open" in wrong.stderr
    assert "falsch-9" not in wrong.stderr
    assert parse(path, "--password", "geheim-7").stdout == "Text of page 1\n"


def test_a_password_that_is_not_needed_is_ignored(tmp_path: Path) -> None:
    """Also where the file has an owner's password, as those do that may not be printed."""
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(1)))
    writer.encrypt(user_password="", owner_password="besitz-1", algorithm="AES-256")
    for name, data in (("plain.pdf", sample_pdf(1)), ("owned.pdf", None)):
        path = tmp_path / name
        writer.write(path) if data is None else path.write_bytes(data)
        assert parse(path, "--password", "geheim-7").stdout == "Text of page 1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pages", "a"), "not a page"),
        (("--pages=-1",), "'-1' is not a page"),
        (("--threshold", "1.5"), "threshold"),
        (("--dpi", "3"), "dpi"),
        (("--segmenter", "line"), "did you mean 'lines'"),
        (("--layout-image", "x.foo"), "'.foo'"),
        (("--engine", "tiny", "--device", "toaster"), "toaster"),
        (("--engine", "nosuchkind:x"), "nosuchkind"),
        (("--engine", "nosuch/folder/at/all"), "nosuch"),
        (("--engine", "replay:nosuch"), "nosuch"),
        (("--engine", ""), "empty"),
    ],
)
def test_settings_that_make_no_sense_are_one_clear_line(
    three: Path, arguments: tuple[str, ...], says: str
) -> None:
    # The error comes once, not once a document.
    engine = () if "--engine" in arguments else ("--engine", "scripted:")
    result = run("parse", three, three, *arguments, *engine)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_a_page_that_a_document_does_not_have_is_an_error_of_that_document(
    three: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.pdf"
    short.write_bytes(sample_pdf(1))
    result = parse(short, three, "--pages", "3", "-q")
    assert (result.exit_code, result.stdout) == (1, "Text of page 3\n")
    [line] = result.stderr.splitlines()
    assert "short.pdf: page 3 is out of range: the document has 1 page" in line


def test_a_server_that_is_not_there_is_no_wrong_usage(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between its tries
    result = run("parse", three, three, "--engine", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_an_empty_name_says_so(three: Path) -> None:
    result = parse("", three, "-q")
    assert result.exit_code == 2
    assert result.stdout.startswith("Text of page 1")
    assert "the name of the document is empty" in result.stderr
    assert "is empty" in run("record", "", three.parent, "--engine", "scripted:").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nosuch.pdf",), 1, "nosuch.pdf: there is no such file"),
        (("nosuch.pdf", "--threshold", "2"), 2, "threshold"),
        (("nosuch.pdf", "--pages", "a"), 2, "not a page"),
        (("nosuch.pdf", "--engine", "nosuchkind:x"), 2, "nosuchkind"),
        (("nosuch.pdf", "--engine", "nosuch/folder/at/all"), 2, "nosuch"),
    ],
)
def test_a_recording_that_fails_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    name, *settings = arguments
    engine = [] if "--engine" in settings else ["--engine", "scripted:"]
    result = run("record", name, tmp_path / "out", *settings, *engine)
    assert (result.exit_code, result.stdout) == (code, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_a_recording_by_command(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("record", three, out, "--engine", "scripted:", "--pages", "2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split() == [str(out / "three_p0002.json")]
    assert "Record an engine's answers" in run("record", "--help").stdout


def test_a_recording_from_standard_input(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("record", "-", out, "--engine", "scripted:", stdin=three.read_bytes())
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.split()) == 3
    played = run("parse", "-", "--engine", f"replay:{out}", stdin=three.read_bytes())
    assert played.stdout == parse(three).stdout


def test_a_recording_that_lacks_a_page_ends_with_1(make_pdf: PdfMaker, tmp_path: Path) -> None:
    path = tmp_path / "mixed.pdf"
    path.write_bytes(make_pdf(["/MediaBox [0 0 144 144]", ""]))
    result = run("record", path, tmp_path / "out", "--engine", "scripted:")
    assert result.exit_code == parse(path).exit_code == 1
    assert [Path(line).name for line in result.stdout.split()] == ["mixed_p0001.json"]
    reason, total = result.stderr.splitlines()
    assert reason.startswith("error: ") and "page 2" in reason
    assert total == "1 page could not be read"


def test_half_of_a_surrogate_pair_does_not_lose_the_document(tmp_path: Path) -> None:
    image = tmp_path / "page.png"
    Image.effect_noise((90, 90), 90).save(image)
    box = "<|box_start|>0 0 999 999<|box_end|><|ref_start|>text<|ref_end|>"
    region = {"bbox": [0, 0, 0.999, 0.999], "content": "half \ud83d of it"}
    recording = tmp_path / "recording"
    recording.mkdir()
    (recording / "page.json").write_text(json.dumps({"layout_output": box, "regions": [region]}))
    engine = ("--engine", f"replay:{recording}", "-q")
    assert run("parse", image, *engine).stdout == "half \ufffd of it\n"
    for kind in ("md", "json", "html", "docling", "text"):
        out = tmp_path / "out" / kind
        assert run("parse", image, *engine, "-f", kind, "-o", out).exit_code == 0
        assert "of it" in out.read_text("utf-8")


def test_a_name_that_ends_like_a_folder_is_one(three: Path, tmp_path: Path) -> None:
    assert parse(three, "-q", "-o", f"{tmp_path}/new/").exit_code == 0
    assert (tmp_path / "new" / "three.md").is_file()
    assert parse(three, "-q", "-o", f"{three}/").exit_code == 2


@pytest.mark.parametrize(
    "arguments", [(), ("x.pdf", "--no-such-option"), ("x.pdf", "--format", "docx")]
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert parse(*arguments).exit_code == 2


def test_an_unknown_engine_is_one_clear_line(three: Path) -> None:
    result = run("parse", three, "--engine", "nosuchkind:x")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert "nosuchkind" in result.stderr


def test_output_that_cannot_be_written_is_one_clear_line_before_any_work(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "file"
    taken.write_text("x")
    asked: list[str] = []
    monkeypatch.setattr(DocumentParser, "open", lambda *_, **__: asked.append("opened"))
    for option, below in (("-o", taken / "out.md"), ("--layout-image", taken / "x" / "y.png")):
        result = parse(three, option, below, "-q")
        assert (result.exit_code, asked) == (2, [])
        [line] = result.stderr.splitlines()
        assert line.startswith(f"error: {below} cannot be written: {taken} is a file")
    several = parse(three, three, "-o", taken, "-q")
    assert several.exit_code == 2
    assert "folder" in several.stderr
    assert "Traceback" not in several.stderr


def test_the_layout_is_drawn_on_the_pages(three: Path, tmp_path: Path) -> None:
    target = tmp_path / "drawn" / "layout.png"
    assert parse(three, "--layout-image", target, "-q").exit_code == 0
    names = sorted(path.name for path in target.parent.iterdir())
    assert names == [f"layout-p000{n}.png" for n in (1, 2, 3)]
    with Image.open(target.parent / names[0]) as image:
        assert image.size == (400, 400)
        assert len(image.convert("RGB").getcolors(400 * 400) or []) > 2
    assert parse(three, "--pages", "2", "--layout-image", target, "-q").exit_code == 0
    assert target.is_file()


def test_layouts_are_drawn_into_a_folder(three: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    other = tmp_path / "sub" / "three.pdf"
    other.write_bytes(sample_pdf(1))
    folder = tmp_path / "there"
    folder.mkdir()
    for target in (folder, f"{tmp_path}/new/"):
        assert parse(three, other, "--layout-image", target, "-q").exit_code == 0
        names = sorted(path.name for path in Path(target).iterdir())
        assert names == ["three-2.png", *(f"three-p000{n}.png" for n in (1, 2, 3))]
    assert parse(three, other, "--layout-image", tmp_path / "a.jpg", "-q").exit_code == 0
    assert (tmp_path / "a-three-2.jpg").is_file()
    assert (tmp_path / "a-three-p0003.jpg").is_file()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_pipes_and_devices_are_written_to(three: Path, tmp_path: Path) -> None:
    assert parse(three, "-o", os.devnull, "-q").exit_code == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.read_text)
        assert parse(three, "-o", pipe, "-q").exit_code == 0
        assert "Text of page 3" in written.result()


def test_documents_are_not_written_over(tmp_path: Path) -> None:
    scan, several = tmp_path / "scan.png", tmp_path / "scan-p0001.png"
    for path in (scan, several):
        Image.new("RGB", (60, 60), "white").save(path)
    pages = tmp_path / "scan.tif"
    frames = [Image.new("L", (60, 60), level) for level in (0, 255)]
    frames[0].save(pages, save_all=True, append_images=frames[1:])
    before = [path.read_bytes() for path in (scan, several)]
    for arguments in (
        (scan, "-o", scan),
        (scan, "--layout-image", tmp_path),
        (scan, "--layout-image", tmp_path / "sub" / ".." / "scan.png"),
        # Only while it is written is it known that there are several pages.
        (pages, several, "--layout-image", tmp_path),
    ):
        result = parse(*arguments, "-q")
        assert result.exit_code != 0, arguments
        assert "would be written over" in result.stderr
    assert [path.read_bytes() for path in (scan, several)] == before
    assert parse(scan, "--layout-image", f"{tmp_path}/drawn/", "-q").exit_code == 0


def test_skipped_pages_are_reported_too(make_pdf: PdfMaker, tmp_path: Path) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(make_pdf(["/MediaBox [0 0 144 144]", ""]))
    result = parse(path, "-q", "--on-error", "skip", "-f", "json")
    assert result.exit_code == 1
    assert f"error: {path}, page 2: " in result.stderr
    assert [page["index"] for page in json.loads(result.stdout)["pages"]] == [0]


def test_what_a_page_lost_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that failed or was cut short is missing from a markdown that looks whole."""
    layout = "".join(
        f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_up|>"
        for box, kind in (("050 050 950 300", "text"), ("050 350 950 900", "table"))
    )
    answer: Answer

    def script(request: Request) -> str | Answer:
        if request.task == "layout":
            return layout
        return "Hello" if request.task == "text" else dataclasses.replace(answer, id=request.id)

    path = tmp_path / "scan.png"
    scan = Image.new("L", (100, 100), "white")
    scan.paste(0, (10, 10, 90, 80))
    scan.save(path)
    engine = ScriptedEngine(script)
    monkeypatch.setattr(DocumentParser, "engine", property(lambda _: engine))
    answer = Answer(id="", finish_reason="error", error=EngineError("boom"))
    result = parse(path, "-q")
    assert (result.exit_code, result.stdout) == (1, "Hello\n")
    assert result.stderr.splitlines() == [f"error: {path}, page 1: boom"]
    answer = Answer(id="", text="<fcel>a<fcel>", finish_reason="length")
    result = parse(path, "-q")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"warning: {path}, page 1: region p0r1: the answer is cut short (length)"
    ]


def test_plugins_as_a_table_and_as_json() -> None:
    table, listed = run("plugins"), run("plugins", "--json")
    assert (table.exit_code, listed.exit_code) == (0, 0)
    records = json.loads(listed.stdout)
    assert {record["name"] for record in records} >= {"langchain", "llama-index"}
    assert all(record["name"] in table.stdout for record in records)


ODD = 'pip install "x[docling]", see [/etc/foo.conf] and :smile:'


def test_reasons_and_names_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are no markup and colons no emoji."""
    record = next(iter(list_plugins()))
    odd = [dataclasses.replace(record, reason=ODD)]
    monkeypatch.setattr("mdiff_adapters.host.list_plugins", lambda: odd)
    for command in (("plugins",), ("doctor", "--engine", "scripted:")):
        result = run(*command)
        assert result.exit_code == 0, result.exception
        # The table folds a long reason over several lines.
        assert "".join(ODD.split()) in "".join(result.stdout.split())
    result = parse(f"[/red]:smile:{ODD}.pdf")
    assert f"[/red]:smile:{ODD}.pdf" in result.stderr


def test_progress_shows_the_name_as_it_is(three: Path, tmp_path: Path) -> None:
    odd = tmp_path / "scan [bold] [x].pdf"
    odd.write_bytes(three.read_bytes())
    terminal = Console(force_terminal=True, file=io.StringIO(), width=200, color_system=None)
    with DocumentParser("scripted:").open(odd) as stream:
        assert len(list(_with_progress(stream, terminal, quiet=False))) == 3
    assert "scan [bold] [x].pdf" in terminal.file.getvalue()  # type: ignore[attr-defined]


def test_doctor_reports_what_would_run() -> None:
    result = run("doctor", "--engine", "scripted:", "--json")
    assert result.exit_code == 0, result.stdout
    report = json.loads(result.stdout)
    assert report["versions"]["mdiff-core"] != "not installed"
    assert report["engine"]["segmenter"] == "model"
    assert report["torch"]["device"]
    assert report["detector"]["rapidocr"]
    assert "langchain" in report["plugins"]
    assert "scripted:" in run("doctor", "--engine", "scripted:").stdout


def test_doctor_works_when_the_engine_does_not(tmp_path: Path) -> None:
    result = run("doctor", "--engine", tmp_path / "no-checkpoint", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert "no-checkpoint" in report["engine"]["error"]
    assert report["torch"]["device"]
