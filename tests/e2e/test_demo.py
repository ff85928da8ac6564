"""The README's first command: a scanned page in, markdown out, with the network cut."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rapidfuzz.distance import Levenshtein

ROOT = Path(__file__).resolve().parents[2]
SCAN = ROOT / "examples" / "scan.png"
OFFLINE = """
import socket, sys
def refuse(*args, **options):
    raise AssertionError(f"tried to use the network: {args}")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
sys.argv = ["mdiff-adapters", *sys.argv[1:]]
from mdiff_adapters.cli import main
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OFFLINE, *arguments], capture_output=True, text=True, check=False
    )


def drawn_text() -> str:
    import runpy

    texts = runpy.run_path(str(ROOT / "tools" / "draw_scan.py"))
    parts = [
        texts["TITLE"],
        *texts["PARAGRAPHS"],
        texts["HEADING"],
        *texts["LIST"],
        texts["CLOSING"],
    ]
    return " ".join(" ".join(parts).split())


def test_the_scan_is_read_offline_to_clean_standard_output() -> None:
    done = run("parse", str(SCAN))
    assert done.returncode == 0, done.stderr
    read = " ".join(done.stdout.replace("#", "").split())
    truth = drawn_text()
    # Measured: 0.6 %; a page read wrongly is far beyond.
    assert Levenshtein.distance(read, truth) / len(truth) < 0.02
    assert done.stdout.startswith("# Notes on Reading Machines\n")
    assert "tokens per forward" in done.stderr
    assert "\x1b" not in done.stdout


def test_json_and_a_missing_file(tmp_path: Path) -> None:
    target = tmp_path / "out" / "scan.json"
    done = run(
        "parse", str(SCAN), "-o", str(target), "--format", "json", "--threshold", "0.5", "-q"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [page] = json.loads(target.read_text())["pages"]
    assert page["status"] == "ok"
    missing = run("parse", str(tmp_path / "none.pdf"))
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ")
    assert "none.pdf" in missing.stderr
    assert "Traceback" not in missing.stderr
