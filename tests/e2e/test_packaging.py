"""What the built distributions hold, and that they agree with each other."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "mdiff-core": ROOT / "core",
    "mdiff-adapters": ROOT,
    "langchain-mdiff": ROOT / "plugins" / "langchain-mdiff",
    "llama-index-readers-mdiff": ROOT / "plugins" / "llama-index-readers-mdiff",
    "docling-mdiff": ROOT / "plugins" / "docling-mdiff",
}
PACKAGES = {
    "mdiff-core": "mdiff_core/",
    "mdiff-adapters": "mdiff_adapters/",
    "langchain-mdiff": "langchain_mdiff/",
    "llama-index-readers-mdiff": "llama_index/readers/mdiff/",
    "docling-mdiff": "docling_mdiff/",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
            cwd=project, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    return folder


def wheel(dist: Path, name: str) -> Path:
    [found] = dist.glob(f"{name.replace('-', '_')}-*.whl")
    return found


def names(dist: Path, name: str) -> list[str]:
    with zipfile.ZipFile(wheel(dist, name)) as archive:
        return archive.namelist()


def metadata(dist: Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(wheel(dist, name)) as archive:
        [path] = [entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(path))


def requirements(dist: Path, name: str) -> Iterator[Requirement]:
    for line in metadata(dist, name).get_all("Requires-Dist", []):
        yield Requirement(line)


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_holds_its_package_and_nothing_else(dist: Path, name: str) -> None:
    entries = names(dist, name)
    package = PACKAGES[name]
    foreign = [e for e in entries if not e.startswith(package) and ".dist-info/" not in e]
    assert foreign == []
    assert f"{package}py.typed" in entries
    assert f"{package}__init__.py" in entries
    assert not any(e.endswith((".pyc", ".ipynb")) or "/tests/" in e for e in entries)


def test_the_namespace_of_llama_index_stays_a_namespace(dist: Path) -> None:
    """One __init__.py above mdiff/ would hide llama-index-core from every user."""
    entries = names(dist, "llama-index-readers-mdiff")
    assert "llama_index/__init__.py" not in entries
    assert "llama_index/readers/__init__.py" not in entries


def test_the_embedded_checkpoint_is_in_the_wheel(dist: Path) -> None:
    entries = names(dist, "mdiff-core")
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        assert f"mdiff_core/checkpoints/tiny/{file}" in entries


@pytest.mark.parametrize("name", PROJECTS)
def test_versions_and_pins_agree(dist: Path, name: str) -> None:
    """uv ignores pins between members of a workspace; pip does not."""
    versions = {metadata(dist, other)["Version"] for other in PROJECTS}
    assert len(versions) == 1
    [version] = versions
    for requirement in requirements(dist, name):
        if requirement.name in PROJECTS:
            assert str(requirement.specifier) == f"=={version}", requirement


def test_each_adapter_depends_on_its_framework_only(dist: Path) -> None:
    frameworks = {
        "langchain-mdiff": {"langchain-core"},
        "llama-index-readers-mdiff": {"llama-index-core"},
    }
    for name, expected in frameworks.items():
        needed = {r.name for r in requirements(dist, name)} - {"mdiff-adapters"}
        assert needed == expected


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("langchain-mdiff", "langchain = langchain_mdiff.plugin"),
        ("llama-index-readers-mdiff", "llama-index = llama_index.readers.mdiff.plugin"),
        ("docling-mdiff", "docling = docling_mdiff.plugin"),
    ],
)
def test_the_entry_point_is_in_the_wheel(dist: Path, name: str, entry: str) -> None:
    with zipfile.ZipFile(wheel(dist, name)) as archive:
        [path] = [e for e in archive.namelist() if e.endswith("entry_points.txt")]
        text = archive.read(path).decode()
    assert "[mdiff_adapters]" in text and entry in text


@pytest.mark.parametrize("name", PROJECTS)
def test_a_source_distribution_holds_its_own_package(dist: Path, name: str) -> None:
    [path] = dist.glob(f"{name.replace('-', '_')}-*.tar.gz")
    with tarfile.open(path) as archive:
        members = [member.split("/", 1)[1] for member in archive.getnames() if "/" in member]
    assert any(member.startswith(PACKAGES[name]) for member in members)
    for other, package in PACKAGES.items():
        if other != name:
            assert not any(package in member for member in members), other
    assert not any(member.startswith(("tests/", "examples/")) for member in members)
