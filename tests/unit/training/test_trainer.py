"""Runs: exact resume, many processes, precision, and what a run leaves behind."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from mdiff_core import Engine
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.errors import CheckpointError, ConfigError, TrainingError
from mdiff_core.models.loader import load_model
from mdiff_core.training import TrainConfig, Trainer, train
from mdiff_core.training.batch import Batch
from mdiff_core.training.build import build_model, model_json, plain_model, shapes_of
from mdiff_core.training.config import ModelSettings, OptimConfig
from mdiff_core.training.data import build_source, build_stream
from mdiff_core.training.distributed import Processes, join_processes
from mdiff_core.training.loading import MicroBatches, load_in_order
from mdiff_core.training.objective import losses
from mdiff_core.training.optim import MasterOptimizer, learning_rate
from mdiff_core.training.state import LOG_NAME, read_log, state_files
from mdiff_core.training.trainer import _compute_dtype

from .conftest import REGION, SMALL_MODEL, MakeConfig

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)
TIMES = ("seconds", "samples_per_s", "minutes_left")


class KilledError(BaseException):
    """Stands for a kill: nothing of ours may catch it."""


def kill_at(step: int) -> Any:
    def progress(record: Mapping[str, Any]) -> None:
        if record["event"] == "step" and record["step"] == step:
            raise KilledError

    return progress


def curve(config: TrainConfig) -> list[dict[str, Any]]:
    records = read_log(config.run.out / LOG_NAME)
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def weights(config: TrainConfig) -> dict[str, torch.Tensor]:
    return load_file(config.run.out / "checkpoint" / "model.safetensors")


def assert_same_run(one: TrainConfig, other: TrainConfig) -> None:
    assert curve(one) == curve(other)
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_killed_and_resumed_run_is_the_run_that_was_not(make_config: MakeConfig) -> None:
    whole, cut = make_config("whole"), make_config("cut")
    assert train(whole).finished
    with pytest.raises(KilledError):
        # Killed at 13; the last state is of 10, and the log is three steps ahead of it.
        train(cut, progress=kill_at(13))
    assert [p.name for p in state_files(cut.run.out / "states")] == [
        "state-00000005.pt",
        "state-00000010.pt",
    ]
    assert len(curve(cut)) == 13
    outcome = train(cut)
    assert outcome.finished and outcome.step == 20
    assert [record["step"] for record in curve(cut)] == list(range(1, 21))
    assert_same_run(whole, cut)


def test_a_state_between_two_lines_of_the_log_keeps_their_mean(make_config: MakeConfig) -> None:
    run = {"steps": 8, "log_every": 4, "save_every": 3}
    whole, cut = make_config("whole", run=run), make_config("cut", run=run)
    train(whole)
    with pytest.raises(KilledError):
        train(cut, progress=kill_at(4))
    train(cut)
    assert_same_run(whole, cut)


RUNNER = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from mdiff_core.training import TrainConfig, train

def progress(record):
    if record["event"] == "step" and record["step"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

train(TrainConfig.from_dict(json.load(open(sys.argv[1]))), progress=progress)
"""


def run_in_process(config: TrainConfig, kill_step: int, folder: Path) -> int:
    raw = config.to_dict()
    raw["data"] = [{"kind": s["kind"], "weight": s["weight"], **s["options"]} for s in raw["data"]]
    path = folder / "config.json"
    path.write_text(json.dumps(raw))
    command = [sys.executable, "-c", RUNNER, str(path), str(kill_step)]
    return subprocess.run(command, check=False, timeout=280).returncode


@pytest.mark.slow
def test_two_hundred_steps_with_a_real_kill(make_config: MakeConfig, tmp_path: Path) -> None:
    run = {"steps": 200, "save_every": 50, "batch_size": 2, "micro_batch": 2, "workers": 1}
    whole, cut = make_config("whole", run=run), make_config("cut", run=run)
    train(whole)
    assert run_in_process(cut, 100 + 17, tmp_path) == -signal.SIGKILL
    train(replace(cut, run=replace(cut.run, workers=0)))
    assert len(curve(cut)) == 200
    assert_same_run(whole, cut)


