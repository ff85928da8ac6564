"""Each adapter in an environment of its own, from built wheels, as a stranger installs it.

Needs a package index and gigabytes, so it runs only when asked: ``MDIFF_TEST_INSTALL=1``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [ROOT / "core", ROOT, *sorted((ROOT / "plugins").iterdir())]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("MDIFF_TEST_INSTALL") != "1",
        reason="installs from a package index: set MDIFF_TEST_INSTALL=1",
    ),
]

READ = {
    "langchain-mdiff": """
from langchain_mdiff import MDiffLoader
[page] = MDiffLoader(SCAN).load()
assert page.metadata["page"] == 0
print(page.page_content)
""",
    "llama-index-readers-mdiff": """
import llama_index.core
from llama_index.readers.mdiff import MDiffReader
[page] = MDiffReader().load_data(SCAN)
print(page.text)
""",
    "docling-mdiff[cli]": """
import pathlib, subprocess, sys, tempfile
docling = pathlib.Path(sys.executable).with_name("docling")
with tempfile.TemporaryDirectory() as out:
    subprocess.run(
        [docling, SCAN, "--to", "md", "--output", out, "--allow-external-plugins",
         "--ocr-engine", "mdiff_ocr", "--layout-engine", "mdiff_layout",
         "--table-structure-engine", "mdiff_table"],
        check=True, stdout=sys.stderr,
    )
    [written] = pathlib.Path(out).iterdir()
    print(written.read_text("utf-8"))
""",
}
"""What reads the sample scan with the embedded checkpoint, by what is installed."""
NAMES = {
    "langchain-mdiff": "langchain",
    "llama-index-readers-mdiff": "llama-index",
    "docling-mdiff[cli]": "docling",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
            cwd=project, check=True, capture_output=True, timeout=600,
        )  # fmt: skip
    return folder


@pytest.fixture
def fresh_python(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", READ)
def test_one_adapter_alone(name: str, wheels: Path, fresh_python: Path, tmp_path: Path) -> None:
    # No model of anybody's hub is there, and none can be fetched.
    hubless = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [str(fresh_python), *arguments],
            cwd=tmp_path, env=hubless, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("-m", "pip", "install", "--quiet", "--find-links", str(wheels), name)
    assert "No broken requirements" in python("-m", "pip", "check")
    listed = python(
        "-c",
        "from mdiff_adapters.host import list_plugins\n"
        "print([(r.name, r.status) for r in list_plugins()])",
    )
    assert listed.strip() == str([("builtin", "ok"), (NAMES[name], "ok")])
    text = python("-c", f"SCAN = {str(ROOT / 'examples' / 'scan.png')!r}\n{READ[name]}")
    assert "Notes on Reading Machines" in text and "letter after another" in " ".join(text.split())
