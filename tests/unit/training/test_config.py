"""Settings: what is refused, and that it is refused before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mdiff_core.errors import ConfigError
from mdiff_core.training import load_config
from mdiff_core.training.config import OptimConfig, RunConfig, TrainConfig
from mdiff_core.training.data import build_source

from .conftest import REGION, MakeConfig

DATA = '[[data]]\nkind = "lines"\n'


def load(folder: Path, text: str, **overrides: Any) -> TrainConfig:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, {name.replace("__", "."): v for name, v in overrides.items()})


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"steps": 1e4}, r"\[run\] steps = 10000.0 cannot be used \(give an integer\)"),
        ({"batch_size": 24.0, "micro_batch": 24.0}, "batch_size = 24.0 cannot be used"),
        ({"steps": True}, "steps = True cannot be used"),
        ({"recompute": "no"}, r"recompute = 'no' cannot be used \(give true or false\)"),
        ({"max_minutes": float("nan")}, r"max_minutes = nan cannot be used \(give a number\)"),
        ({"seed": -1}, r"seed = -1 is out of range \(allowed: integer in \[0, 2\*\*63\)"),
        ({"threads": -1}, "threads = -1 is out of range"),
        ({"dtype": "fp16"}, r"dtype = 'fp16' is out of range \(allowed: auto, bf16 or fp32"),
        ({"export_dtype": "bf61"}, r"export_dtype = 'bf61' is out of range"),
    ],
)
def test_a_run_that_cannot_be_made_is_refused(run: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**{"out": "run", "steps": 3, **run})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"objective": {"guide_heads": [[-1, 0]]}},
            r"guide_heads = \(\(-1, 0\),\) is out of range",
        ),
        ({"objective": {"guide_heads": [1, 0]}}, r"give a list, each \[an integer, an integer\]"),
        ({"objective": {"guide": [0.5]}}, r"guide = \[0.5\] cannot be used"),
        ({"objective": {"form": "al"}}, r"form = 'al' cannot be used \(give drawn or all"),
        ({"optim": {"betas": [0.9]}}, r"betas = \[0.9\] cannot be used"),
        ({"optim": {"weight_decay": -1}}, "weight_decay = -1 is out of range"),
        ({"lora": {"targets": "qkv"}}, r"targets = 'qkv' cannot be used \(give a list, each a"),
        ({"lora": {"alpha": 0.0}}, "alpha = 0.0 is out of range"),
        ({"model": {"freeze": "vision"}}, r"\[model\] freeze = 'vision' cannot be used"),
        ({"mine": {"seed": -1}}, r"\[mine\] seed = -1 is out of range"),
        ({"mine": {"threshold": 2}}, r"\[mine\] threshold = 2 is out of range"),
        ({"validation": {"samples": "2"}}, r"\[validation\] samples = '2' cannot be used"),
        ({"validation": [{"samples": 2}]}, r"validation is not a table \(write \[validation\]"),
        ({"validation": {"data": {"kind": "lines"}}}, r"write \[\[validation.data\]\]"),
        ({"data": {"kind": "lines"}}, r"data is no list of tables \(write \[\[data\]\]"),
        ({"data": 3}, "data is no list of tables"),
        ({"data": [{"kind": "lines", "weight": "2"}]}, r"weight = '2' cannot be used"),
        ({"data": [{"kind": "lines", "weight": float("inf")}]}, "weight = inf cannot be used"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    make_config: MakeConfig, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**tables)


def test_a_file_is_refused_whatever_it_holds(tmp_path: Path) -> None:
    run = '[run]\nout = "o"\nsteps = 3\n'
    for text, message in (
        (run + '[data]\nkind = "folder"\npath = "x"\n', "data is no list of tables"),
        ("data = [1]\n" + run, "data is no list of tables"),
        (run.replace("[run]", "[[run]]") + DATA, "run is not a table"),
        (run + DATA + "[[validation]]\nsamples = 2\n", "validation is not a table"),
        (run + DATA + "path = 3\n[model]\nbase = 3\n", r"\[model\] base = 3 cannot be used"),
        (run.replace('"o"', "3") + DATA, r"\[run\] out = 3 cannot be used"),
    ):
        with pytest.raises(ConfigError, match=f"run.toml: .*{message}"):
            load(tmp_path, text)
    with pytest.raises(ConfigError, match=r"steps = 10000.0 cannot be used"):
        load(tmp_path, run + DATA, run__steps=json.loads("1e4"))
    (tmp_path / "run.toml").write_bytes((run + DATA + "# é").encode("cp1252"))
    with pytest.raises(ConfigError, match=r"run.toml cannot be read"):
        load_config(tmp_path / "run.toml")


def test_a_byte_order_mark_is_no_setting(tmp_path: Path) -> None:
    assert load(tmp_path, '\ufeff[run]\nout = "o"\nsteps = 3\n' + DATA).run.steps == 3


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lines", {"exclude_fonts": "symbol"}),
        ("lines", {"corpus": "books"}),
        ("lines", {"fonts": "fonts"}),
        ("lines", {"grades": "x"}),
        ("lines", {"texts": {"words": "much"}}),
        ("paragraphs", {"width_px": "wide"}),
        ("pages", {"formulas": "no"}),
        ("folder", {"path": "x", "shuffle": "no"}),
        ("folder", {"path": ["x"]}),
        ("mined", {"path": 3}),
    ],
)
def test_options_of_another_type_are_refused(kind: str, options: dict[str, Any]) -> None:
    name = list(options)[-1]
    with pytest.raises(ConfigError, match=rf"\[data\] {name} = .* cannot be used"):
        build_source(kind, options, REGION)


def test_lists_integers_and_texts_pass_for_what_a_file_cannot_say() -> None:
    assert RunConfig(out="here", steps=3).out == Path("here")  # type: ignore[arg-type]
    assert OptimConfig(lr=1, betas=[0, 0.5]).betas == (0, 0.5)  # type: ignore[arg-type]


def test_font_folders_are_looked_for_at_once() -> None:
    with pytest.raises(ConfigError, match="font folder /not/there is not there"):
        build_source("lines", {"fonts": ["/not/there"]}, REGION)