def test_a_signal_ends_the_run_saved(make_config: MakeConfig) -> None:
    run = {"steps": 12, "save_every": 100}
    whole, cut = make_config("whole", run=run), make_config("cut", run=run)

    def progress(record: Mapping[str, Any]) -> None:
        if record["event"] == "step" and record["step"] == 7:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    outcome = train(cut, progress=progress)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not outcome.finished and outcome.step == 7
    train(whole)
    train(cut)
    assert_same_run(whole, cut)


def test_the_time_limit_ends_the_run_saved(make_config: MakeConfig) -> None:
    config = make_config(run={"max_minutes": 1e-6, "save_every": 100})
    outcome = train(config)
    assert (outcome.finished, outcome.step) == (False, 1)
    assert train(config).step == 2


# Python 3.12 warns of forks beside threads; workers touch none of torch's.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_change_nothing(make_config: MakeConfig) -> None:
    run = {"steps": 4}
    alone = make_config("alone", run=run)
    several = make_config("several", run={**run, "workers": 2})
    train(alone)
    train(several)
    assert_same_run(alone, several)


class BrokenData:
    """Stands for micro-batches of which none can be drawn."""

    def __getitem__(self, index: int) -> Batch:
        raise ConfigError("a page is broken", hint="mend it", source=f"batch {index}")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_wrong_with_data_is_said_in_the_same_words_by_a_worker(workers: int) -> None:
    batches = load_in_order(BrokenData(), [3], workers)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(ConfigError) as raised:
        next(batches)
    assert str(raised.value) == "batch 3: a page is broken (mend it)"


def test_processes_wait_longer_than_a_validation_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    class JoinedError(Exception):
        """The processes would be joined now."""

    def join(backend: str, timeout: timedelta) -> None:
        assert timeout > timedelta(hours=1)
        raise JoinedError

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    with pytest.raises(JoinedError), join_processes("cpu"):
        pass


def test_data_can_be_sent_to_processes_that_are_not_forked(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config(), ALONE)
    data = MicroBatches(trainer.config, trainer.model.config)
    one, other = data[3], pickle.loads(pickle.dumps(data))[3]
    assert torch.equal(one.pixels, other.pixels) and torch.equal(one.ids, other.ids)
    assert torch.equal(one.targets, other.targets)


def test_a_model_of_single_tokens_is_autoregressive(make_config: MakeConfig) -> None:
    """The twin for Semantic Shuffle: every token from those before it."""
    config = make_config(
        run={"steps": 2},
        objective={"block_length": 1, "form": "all"},
        validation={"samples": 1},
        model={**SMALL_MODEL, "mdiff": {"segment_px": [224, 28], "max_tokens": {"text": 4}}},
    )
    outcome = train(config)
    assert outcome.validation is not None
    assert 0 < outcome.validation.tokens_per_forward <= 1
    batch = MicroBatches(config, build_model(config, device=CPU, dtype=torch.float32)[0].config)[0]
    assert (batch.ids[batch.kinds == 2] == 262).all()


def test_micro_batches_give_the_gradient_of_the_whole_batch(make_config: MakeConfig) -> None:
    grads = []
    for size in (4, 2, 1):
        # Samples of a group share their source, so only one source makes the sizes comparable.
        config = make_config(f"of{size}", run={"batch_size": 4, "micro_batch": size})
        trainer = Trainer(config, ALONE)
        sums = trainer.gradient_step(trainer.micro_batches())
        grads.append({n: v.grad for n, v in trainer.optimizer.masters.items()})
        assert float(sums["loss"][1]) >= 4
    for other in grads[1:]:
        for name, grad in grads[0].items():
            torch.testing.assert_close(grad, other[name], rtol=1e-4, atol=1e-6, msg=name)


