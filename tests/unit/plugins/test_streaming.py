"""Long documents through the adapters: the first page early, memory flat, nothing left open."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langchain_mdiff import MDiffLoader
from llama_index.readers.mdiff import MDiffReader
from mdiff_adapters.engines import Request
from mdiff_adapters.segmenters import PageImage
from mdiff_adapters.testing import ScriptedEngine, default_script, sample_pdf
from mdiff_adapters.testing.contracts import _free_loop

WINDOW = 4
SCAN = Path(__file__).resolve().parents[3] / "examples" / "scan.png"


@pytest.fixture(scope="module")
def long_pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.pdf"
    path.write_bytes(sample_pdf(300))
    return path


def documents(adapter: str, path: Path, **options: Any) -> Any:
    """Return the lazy iterator of an adapter."""
    if adapter == "langchain":
        return MDiffLoader(path, window=WINDOW, **options).lazy_load()
    reader = MDiffReader(parser_options={"window": WINDOW}, **options)
    return reader.lazy_load_data(path)


def open_files() -> set[str]:
    """Return what this process has open, by the kernel's list."""
    listing = Path("/proc/self/fd")
    found = set()
    for entry in os.listdir(listing):
        try:
            found.add(os.readlink(listing / entry))
        except OSError:  # the descriptor of the listing itself
            continue
    return found


@pytest.mark.parametrize("adapter", ["langchain", "llama-index"])
def test_the_first_page_of_300_costs_one_window(adapter: str, long_pdf: Path) -> None:
    engine = ScriptedEngine()
    pages = documents(adapter, long_pdf, engine=engine)
    next(pages)
    assert {asked.origin["page"] for asked in engine.asked} == {0}
    for _ in range(2):
        next(pages)
    assert max(asked.origin["page"] for asked in engine.asked) <= 1 + WINDOW
    pages.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("adapter", ["langchain", "llama-index"])
def test_closing_early_closes_the_file(adapter: str, long_pdf: Path) -> None:
    pages = documents(adapter, long_pdf, engine=ScriptedEngine())
    next(pages)
    assert str(long_pdf) in open_files()
    pages.close()
    assert str(long_pdf) not in open_files()


@pytest.mark.usefixtures("quiet_heap")
@pytest.mark.parametrize("adapter", ["langchain", "llama-index"])
def test_no_more_page_images_than_a_window_and_one(adapter: str, long_pdf: Path) -> None:
    """Thread row 12: memory grows with the pages until the process is killed."""
    alive = []

    def count_images() -> int:
        return sum(type(thing) is PageImage for thing in gc.get_objects())

    def script(request: Request) -> str:
        if request.task == "layout" and request.origin["page"] % 6 == 0:
            alive.append(count_images())
        return default_script(request)

    count = sum(
        1 for _ in documents(adapter, long_pdf, engine=ScriptedEngine(script), pages="1-30")
    )
    assert count == 30
    assert 1 <= max(alive) <= WINDOW + 1


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["langchain", "llama-index"])
def test_the_loop_stays_free_while_the_embedded_checkpoint_reads(adapter: str) -> None:
    # Loading is not reading: importing torch alone holds the interpreter for a third of a second.
    next(iter(documents(adapter, SCAN)))

    async def read() -> int:
        if adapter == "langchain":
            return len([page async for page in MDiffLoader(SCAN).alazy_load()])
        return len(await MDiffReader().aload_data(SCAN))

    assert _free_loop(read) == 1


@pytest.mark.slow
def test_memory_is_flat_between_page_50_and_300(long_pdf: Path) -> None:
    # A process of its own, so that 15 % is 15 % of what reading needs.
    code = f"""
import gc, json, psutil
from langchain_mdiff import MDiffLoader
process, resident = psutil.Process(), []
for document in MDiffLoader({str(long_pdf)!r}, engine="scripted:", window={WINDOW}).lazy_load():
    if document.metadata["page"] in (49, 299):
        gc.collect()
        resident.append(process.memory_info().rss)
print(json.dumps(resident))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240
    )
    at_50, at_300 = json.loads(done.stdout)
    assert at_300 < 1.15 * at_50, f"{at_50 / 1e6:.0f} MB at page 50, {at_300 / 1e6:.0f} at 300"


@pytest.mark.slow
def test_spawned_processes_build_one_engine_each(tmp_path: Path) -> None:
    """Two processes under spawn, each with several loaders: one engine a process."""
    (tmp_path / "a.pdf").write_bytes(sample_pdf(2))
    script = tmp_path / "spawn.py"
    script.write_text(f"""
import multiprocessing, os
from langchain_mdiff import MDiffLoader
from mdiff_adapters.engines import open_engine

def read(loader):
    texts = [document.page_content for document in loader.load()]
    return os.getpid(), id(open_engine("scripted:")), open_engine("scripted:").num_calls, texts

if __name__ == "__main__":
    loaders = [MDiffLoader({str(tmp_path / "a.pdf")!r}, engine="scripted:") for _ in range(6)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(read, loaders, chunksize=1)
    assert all(texts == ["Text of page 1", "Text of page 2"] for *_, texts in results)
    engines = {{}}
    for pid, engine, _, _ in results:
        engines.setdefault(pid, set()).add(engine)
    assert all(len(ids) == 1 for ids in engines.values()), engines
    assert os.getpid() not in engines
    print("ok")
""")
    done = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "ok"
