"""The commands and their files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from mdiff_adapters.cli import app
from mdiff_adapters.document import BBox, ParsedPage, Region, RegionType
from mdiff_adapters.evaluation.labels import page_record
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
    # What was looked at is counted, and not what was wished for.
    one = write(tmp_path / "one", [{"image": "a.png", "text": "ab"}], a=draw_text("ab"))
    config.write_text(config.read_text() + f'data = [{{ kind = "folder", path = "{one}" }}]\n')
    other = str(tmp_path / "other.jsonl")
    result = runner.invoke(app, ["mine", str(config), other, "--device", "cpu"])
    assert "of 1 samples are hard" in result.output
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


def test_eval_help_names_all_defaults() -> None:
    result = CliRunner().invoke(app, ["eval", "--help"], env={"COLUMNS": "200"})
    for default in ("tiny", "0.95", "32", "what Python brings"):
        assert f"[default: ({default})]" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate on"),
        (["--damage", "--text", "prosa"], "did you mean 'prose'"),
        (["--damage", "--corpus", "no-such-folder"], "no-such-folder is not there"),
        (["--engine", "tiny", "--block-length", "32", "--block-length", "1"], "2 block lengths"),
    ],
)
def test_eval_says_what_is_missing(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == 2 and message in result.output


def text_page(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    draw_text(text).save(path)
    return path


def bench_folder(path: Path, *images: str) -> Path:
    """OmniDocBench's format: a page an image, each with one region."""
    width, height = draw_text("A page with one line of text").size
    for name in images:
        text_page(path / name, "A page with one line of text")
    box = [0, 0, width, 0, width, height, 0, height]
    regions = [{"category_type": "text_block", "poly": box, "text": "Text of page 1", "order": 1}]
    pages = [
        {"layout_dets": regions,
         "page_info": {"image_path": name, "width": width, "height": height}}
        for name in images
    ]  # fmt: skip
    (path / "bench.json").write_text(json.dumps(pages))
    return path


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bench", ("--threshold", "0.5", "--threshold", "0.9"), "several --threshold has no"),
        ("bench", ("--plot", "PLOT"), "--plot has no effect on pages end to end"),
        ("bench", ("--layout", "true", "--predictions", "MD"), "--predictions has no effect on"),
        ("bench", ("--text", "words"), "--text has no effect"),
        ("bench", ("--count", "3"), "--count has no effect"),
        ("crops", ("--corpus", "texts"), "--corpus has no effect"),
        ("bench", ("--damage",), "draw text and read no folder"),
        ("bench", ("--engine", "tiny", "--engine", "scripted:"), "several --engine has no effect"),
        ("crops", ("--layout", "true"), "--layout has no effect on labelled crops"),
        ("crops", ("--predictions", "MD"), "--predictions has no effect on labelled crops"),
        ("none", ("--damage", "--plot", "PLOT"), "--plot has no effect on damaged text"),
        ("none", ("--shuffle", "1", "--every", "2"), "--every has no effect on shuffled text"),
        ("none", ("--damage", "--threshold", "0.5", "--threshold", "1"), "several --threshold"),
        ("none", ("--damage", "--engine", "tiny", "--engine", "tiny"), "given twice"),
    ],
)
def test_eval_refuses_options_without_effect(
    tmp_path: Path, kind: str, options: tuple[str, ...], message: str
) -> None:
    """And does so before it opens an engine: this one cannot be."""
    folder: list[Any] = []
    if kind == "bench":
        folder = [bench_folder(tmp_path / "data", "page.png")]
    elif kind == "crops":
        folder = [write(tmp_path / "data", [{"image": "a.png", "text": "a"}], a=draw_text("a"))]
    engine = () if "--engine" in options else ("--engine", "/no/such/checkpoint")
    names = [str(tmp_path / option) if option in ("PLOT", "MD") else option for option in options]
    result = CliRunner().invoke(app, ["eval", *map(str, folder), *engine, *names])
    assert result.exit_code == 2
    assert message in result.output


def test_eval_makes_the_folder_of_its_report(tmp_path: Path) -> None:
    data = bench_folder(tmp_path / "data", "page.png")
    output = tmp_path / "new" / "folder" / "report.json"
    arguments = ["eval", str(data), "--engine", "scripted:", "-o", str(output),
                 "--predictions", str(tmp_path / "md")]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(output.read_text())["metrics"]["text"] == 1
    assert (tmp_path / "md" / "page.md").read_text().strip() == "Text of page 1"


@pytest.mark.parametrize("option", ["-o", "--plot"])
@pytest.mark.parametrize("name", ["file.txt/report.svg", "folder"])
def test_eval_says_at_once_what_it_cannot_write(tmp_path: Path, option: str, name: str) -> None:
    data = write(tmp_path / "data", [{"image": "a.png", "text": "a"}], a=draw_text("a"))
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "folder").mkdir()
    arguments = ["eval", str(data), "--engine", "/no/such/checkpoint", option]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / name)])
    assert isinstance(result.exception, SystemExit) and result.exit_code != 0
    assert len(result.output.splitlines()) == 1
    assert str(tmp_path / Path(name).parts[0]) in result.output