PROCESS = """
import json, sys
import torch
torch.set_num_threads(1)
from mdiff_core.training import TrainConfig, train
train(TrainConfig.from_dict(json.load(open(sys.argv[1]))))
"""


@pytest.mark.slow
def test_one_and_two_processes_agree(make_config: MakeConfig, tmp_path: Path) -> None:
    run = {"steps": 6, "batch_size": 4, "export_dtype": "fp32"}
    one, two = make_config("one", run=run), make_config("two", run=run)
    train(one)
    raw = two.to_dict()
    raw["data"] = [{"kind": s["kind"], **s["options"]} for s in raw["data"]]
    (tmp_path / "two.json").write_text(json.dumps(raw))
    (tmp_path / "process.py").write_text(PROCESS)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(tmp_path / "process.py"), str(tmp_path / "two.json"),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        check=False,
        timeout=280,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert [r["processes"] for r in read_log(two.run.out / LOG_NAME, "start")] == [2]
    for left, right in zip(curve(one), curve(two), strict=True):
        assert left["step"] == right["step"]
        for name in ("loss", "accuracy", "named", "guided", "grad_norm"):
            assert left[name] == pytest.approx(right[name], rel=1e-4), name
    left_weights, right_weights = weights(one), weights(two)
    for name, value in left_weights.items():
        torch.testing.assert_close(value, right_weights[name], rtol=1e-3, atol=1e-5, msg=name)


def test_other_settings_are_refused_and_named(make_config: MakeConfig) -> None:
    config = make_config(run={"steps": 5})
    train(config)
    changed = replace(config, optim=replace(config.optim, lr=0.5))
    with pytest.raises(TrainingError, match=r"optim.lr = 0.0012, now 0.5"):
        train(changed)
    # What does not change the numbers may change.
    quieter = replace(config, run=replace(config.run, log_every=3, workers=1))
    assert train(quieter).step == 5
    assert train(changed, fresh=True).step == 5


def test_starting_over_forgets_the_old_run(make_config: MakeConfig) -> None:
    whole = make_config("whole", run={"steps": 8, "save_every": 2})
    train(whole)
    expected = curve(whole)
    with pytest.raises(KilledError):
        train(whole, fresh=True, progress=kill_at(5))
    assert [p.name for p in state_files(whole.run.out / "states")] == [
        "state-00000002.pt",
        "state-00000004.pt",
    ]
    train(whole)
    assert curve(whole) == expected


def test_a_broken_state_is_passed_over(make_config: MakeConfig) -> None:
    run = {"steps": 8, "save_every": 3}
    whole, cut = make_config("whole", run=run), make_config("cut", run=run)
    train(whole)
    with pytest.raises(KilledError):
        train(cut, progress=kill_at(7))
    newest = state_files(cut.run.out / "states")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    train(cut)
    assert_same_run(whole, cut)
    for path in state_files(cut.run.out / "states"):
        path.write_bytes(b"")
    with pytest.raises(TrainingError, match="none of the 2 states"):
        train(cut)


def test_old_states_are_removed(make_config: MakeConfig) -> None:
    config = make_config(run={"steps": 8, "save_every": 2, "keep": 3})
    train(config)
    names = [path.name for path in (config.run.out / "states").iterdir()]
    assert sorted(names) == [f"state-0000000{step}.pt" for step in (4, 6, 8)]


