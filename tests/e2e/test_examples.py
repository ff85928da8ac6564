"""Every example runs as it is, and its "before" differs by one line and runs too."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("langchain_community")
pytest.importorskip("llama_index.readers.file")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = {1: ("The quiet garden lies", "behind the old mill."), 2: ("Bread costs three coins.",)}

pytestmark = [
    pytest.mark.slow,
    # Foreign: the archived community package and its validators.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]


def draw(*lines: str) -> Image.Image:
    """A small page with printed lines."""
    page = Image.new("RGB", (640, 300), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(36)
    for n, line in enumerate(lines):
        pen.text((40, 60 + 46 * n), line, fill="black", font=font)
    return page


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scanned PDF: two pages of pixels, no text layer."""
    path = tmp_path_factory.mktemp("docs") / "scan.pdf"
    first, second = (draw(*lines) for lines in LINES.values())
    first.save(path, "PDF", save_all=True, append_images=[second], resolution=150)
    return path


def run(source: str, *arguments: str, tmp_path: Path) -> str:
    script = tmp_path / "script.py"
    script.write_text(source, encoding="utf-8")
    before, sys.argv = sys.argv, [str(script), *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output, warnings.catch_warnings():
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    return output.getvalue()


def without_mdiff(source: str) -> str:
    """Put the line of the comment in place of the line below it."""
    changed, count = re.subn(r"^# without mdiff: (.*)\n.*$", r"\1", source, flags=re.MULTILINE)
    assert count == 1
    return changed


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("langchain_images_parser.py", "file"),
        ("langchain_generic_loader.py", "folder"),
        ("langchain_directory_loader.py", "folder"),
        ("llama_index_directory_reader.py", "folder"),
    ],
)
def test_a_scan_gets_its_text_by_one_line(
    name: str, argument: str, scan: Path, tmp_path: Path
) -> None:
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    target = str(scan if argument == "file" else scan.parent)
    before = run(without_mdiff(source), target, tmp_path=tmp_path)
    assert "page" in before and "garden" not in words(before)
    after = run(source, target, tmp_path=tmp_path)
    # Which letters the small checkpoint gets right is another test's business.
    assert len({"quiet", "garden", "behind", "mill", "bread", "coins"} & words(after)) >= 5, after
    assert after.index("lies") < after.index("page 2") < after.index("coins")


def test_the_second_run_of_index_skips_everything(scan: Path, tmp_path: Path) -> None:
    source = (EXAMPLES / "langchain_index_twice.py").read_text(encoding="utf-8")
    after = run(source, str(scan), tmp_path=tmp_path)
    assert after.splitlines() == [
        "first run: 2 added, 0 skipped", "second run: 0 added, 2 skipped",
    ]  # fmt: skip
    # Their pages have no text: index() sees two equal empty pages of one file.
    assert "first run" in run(without_mdiff(source), str(scan), tmp_path=tmp_path)


def test_a_question_is_answered_with_page_and_box(scan: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_index.node_parser.docling")
    source = (EXAMPLES / "llama_index_question.py").read_text(encoding="utf-8")
    question: Any = "Where is the quiet garden?"
    answer = run(source, str(scan), question, tmp_path=tmp_path)
    assert len({"garden", "behind", "mill"} & words(answer.splitlines()[0])) >= 2, answer
    place = re.search(r"page (\d+), box (.*)", answer)
    assert place is not None and place[1] == "1"
    assert {"l", "t", "r", "b"} <= set(eval(place[2]))  # noqa: S307  a dict that the script printed


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert script.name in text
