"""A third-party plugin, built, installed and used as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mdiff_adapters.engines import Request
from mdiff_adapters.testing import EngineContract, ScriptedEngine, sample_pdf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the example's wheel, install it beside everything else, return the environment."""
    folder = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q",
         "-w", str(folder), str(ROOT / "examples" / "plugin_example")],
        check=True, timeout=240,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "-q", "--target", str(target), str(wheel)],
        check=True, timeout=240,
    )  # fmt: skip
    return {**os.environ, "PYTHONPATH": str(target)}


def python(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_found_and_used(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(sample_pdf(2))
    output = python(
        f"""
import json
from mdiff_adapters.host import list_plugins
from mdiff_adapters.parser import DocumentParser
record = next(r for r in list_plugins() if r.name == "example")
parser = DocumentParser("redact:scripted:", segmenter="whole-page")
document = parser.parse({str(tmp_path / "a.pdf")!r})
print(json.dumps([record.to_dict(), [page.to_text() for page in document.pages]]))
""",
        installed,
    )
    record, texts = json.loads(output)
    assert (record["status"], record["distribution"]) == ("ok", "mdiff-plugin-example")
    assert [info["name"] for info in record["engines"]] == ["redact"]
    assert texts == ["Text of page █", "Text of page █"]


def test_langchain_takes_it_by_name(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(sample_pdf(1))
    output = python(
        f"""
import pickle
from langchain_mdiff import MDiffLoader
loader = MDiffLoader({str(tmp_path / "a.pdf")!r}, engine="redact:scripted:")
print([d.page_content for d in pickle.loads(pickle.dumps(loader)).load()])
""",
        installed,
    )
    assert output.strip() == "['Text of page █']"


def test_the_command_lists_it_also_when_it_is_broken(installed: dict[str, str]) -> None:
    command = [str(Path(sys.executable).parent / "mdiff-adapters"), "plugins", "--json"]
    package = Path(installed["PYTHONPATH"]) / "mdiff_plugin_example"
    plugin = package / "plugin.py"
    working = plugin.read_text(encoding="utf-8")
    try:
        plugin.write_text("raise SystemExit('broken on purpose')", encoding="utf-8")
        done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=240)
    finally:
        plugin.write_text(working, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    listed = {record["name"]: record for record in json.loads(done.stdout)}
    assert listed["example"]["status"] == "failed"
    assert "broken on purpose" in listed["example"]["reason"]
    assert listed["builtin"]["status"] == "ok"


class TestRedactingEngine(EngineContract):
    """The example keeps the contract."""

    @pytest.fixture(autouse=True)
    def _importable(self, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(installed["PYTHONPATH"])

    def make_engine(self):
        from mdiff_plugin_example.engine import RedactingEngine

        return RedactingEngine(ScriptedEngine(), "redact:scripted:")

    def test_layouts_keep_their_digits(self) -> None:
        with self.make_engine() as engine:
            request = self.make_request("a")
            layout = Request(id="b", image=request.image, task="layout", origin={"page": 4})
            text = Request(id="c", image=request.image, origin={"page": 4})
            answers = {answer.id: answer.text for answer in engine.answer([layout, text])}
        assert "050" in answers["b"]
        assert answers["c"] == "Text of page █"
