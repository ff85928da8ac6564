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

USE = {
    "langchain-mdiff": """
from langchain_mdiff import MDiffLoader
from mdiff_adapters.testing import sample_pdf
assert MDiffLoader(file=sample_pdf(1), engine="scripted:").load()[0].page_content
""",
    "llama-index-readers-mdiff": """
import llama_index.core
from llama_index.readers.mdiff import MDiffReader
from mdiff_adapters.testing import sample_pdf
assert MDiffReader(engine="scripted:").load_data(sample_pdf(1))[0].text
""",
    "docling-mdiff": """
import docling_mdiff.options
""",
}
NAMES = {
    "langchain-mdiff": "langchain",
    "llama-index-readers-mdiff": "llama-index",
    "docling-mdiff": "docling",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
            cwd=project, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    return folder


@pytest.fixture
def fresh_python(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", USE)
def test_one_adapter_alone(name: str, wheels: Path, fresh_python: Path, tmp_path: Path) -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run(
            [str(fresh_python), *arguments], cwd=tmp_path, capture_output=True, text=True
        )
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
    python("-c", USE[name])
