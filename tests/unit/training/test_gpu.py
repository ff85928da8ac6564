"""On a CUDA device: the same gradient as on the CPU, and a whole run in bf16."""

from __future__ import annotations

import pytest
import torch

from mdiff_core.training import Trainer, train
from mdiff_core.training.distributed import Processes
from mdiff_core.training.state import LOG_NAME, read_log

from .conftest import MakeConfig

pytestmark = pytest.mark.gpu


def test_cuda_and_cpu_give_the_same_gradient(make_config: MakeConfig) -> None:
    grads = []
    for name in ("cpu", "cuda"):
        config = make_config(name, run={"device": name})
        trainer = Trainer(config, Processes(0, 1, torch.device(name)))
        trainer.gradient_step(trainer.micro_batches())
        masters = trainer.optimizer.masters
        grads.append({n: v.grad.cpu() for n, v in masters.items() if v.grad is not None})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-2, atol=1e-5, msg=name)


def test_a_bf16_run_on_cuda_learns_and_exports(make_config: MakeConfig) -> None:
    run = {"steps": 60, "batch_size": 16, "micro_batch": 16, "device": "cuda", "dtype": "bf16",
           "log_every": 10, "workers": 2}  # fmt: skip
    config = make_config(run=run, optim={"lr": 4e-3, "warmup_steps": 5}, validation={"samples": 2})
    outcome = train(config)
    losses = [record["loss"] for record in read_log(config.run.out / LOG_NAME)]
    assert losses[-1] < losses[0] - 0.5
    assert outcome.finished and outcome.validation is not None
