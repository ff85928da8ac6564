"""The plugin's README: every Python block runs, and what its tables say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from docling_mdiff.config import DEFAULTS

README = Path(__file__).parents[3] / "plugins" / "docling-mdiff" / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number, tmp_path, monkeypatch, capsys):
    if "langchain_docling" in BLOCKS[number]:
        pytest.importorskip("langchain_docling")
    page = Image.new("L", (1200, 400), "white")
    ImageDraw.Draw(page).text(
        (100, 150), "The words of a scanned page.", fill=0, font=ImageFont.load_default(48)
    )
    page.save(tmp_path / "scan.pdf", resolution=200)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), names)
    result = names.get("result")
    if result is not None:
        assert result.errors == []
        assert "scanned page" in result.document.export_to_markdown()
    elif "loader" in names:
        assert "scanned page" in capsys.readouterr().out


def test_the_variables_and_their_defaults_are_as_documented():
    text = README.read_text("utf-8")
    rows = dict(re.findall(r"\| `MDIFF_DOCLING_(\w+)` \| .* \| (.*) \|", text))
    assert set(rows) == {name.upper() for name in DEFAULTS}
    for name, default in DEFAULTS.items():
        shown = rows[name.upper()].strip("`")
        assert shown == str(int(default) if isinstance(default, bool) else default)
