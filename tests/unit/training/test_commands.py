"""The commands and their files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mdiff_adapters.cli import app
from mdiff_core.errors import ConfigError
from mdiff_core.training import load_config
from mdiff_core.training.state import LOG_NAME, read_log

from .test_folder import draw_text, write

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
RUN = """
[run]
out = "run"
steps = 3
batch_size = 2
micro_batch = 2
workers = 0
device = "cpu"
dtype = "fp32"
log_every = 1

[model]
init = "scratch"
vision = {{ depth = 1, embed_dim = 32, num_heads = 4 }}
mdiff = {{ segment_px = [224, 28], max_tokens = {{ text = 8 }} }}

[model.text]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16

[objective]
block_length = 8

[[data]]
kind = "lines"
corpus = {corpus}
fonts = {fonts}

[mine]
samples = 2
runs = 2
threshold = 0.0
"""


@pytest.fixture
def config(tmp_path: Path, drawing: dict[str, Any]) -> Path:
    path = tmp_path / "run.toml"
    corpus, fonts = (json.dumps(drawing[name]) for name in ("corpus", "fonts"))
    path.write_text(RUN.format(corpus=corpus, fonts=fonts))
    return path


def test_train_mine_and_train_again(config: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["train", str(config)])
    assert result.exit_code == 0, result.output
    assert "step 3: loss" in result.output and "3 steps done" in result.output
    assert (tmp_path / "run" / "checkpoint" / "model.safetensors").is_file()
    hard = tmp_path / "hard.jsonl"
    result = runner.invoke(app, ["mine", str(config), str(hard), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "2 of 2 samples are hard" in result.output
    second = tmp_path / "second.toml"
    text = config.read_text().replace('out = "run"', 'out = "second"')
    text = text.split("[model]")[0] + (
        '[model]\nbase = "run/checkpoint"\n[objective]\nbeta = 1.0\nblock_length = 8\n'
        '[[data]]\nkind = "mined"\npath = "hard.jsonl"\n'
    )
    second.write_text(text)
    result = runner.invoke(app, ["train", str(second), "--quiet", "--set", "run.steps=1"])
    assert result.exit_code == 0, result.output
    assert len(read_log(tmp_path / "second" / LOG_NAME)) == 1


def test_wrong_settings_are_one_line(config: Path) -> None:
    result = CliRunner().invoke(app, ["train", str(config), "--set", "run.stepz=1"])
    assert result.exit_code == 2
    assert "run.toml" in result.output and "did you mean 'steps'?" in result.output
    result = CliRunner().invoke(app, ["train", str(config), "--set", "run.steps"])
    assert "has no value" in result.output


def test_eval_writes_report_and_curve(tmp_path: Path) -> None:
    records = [{"image": f"{t}.png", "text": t} for t in ("Hello", "world")]
    folder = write(tmp_path / "lines", records, Hello=draw_text("Hello"), world=draw_text("world"))
    output, plot = tmp_path / "report.json", tmp_path / "curve.svg"
    result = CliRunner().invoke(app, [
        "eval", str(folder), "--engine", "tiny", "--dtype", "fp32", "--device", "cpu",
        "--threshold", "0.95", "--threshold", "0.5", "-o", str(output), "--plot", str(plot),
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())["thresholds"]
    assert [row["threshold"] for row in rows] == [0.5, 0.95]
    assert all(row["num_crops"] == 2 and row["character_error"] < 0.5 for row in rows)
    assert plot.read_text().count("<svg") == 1


def test_eval_shuffle_compares_engines(tmp_path: Path) -> None:
    output = tmp_path / "shuffle.json"
    result = CliRunner().invoke(app, [
        "eval", "--engine", "scripted:", "--engine", "tiny", "--block-length", "32",
        "--dtype", "fp32", "--device", "cpu", "--shuffle", "1", "--count", "1", "-o", str(output),
    ])  # fmt: skip
    # The scripted engine knows no options of a checkpoint.
    assert result.exit_code == 2 and "scripted:" in result.output
    result = CliRunner().invoke(app, [
        "eval", "--engine", "tiny", "--dtype", "fp32", "--device", "cpu", "--shuffle", "1",
        "--shuffle", "0", "--count", "1", "-o", str(output),
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())["shuffle"]["tiny"]
    assert [row["shuffle"] for row in rows] == [0.0, 1.0]
    result = CliRunner().invoke(app, [
        "eval", "--dtype", "fp32", "--device", "cpu", "--damage", "--count", "1", "-o", str(output),
        "--text", "numbers",
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())["damage"]["tiny"]
    assert [row["damage"] for row in rows] == ["clean", "light", "medium", "heavy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate on"),
        (["--damage", "--text", "prosa"], "did you mean 'prose'"),
        (["--engine", "tiny", "--block-length", "32", "--block-length", "1"], "2 block lengths"),
    ],
)
def test_eval_says_what_is_missing(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == 2 and message in result.output


def test_label_writes_a_folder_to_train_on(tmp_path: Path) -> None:
    draw_text("A page with one line of text").save(tmp_path / "page.png")
    folder = tmp_path / "data"
    arguments = ["label", str(tmp_path), "--output", str(folder), "--engine", "scripted:"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "1 pages, 1 regions" in result.output
    record = json.loads((folder / "labels.jsonl").read_text())
    assert record["regions"][0]["text"] == "Text of page 1"
    assert (folder / record["image"]).is_file()


def test_commands_load_no_torch() -> None:
    code = "import sys, mdiff_adapters.cli; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    config = load_config(path)
    assert config.run.steps > 100


def test_paths_are_relative_to_the_file(config: Path, tmp_path: Path) -> None:
    loaded = load_config(config, {"model.base": "tiny", "run.seed": 5})
    assert loaded.run.out == tmp_path / "run"
    assert loaded.run.seed == 5 and loaded.model.base == "tiny"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "is not TOML"),
        ("[model]\nbase='tiny'", r"no table \[run\]"),
        ("[run]\nsteps = 3\nout='x'", r"no \[\[data\]\]"),
        ("[run]\nsteps = 0\nout='x'", "steps = 0 is out of range"),
        ("[run]\nsteps = '3'\nout='x'", r"\[run\] cannot be used"),
        ("[run]\nsteps = 3\nout='x'\nbatch_size=5\nmicro_batch=2", "a multiple of micro_batch = 2"),
        ("[run]\nsteps = 3\nout='x'\n[data]\nkind='lines'", "write ..data.."),
        ("[run]\nsteps = 3\nout='x'\n[[data]]\nweight=1", "no kind"),
        ("[run]\nsteps = 3\nout='x'\n[optim]\nlr=-1", "lr = -1 is out of range"),
        ("[run]\nsteps = 3\nout='x'\n[model]\ntext={hidden_size=3}", 'init = "scratch"'),
        ("[run]\nsteps = 3\nout='x'\n[objective]\nform='both'", "drawn or all"),
        ("[run]\nsteps = 3\nout='x'\n[lora]\nranks=3", "did you mean 'rank'"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