def test_the_exported_checkpoint_holds_the_average_and_can_be_decoded(
    make_config: MakeConfig,
) -> None:
    config = make_config(
        run={"steps": 3, "export_dtype": "fp32"},
        model={**SMALL_MODEL, "mdiff": {"segment_px": [224, 28], "max_tokens": {"text": 64}}},
        validation={"samples": 2, "every": 2},
    )
    trainer = Trainer(config, ALONE)
    outcome = trainer.run()
    stored = weights(config)
    average = trainer.optimizer.average["decoder.norm.weight"]
    torch.testing.assert_close(stored["language_model.model.norm.weight"], average, rtol=0, atol=0)
    last = trainer.optimizer.masters["decoder.norm.weight"]
    assert not torch.equal(average, last.detach())
    with Engine.load(config.run.out / "checkpoint", device="cpu", dtype="fp32") as engine:
        assert engine.capabilities.segment_px == (224, 28)
        assert engine.capabilities.limit("text") == 64
    assert outcome.validation is not None
    records = read_log(config.run.out / LOG_NAME, "validation")
    assert [record["step"] for record in records] == [2, 3]
    assert all(math.isfinite(record["character_error"]) for record in records)


def test_loss_falls(make_config: MakeConfig) -> None:
    run = {"steps": 25, "batch_size": 4, "micro_batch": 4, "log_every": 5}
    config = make_config(run=run, optim={"lr": 5e-3, "warmup_steps": 4})
    train(config)
    values = [record["loss"] for record in curve(config)]
    assert values[-1] < values[0] - 0.5


def test_bf16_keeps_masters_in_fp32(make_config: MakeConfig) -> None:
    config = make_config(run={"steps": 3, "dtype": "bf16"})
    trainer = Trainer(config, ALONE)
    before = {n: v.clone() for n, v in trainer.optimizer.masters.items()}
    trainer.run()
    masters = trainer.optimizer.masters
    assert trainer.model.dtype == torch.bfloat16
    assert {value.dtype for value in masters.values()} == {torch.float32}
    parameters = dict(trainer.model.named_parameters())
    for name, value in masters.items():
        assert torch.equal(parameters[name], value.to(torch.bfloat16)), name
        # Steps far below bf16's resolution add up in the masters.
        assert not torch.equal(value, before[name]), name


def test_recomputed_layers_give_the_same_gradient(make_config: MakeConfig) -> None:
    grads = []
    for recompute in (False, True):
        config = make_config(f"r{recompute}", run={"recompute": recompute})
        trainer = Trainer(config, ALONE)
        trainer.gradient_step(trainer.micro_batches())
        grads.append({n: v.grad for n, v in trainer.optimizer.masters.items()})
        plain = plain_model(trainer.model, trainer.optimizer.final_weights())
        assert "forward" not in plain.decoder.layers[0].__dict__
    for name, grad in grads[0].items():
        assert torch.equal(grad, grads[1][name]), name


def test_frozen_parts_stay(make_config: MakeConfig) -> None:
    model = {"base": "tiny", "freeze": ["vision", "projector"]}
    guide = {"guide": [0.5, 0.1]}
    config = make_config(run={"steps": 1, "batch_size": 1, "micro_batch": 1}, model=model,
                         objective=guide)  # fmt: skip
    trainer = Trainer(config, ALONE)
    assert all(name.startswith("decoder.") for name in trainer.optimizer.masters)
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    trainer.run()
    for name, value in trainer.model.named_parameters():
        assert torch.equal(value, before[name]) == (not name.startswith("decoder.")), name


def test_tiny_goes_on_from_its_weights(make_config: MakeConfig) -> None:
    config = make_config(model={"base": "tiny"}, objective={}, run={"batch_size": 4})
    trainer = Trainer(config, ALONE)
    sums = trainer.gradient_step(trainer.micro_batches())
    # From scratch it would be ln(320) = 5.8.
    assert float(sums["loss"][0] / sums["loss"][1]) < 1.0


def test_gradients_that_are_not_finite_end_the_run(make_config: MakeConfig) -> None:
    config = make_config(run={"steps": 100, "batch_size": 1, "micro_batch": 1})
    trainer = Trainer(config, ALONE)
    with torch.no_grad():
        trainer.optimizer.masters["decoder.norm.weight"][0] = math.nan
    with pytest.raises(TrainingError, match="20 gradients in a row were not finite, up to step 19"):
        trainer.run()
    records = curve(config)
    assert all(record["skipped"] == 1.0 for record in records)
    # JSON has no NaN and no infinity.
    assert all(record["grad_norm"] is None for record in records)


