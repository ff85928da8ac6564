"""AdamW on fp32 master weights, with warm-up, cosine decay, clipping and an average of the weights.

Where the network computes in bf16 its gradients are added up in fp32, and its weights are rounded
from the masters after each step: no casts inside the forward pass, no lost small updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mdiff_core.errors import TrainingError
from mdiff_core.training.config import OptimConfig
from mdiff_core.training.distributed import Processes


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Return the learning rate of a 0-based step: linear warm-up, then a cosine."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    rest = max(1, num_steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / rest)
    share = config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * share


class MasterOptimizer:
    """Optimises the trainable parameters of a network.

    Args:
        model: The network; parameters without ``requires_grad`` are left alone.
        config: Settings.
        num_steps: Steps of the whole run, for the schedule.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, num_steps: int) -> None:
        self.config, self._num_steps = config, num_steps
        self._params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._params:
            raise TrainingError("no weight is left to train", hint="look at model.freeze")
        # In fp32 the parameters are their own masters.
        self.masters: dict[str, Tensor] = {
            name: param if param.dtype == torch.float32 else param.detach().float()
            for name, param in self._params.items()
        }
        self.average: dict[str, Tensor] = (
            {name: value.detach().clone() for name, value in self.masters.items()}
            if config.ema
            else {}
        )
        self._adam = torch.optim.AdamW(
            self._groups(), betas=config.betas, eps=config.eps, fused=True
        )

    def _groups(self) -> list[dict[str, Any]]:
        groups: dict[tuple[bool, bool], list[Tensor]] = {}
        for name, value in self.masters.items():
            decays = value.dim() > 1 and "embed_tokens" not in name and "norm" not in name
            groups.setdefault((decays, name.startswith("vision.")), []).append(value)
        return [
            {
                "params": values,
                "lr": self.config.lr,
                "weight_decay": self.config.weight_decay if decays else 0.0,
                "factor": self.config.vision_lr if is_vision else 1.0,
            }
            for (decays, is_vision), values in groups.items()
        ]

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add the gradients of a micro-batch to those of the masters."""
        for name, param in self._params.items():
            master = self.masters[name]
            if master is param or param.grad is None:
                continue
            grad = param.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            param.grad = None

    @torch.no_grad()
    def step(self, step: int, processes: Processes) -> tuple[float, bool]:
        """Sum the gradients over the processes, clip them, and take one step.

        Args:
            step: 0-based number of the step.
            processes: Those that have a part of the gradient.

        Returns:
            Norm of the gradient before clipping, and whether the step was taken: one with a
            gradient that is not finite is left out.
        """
        values = list(self.masters.values())
        for value in values:
            # A parameter that took no part on this process may have on another.
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        grads = [value.grad for value in values if value.grad is not None]
        processes.sum_(grads)
        norm = torch.nn.utils.get_total_norm(grads)
        length = float(norm)
        taken = math.isfinite(length)
        if taken:
            if self.config.clip:
                torch.nn.utils.clip_grads_with_norm_(values, self.config.clip, norm)
            rate = learning_rate(step, self._num_steps, self.config)
            for group in self._adam.param_groups:
                group["lr"] = rate * group["factor"]
            self._adam.step()
            self._copy_out(step)
        self._adam.zero_grad(set_to_none=True)
        return length, taken

    def _copy_out(self, step: int) -> None:
        """Round the masters into the network and move the average."""
        names = [n for n, p in self._params.items() if self.masters[n] is not p]
        if names:
            torch._foreach_copy_(
                [self._params[n].data for n in names], [self.masters[n] for n in names]
            )
        if self.average:
            decay = min(self.config.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(
                list(self.average.values()),
                [value.detach() for value in self.masters.values()],
                1 - decay,
            )

    def final_weights(self) -> Mapping[str, Tensor]:
        """Return the weights to export, by parameter name: the average, or the last ones."""
        return self.average or {n: value.detach() for n, value in self.masters.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {
            "masters": {name: value.detach() for name, value in self.masters.items()},
            "average": self.average,
            "adam": self._adam.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            TrainingError: If it is of a network with other parameters.
        """
        if _shapes(state["masters"]) != _shapes(self.masters):
            raise TrainingError("the saved state is of a network with other parameters")
        for name, value in state["masters"].items():
            self.masters[name].copy_(value)
            self._params[name].copy_(value)
        for name, value in state["average"].items():
            self.average[name].copy_(value)
        self._adam.load_state_dict(state["adam"])


def _shapes(values: Mapping[str, Tensor]) -> list[tuple[str, Sequence[int]]]:
    return sorted((name, tuple(value.shape)) for name, value in values.items())
