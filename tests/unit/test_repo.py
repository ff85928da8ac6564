"""What must hold of the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = sorted([ROOT / "pyproject.toml", ROOT / "core" / "pyproject.toml",
                   *ROOT.glob("plugins/*/pyproject.toml")])  # fmt: skip
PACKAGES = [
    ROOT / "core" / "mdiff_core",
    ROOT / "mdiff_adapters",
    ROOT / "plugins" / "langchain-mdiff" / "langchain_mdiff",
    ROOT / "plugins" / "llama-index-readers-mdiff" / "llama_index" / "readers" / "mdiff",
    ROOT / "plugins" / "docling-mdiff" / "docling_mdiff",
]


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def test_five_distributions_of_one_version() -> None:
    assert len(PROJECTS) == 5
    assert {project(path)["version"] for path in PROJECTS} == {"0.1.0"}
    names = {project(path)["name"] for path in PROJECTS}
    for path in PROJECTS:
        texts = project(path)["dependencies"]
        texts += [t for group in project(path).get("optional-dependencies", {}).values()
                  for t in group]  # fmt: skip
        for text in texts:
            name = re.split(r"[\[<>=!~ ;]", text)[0]
            if name in names:
                assert text.split(";")[0].strip().endswith("==0.1.0"), f"{path}: {text}"


def test_the_lowest_docling_that_is_promised_is_the_one_that_is_tested() -> None:
    promised = next(
        text
        for text in project(ROOT / "plugins" / "docling-mdiff" / "pyproject.toml")["dependencies"]
        if text.startswith("docling-slim")
    )
    [lowest] = re.findall(r">=(\d+\.\d+)", promised)
    assert f"docling-slim=={lowest}.0" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_packages_are_typed_and_documented(package: Path) -> None:
    assert (package / "py.typed").exists()
    for module in package.rglob("*.py"):
        if module.stat().st_size:
            text = module.read_text(encoding="utf-8")
            assert text.startswith(('"""', 'r"""')), f"{module} has no docstring"


def test_namespace_package_has_no_init_above_it() -> None:
    reader = PACKAGES[3]
    assert not (reader.parent / "__init__.py").exists()
    assert not (reader.parent.parent / "__init__.py").exists()


@pytest.mark.parametrize("modules", ["mdiff_adapters", "mdiff_adapters.engines", "mdiff_core"])
def test_importing_costs_nothing(modules: str) -> None:
    heavy = ("torch", "transformers", "cv2", "onnxruntime", "rapidocr", "langchain_core",
             "llama_index.core", "docling", "docling_core")  # fmt: skip
    code = f"import {modules}\nimport sys\nprint([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_machine_path_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pattern = re.compile(r"/(?:work|farm|root|home/\w+)/[\w.]+/|/tmp/\w")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".json", ".yaml", ".jsonl") and path.exists():
            found = pattern.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{name}: {found.group()}"  # type: ignore[union-attr]


def test_readme_tree_names_real_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text.split("```text", 1)[1].split("```", 1)[0]
    folder: list[str] = []
    for line in tree.splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0]
        folder[depth:] = []
        for name in names.split(" · "):
            assert (ROOT / "/".join([*folder, name])).exists(), name
        if names.endswith("/"):
            folder.append(names.rstrip("/"))