class NoDoubles(TorchFunctionMode):
    """A device without fp64, as Apple's are: neither numbers nor casts of that type there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        there = kwargs.get("device") == self.device
        assert not (there and kwargs.get("dtype") == torch.float64), func
        assert func is not torch.Tensor.double
        return func(*args, **kwargs)


def test_sums_need_no_doubles_on_the_device(make_config: MakeConfig) -> None:
    # Not equal to torch.device("cpu"), so that what is meant for the device can be told.
    device = torch.device("cpu", 0)
    config = make_config(run={"batch_size": 4, "micro_batch": 2})
    with NoDoubles(device):
        trainer = Trainer(config, Processes(0, 1, device))
        sums = trainer.gradient_step(trainer.micro_batches())
    assert {(str(v.device), v.dtype) for v in sums.values()} == {("cpu", torch.float64)}
    # Every micro-batch has its part in the sums.
    parts = [
        losses(trainer.model, batch, name_images=True, guide_heads=config.objective.guide_heads)
        for batch, _ in zip(trainer.micro_batches(), range(2), strict=False)
    ]
    for name, field in (("loss", "masked"), ("accuracy", "correct"), ("guided", "guided")):
        total = sum(getattr(part, field).item() for part in parts)
        assert float(sums[name][0]) == pytest.approx(total)


def test_the_type_is_chosen_by_what_the_device_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        # Emulated it is everywhere.
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, native=native: including_emulation or native,
        )
        assert _compute_dtype("auto", gpu) == expected
        assert _compute_dtype("bf16", gpu) == torch.bfloat16
        assert _compute_dtype("fp32", gpu) == torch.float32


def test_validation_that_cannot_be_made_is_refused_before_the_first_step(
    make_config: MakeConfig,
) -> None:
    for data, message in (
        ([{"kind": "linse"}], "no kind of data 'linse'"),
        ([{"kind": "folder", "path": "/not/there"}], "no labels in /not/there"),
    ):
        config = make_config(validation={"samples": 2, "data": data})
        with pytest.raises(ConfigError, match=message):
            Trainer(config, ALONE)
        # It is read by the main process alone, and only if there is something to read.
        Trainer(config, Processes(1, 1, CPU))
        Trainer(make_config(validation={"samples": 0, "data": data}), ALONE)


def test_validation_without_data_draws_other_samples_than_the_training(
    make_config: MakeConfig,
) -> None:
    config = make_config(validation={"samples": 2})
    trainer = Trainer(config, ALONE)
    drawn = build_stream(config.data, trainer.model.config.capabilities, seed=7 + 10**9)
    assert trainer._held_out is not None
    for index in range(3):
        held_out = trainer._held_out[index]
        assert held_out.image.tobytes() == drawn[index].image.tobytes()
        assert held_out.image.tobytes() != trainer._data.stream[index].image.tobytes()


def test_guided_heads_must_exist(make_config: MakeConfig) -> None:
    with pytest.raises(TrainingError, match="head 1 of layer 2"):
        Trainer(make_config(objective={"guide": [1, 0], "guide_heads": [[2, 1]]}), ALONE)


def test_micro_batches_must_be_shared_evenly(make_config: MakeConfig) -> None:
    with pytest.raises(TrainingError, match="2 micro-batches of a step cannot be shared by 3"):
        Trainer(make_config(run={"batch_size": 4}), Processes(0, 3, CPU))


def test_learning_rate_rises_and_falls() -> None:
    config = OptimConfig(lr=1.0, warmup_steps=10, final_lr=0.1)
    rates = [learning_rate(step, 110, config) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55, abs=0.01)
    assert rates[109] == pytest.approx(0.1, abs=0.001)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_only_matrices_decay(make_config: MakeConfig) -> None:
    config = make_config(optim={"vision_lr": 0.5})
    model, _ = build_model(config, device=CPU, dtype=torch.float32)
    optimizer = MasterOptimizer(model, config.optim, 10)
    decay = {
        id(parameter): (group["weight_decay"], group["factor"])
        for group in optimizer._adam.param_groups
        for parameter in group["params"]
    }
    by_name = {name: decay[id(value)] for name, value in optimizer.masters.items()}
    assert by_name["decoder.layers.0.qkv.weight"] == (0.01, 1.0)
    assert by_name["decoder.layers.0.q_norm.weight"] == (0.0, 1.0)
    assert by_name["decoder.embed_tokens.weight"] == (0.0, 1.0)
    assert by_name["vision.blocks.0.qkv.weight"] == (0.01, 0.5)
    assert by_name["vision.blocks.0.qkv.bias"] == (0.0, 0.5)


def test_initial_weights_depend_on_the_seed_alone(make_config: MakeConfig) -> None:
    def first(name: str, seed: int) -> dict[str, torch.Tensor]:
        config = make_config(name, run={"seed": seed})
        return dict(build_model(config, device=CPU, dtype=torch.float32)[0].named_parameters())

    one, same, other = first("a", 1), first("b", 1), first("c", 2)
    for name, value in one.items():
        assert torch.equal(value, same[name]), name
        assert value.isfinite().all()
    changed = [name for name, value in one.items() if not torch.equal(value, other[name])]
    assert "decoder.layers.1.down_proj.weight" in changed


def test_shapes_that_do_not_fit_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"no shapes \['hiden_size'\]"):
        Trainer(make_config(model={"init": "scratch", "text": {"hiden_size": 8}}), ALONE)
    with pytest.raises(CheckpointError, match="multiple of num_key_value_heads"):
        text = {"num_attention_heads": 3, "num_key_value_heads": 2}
        Trainer(make_config(model={"init": "scratch", "text": text}), ALONE)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"mdiff": {"tasks": 5}}, "tasks = 5 is out of range"),
        ({"mdiff": {"segment_px": ["a", 28]}}, r"segment_px = \['a', 28\] is out of range"),
        ({"mdiff": {"segment_px": [896.5, 28]}}, r"segment_px = \[896.5, 28\] is out of range"),
        ({"mdiff": {"max_tokens": 5}}, "max_tokens = 5 is out of range"),
        ({"text": {"hidden_size": "x"}}, r"\[model.text\] hidden_size = 'x' cannot be used"),
        (
            {"text": {"num_key_value_heads": 0}},
            r"\[model.text\] num_key_value_heads = 0 is out of range",
        ),
        ({"vision": {"depth": 1.5}}, r"\[model.vision\] depth = 1.5 cannot be used"),
    ],
)
def test_shapes_that_cannot_be_used_are_named(model: dict[str, Any], message: str) -> None:
    base = resolve_checkpoint("tiny")
    with pytest.raises(ConfigError, match=message):
        shapes_of(model_json(ModelSettings(init="scratch", **model), base), base)


@pytest.mark.slow
def test_eight_lines_are_learned_without_an_error(
    make_config: MakeConfig, drawing: dict[str, Any], tmp_path: Path
) -> None:
    """Overfit: the whole way from pictures to decoded text works."""
    folder = tmp_path / "lines"
    folder.mkdir()
    options = {**drawing, "max_chars": 7, "grades": [1, 0, 0, 0]}
    source = build_source("lines", options, REGION)
    with (folder / "labels.jsonl").open("w") as labels:
        for index in range(8):
            sample = source.sample(11, index)
            sample.image.save(folder / f"{index}.png")
            labels.write(json.dumps({"image": f"{index}.png", "text": sample.text}) + "\n")
    config = make_config(
        run={"steps": 200, "batch_size": 8, "micro_batch": 8, "log_every": 40},
        model={
            **SMALL_MODEL,
            "text": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
            "vision": {"depth": 1, "embed_dim": 48, "num_heads": 4, "mlp_ratio": 2},
            "mdiff": {"segment_px": [336, 28]},
        },
        optim={"lr": 3e-3, "warmup_steps": 10, "ema": 0.9},
        objective={"block_length": 8, "full_mask": 0.5},
        data=[{"kind": "folder", "path": str(folder), "shuffle": False}],
        validation={"samples": 8},
    )  # fmt: skip
    outcome = train(config)
    assert outcome.validation is not None
    assert outcome.validation.character_error == 0.0
    assert outcome.validation.exact == 1.0
    # Once sure of everything, it confirms a whole block in a forward.
    assert outcome.validation.tokens_per_forward > 4


def test_low_rank_updates_spare_what_is_frozen(make_config: MakeConfig) -> None:
    pytest.importorskip("peft")
    lora = {"rank": 2, "vision": True, "targets": ["qkv", "fc1"]}
    for freeze, expected in (
        ([], {"decoder", "vision", "projector"}),
        (["decoder"], {"vision", "projector"}),
        (["vision", "projector"], {"decoder"}),
    ):
        config = make_config(model={**SMALL_MODEL, "freeze": freeze}, lora=lora)
        model, _ = build_model(config, device=CPU, dtype=torch.float32)
        trained = {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad}
        assert trained == expected, freeze
    config = make_config(model={**SMALL_MODEL, "freeze": ["decoder"]}, lora={"rank": 2})
    with pytest.raises(ConfigError, match=r"outside of what model.freeze names: decoder"):
        build_model(config, device=CPU, dtype=torch.float32)


def test_a_scale_of_low_rank_updates_may_be_a_fraction(make_config: MakeConfig) -> None:
    pytest.importorskip("peft")
    config = make_config(model=SMALL_MODEL, lora={"rank": 2, "alpha": 0.5})
    model, _ = build_model(config, device=CPU, dtype=torch.float32)
    scales = {s for m in model.modules() for s in getattr(m, "scaling", {}).values()}
    assert scales == {0.25}


@pytest.mark.slow
def test_low_rank_updates_are_all_that_is_trained(make_config: MakeConfig) -> None:
    pytest.importorskip("peft")
    run = {"steps": 6, "export_dtype": "fp32", "save_every": 3}
    tables: dict[str, Any] = {
        "model": {"base": "tiny"},
        "lora": {"rank": 4, "alpha": 8, "dropout": 0.2},
        "objective": {"block_length": 32},
        "optim": {"lr": 1e-2, "warmup_steps": 1, "ema": 0.0},
    }
    whole, cut = (make_config(name, run=run, **tables) for name in ("whole", "cut"))
    trainer = Trainer(whole, ALONE)
    assert all("lora_" in name for name in trainer.optimizer.masters)
    # Four layers, four products each, two factors a product.
    assert len(trainer.optimizer.masters) == 4 * 4 * 2
    trainer.run()
    base = load_file(resolve_checkpoint("tiny") / "model.safetensors")
    tuned = weights(whole)
    assert base.keys() == tuned.keys()
    changed = {name for name in base if not torch.equal(base[name].float(), tuned[name])}
    assert len(changed) == 4 * 7
    assert all(".layers." in name and "norm" not in name for name in changed)
    # The merged weights compute what base and updates compute.
    plain = load_model(
        whole.run.out / "checkpoint",
        trainer.model.config,
        device=CPU,
        dtype=torch.float32,
    )
    batch = next(trainer.micro_batches(0))
    trainer.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            losses(plain, batch).masked, losses(trainer.model, batch).masked, rtol=1e-4, atol=1e-4
        )
    # Dropout is drawn anew from the step's number: resuming stays exact.
    with pytest.raises(KilledError):
        train(cut, progress=kill_at(5))
    train(cut)
    assert_same_run(whole, cut)