def test_eval_says_at_once_what_it_cannot_plot(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [{"image": "a.png", "text": "a"}], a=draw_text("a"))
    arguments = ["eval", str(data), "--engine", "/no/such/checkpoint", "--plot", "curve.odd"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "no plot can be written as '.odd'" in result.output


def test_eval_refuses_predictions_that_overwrite_each_other(tmp_path: Path) -> None:
    data = bench_folder(tmp_path / "data", "page.png", "page.bmp")
    arguments = ["eval", str(data), "--engine", "scripted:", "--predictions", str(tmp_path / "md")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "would be one file" in result.output
    assert not (tmp_path / "md").exists()


def test_label_keeps_documents_of_one_name_apart(tmp_path: Path) -> None:
    first = text_page(tmp_path / "a" / "scan.png", "The first of two pages")
    second = text_page(tmp_path / "b" / "scan.png", "The second of two pages")
    third = text_page(tmp_path / "a" / "scan.bmp", "A third one of another kind")
    folder = tmp_path / "data"

    def label(*pages: Path) -> tuple[str, list[str]]:
        arguments = ["label", *map(str, pages), "-o", str(folder), "--engine", "scripted:"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        lines = (folder / "labels.jsonl").read_text().splitlines()
        return result.output, [json.loads(line)["image"] for line in lines]

    _, names = label(first, second)
    assert names[0] == "scan_p0001.png" and len(set(names)) == 2
    _, names = label(third)
    assert len(set(names)) == 3
    pixels = [Image.open(folder / name).convert("RGB").tobytes() for name in names]
    assert pixels == [Image.open(p).convert("RGB").tobytes() for p in (first, second, third)]
    # What was corrected stays, whichever of the pages comes again, and in whatever order.
    labels = folder / "labels.jsonl"
    corrected = labels.read_text().replace("Text of page 1", "Corrected").removesuffix("\n")
    labels.write_text(corrected)
    output, again = label(third, second, first)
    assert again == names and output.count("is labelled already") == 3
    assert labels.read_text().rstrip("\n") == corrected
    # A label that was removed is drafted anew, beside the picture that is there.
    labels.write_text("\n".join(corrected.splitlines()[1:]))
    _, again = label(first, second)
    assert sorted(again) == sorted(names)
    assert labels.read_text().count("Corrected") == 2


def test_label_says_which_pages_it_left_out(tmp_path: Path) -> None:
    page = text_page(tmp_path / "page.png", "A page with one line of text")
    bad = tmp_path / "bad.gif"
    data = io.BytesIO()
    draw_text("A page with one line of text").save(data, "GIF")
    bad.write_bytes(data.getvalue()[:-400])
    arguments = ["label", str(page), str(bad), "-o", str(tmp_path / "data"), "--engine"]
    result = CliRunner().invoke(app, [*arguments, "scripted:"])
    assert result.exit_code == 1
    assert "error: " in result.output and "bad.gif" in result.output
    assert "1 page could not be read" in result.output
    assert len((tmp_path / "data" / "labels.jsonl").read_text().splitlines()) == 1


def test_labels_keep_rows_and_delimiters() -> None:
    """The labels are answers to train on: a program in one line would teach to join lines."""
    box = BBox(0.1, 0.1, 0.9, 0.9)
    answers: tuple[tuple[RegionType, str], ...] = (
        ("code", "def f(x):\n    return x"), ("list", "1. one\n2. two"), ("text", "two\nlines"),
    )  # fmt: skip
    regions = [
        Region(id=f"r{i}", order=i, type=kind, bbox=box, text=text, raw=text)
        for i, (kind, text) in enumerate(answers)
    ]
    raw = r"\[ x^2 \]<|endoftext|>"
    regions.append(Region(id="r3", order=3, type="equation", bbox=box, latex="x^2", raw=raw))
    page = ParsedPage(index=0, label="1", size_px=(9, 9), size_pt=(9, 9), regions=tuple(regions))
    texts = [region["text"] for region in page_record(page, "a.png")["regions"]]
    assert texts == ["def f(x):\n    return x", "1. one\n2. two", "two lines", r"\[ x^2 \]"]


def test_label_leaves_out_pages_that_failed(tmp_path: Path) -> None:
    """An empty label would teach that there is nothing on the page."""
    page = text_page(tmp_path / "page.png", "A page with one line of text")
    recording = tmp_path / "recording"
    recording.mkdir()
    (recording / "other.json").write_text('{"layout_output": "", "regions": []}')
    folder = tmp_path / "data"
    arguments = ["label", str(page), "-o", str(folder), "--engine", f"replay:{recording}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "no recorded page 'page_p0001'" in result.output
    assert [path.name for path in folder.iterdir()] == ["labels.jsonl"]
    assert (folder / "labels.jsonl").read_text() == ""


@pytest.mark.parametrize("written", ["{", "[]", '{"text": "x"}'])
def test_label_touches_no_labels_it_cannot_read(tmp_path: Path, written: str) -> None:
    page = text_page(tmp_path / "page.png", "A page with one line of text")
    labels = tmp_path / "data" / "labels.jsonl"
    labels.parent.mkdir()
    labels.write_text(written)
    arguments = ["label", str(page), "-o", str(labels.parent), "--engine", "scripted:"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "line 1" in result.output
    assert labels.read_text() == written


def test_label_into_a_file_is_one_line(tmp_path: Path) -> None:
    page = text_page(tmp_path / "page.png", "A page with one line of text")
    result = CliRunner().invoke(app, ["label", str(page), "-o", str(page), "--engine", "scripted:"])
    assert isinstance(result.exception, SystemExit) and result.exit_code == 1
    [line] = result.output.splitlines()
    assert line.startswith("error: ")


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
        ("[run]\nsteps = '3'\nout='x'", r"\[run\] steps = '3' cannot be used"),
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
