"""The training loop: steps, log, saved states, validation, export.

A step is a function of the saved state and its number alone: data and masks come from (seed, sample
index), dropout from (seed, sample index) too. A run that was killed and resumed is the run that was
not, bit for bit on the same machine.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mdiff_core.engine import choose_dtype
from mdiff_core.errors import TrainingError
from mdiff_core.training.batch import Batch
from mdiff_core.training.build import build_model, export_checkpoint, plain_model
from mdiff_core.training.config import TrainConfig
from mdiff_core.training.data.sample import generator
from mdiff_core.training.data.sources import build_stream
from mdiff_core.training.data.stream import SampleStream
from mdiff_core.training.distributed import Processes, join_processes
from mdiff_core.training.loading import MicroBatches, load_in_order, stop_on_signals
from mdiff_core.training.objective import losses
from mdiff_core.training.optim import MasterOptimizer, learning_rate
from mdiff_core.training.state import (
    LOG_NAME,
    Journal,
    differences,
    exact_settings,
    load_state,
    save_state,
    state_files,
)
from mdiff_core.training.validate import Validation, validate

FORMAT = 1
MAX_SKIPPED = 20
"""Steps in a row with a gradient that is not finite, after which a run gives up."""
_FIELDS = ("loss", "accuracy", "named", "guided")

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: Steps taken.
        finished: Whether all steps were taken; otherwise it can be resumed.
        checkpoint: Folder of the exported checkpoint; None in processes that do not write.
        validation: The last validation, if there was one in this process.
    """

    step: int
    finished: bool
    checkpoint: Path | None
    validation: Validation | None


class Trainer:
    """One run in one process.

    Args:
        config: Settings.
        processes: This process among those of the run.
        fresh: Start over, even where there is a state.
        progress: Called with each record of the log.
    """

    def __init__(
        self,
        config: TrainConfig,
        processes: Processes,
        *,
        fresh: bool = False,
        progress: Progress | None = None,
    ) -> None:
        run = config.run
        if run.threads:
            torch.set_num_threads(run.threads)
        self.config, self._processes = config, processes
        self._progress = progress or (lambda record: None)
        self._per_process = _split(config, processes)
        dtype = _compute_dtype(run.dtype, processes.device)
        self.model, self._codec = build_model(config, device=processes.device, dtype=dtype)
        shapes = self.model.config
        self._check_guide()
        self._data = MicroBatches(config, shapes)
        # What is wrong with it is known before the first step, not after hours of them.
        self._held_out = self._open_held_out()
        self.optimizer = MasterOptimizer(self.model, config.optim, run.steps)
        self.step, self._skipped = 0, 0
        # (sum, count) of each loss since the last line of the log; saved along. On the CPU: not
        # every device has fp64.
        self._sums = torch.zeros(len(_FIELDS), 2, dtype=torch.float64)
        self._states = run.out / "states"
        if not fresh:
            self._resume()
        elif processes.is_main:
            # States of the old run would count as newer than those of this one.
            for path in state_files(self._states):
                path.unlink()
        # What is not trained is the same everywhere: it was read or drawn from one seed.
        processes.broadcast_(list(self.optimizer.masters.values()))
        self._journal: Journal | None = None
        self._stop = False

    def run(self) -> Outcome:
        """Train until the last step, the time limit, or a signal to end.

        Returns:
            How it ended; the state is saved in any case.

        Raises:
            TrainingError: If the numbers are not finite any more.
        """
        run, main = self.config.run, self._processes.is_main
        if main:
            self._journal = Journal(run.out / LOG_NAME, self.step or None)
        started = time.monotonic()
        self._log({"event": "start", "step": self.step, **self._describe()})
        validation = None
        since, since_step = time.monotonic(), self.step
        try:
            with stop_on_signals(self._request_stop):
                batches = self.micro_batches()
                while self.step < run.steps:
                    record = self._take_step(batches)
                    now = time.monotonic()
                    if self.step % run.log_every == 0 or self.step == run.steps:
                        self._log_step(record, (now - since) / (self.step - since_step))
                        since, since_step = now, self.step
                    every = self.config.validation.every
                    if every and self.step % every == 0 and self.step < run.steps:
                        validation = self._validate()
                        since += time.monotonic() - now
                    late = bool(run.max_minutes) and now - started > 60 * run.max_minutes
                    leaving = self._processes.any(self._stop or late)
                    if self.step % run.save_every == 0 or self.step == run.steps or leaving:
                        self._save()
                    if leaving:
                        break
            finished = self.step >= run.steps
            if finished:
                validation = self._validate() or validation
            folder = self.export(run.out / "checkpoint") if main else None
            minutes = (time.monotonic() - started) / 60
            self._log({"event": "end", "step": self.step, "finished": finished,
                       "minutes": round(minutes, 2)})  # fmt: skip
            self._processes.wait()
            return Outcome(self.step, finished, folder, validation)
        finally:
            if self._journal is not None:
                self._journal.close()

    def export(self, folder: Path) -> Path:
        """Write the averaged weights as a checkpoint in the released format."""
        plain = plain_model(self.model, self.optimizer.final_weights())
        dtype = choose_dtype(self.config.run.export_dtype, torch.device("cpu"))
        export_checkpoint(plain, folder, self.config.model, dtype)
        return folder

    def gradient_step(self, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """Add up the gradient of the next step's micro-batches of this process.

        Args:
            batches: Micro-batches of this process, in order.

        Returns:
            (sum, count) of each loss over all processes, fp64 on the CPU.
        """
        device, objective = self._processes.device, self.config.objective
        name_weight, guide_weight = (
            _fade(pair, self.step, self.config.run.steps)
            for pair in (objective.image_answer, objective.guide)
        )
        heads = objective.guide_heads if guide_weight else ()
        parts = [next(batches) for _ in range(self._per_process)]
        counts = torch.tensor(
            [sum(b.num_masked for b in parts), sum(b.num_named for b in parts),
             sum(b.num_guided for b in parts) * max(1, len(heads))],
            dtype=torch.float64,
        )  # fmt: skip
        self._processes.sum_([counts])
        masked, named, guided = counts.clamp(min=1).tolist()
        found_sums = []
        for number, part in enumerate(parts):
            torch.manual_seed(self._dropout_seed(number))
            found = losses(
                self.model, part.to(device), name_images=bool(name_weight), guide_heads=heads
            )
            total = (
                found.masked / masked
                + name_weight * found.named / named
                + guide_weight * found.guided / guided
            )
            total.backward()
            self.optimizer.accumulate()
            values = (found.masked, found.correct, found.named, found.guided)
            found_sums.append(torch.stack([value.detach().float() for value in values]))
        sums = torch.zeros(4, dtype=torch.float64)
        for found_sum in torch.stack(found_sums).cpu():
            sums += found_sum
        self._processes.sum_([sums])
        both = torch.stack([sums, counts[[0, 0, 1, 2]]], dim=1)
        if not name_weight:
            both[2] = 0
        return dict(zip(_FIELDS, both, strict=True))

    def _take_step(self, batches: Iterator[Batch]) -> dict[str, float]:
        sums = self.gradient_step(batches)
        norm, taken = self.optimizer.step(self.step, self._processes)
        self._skipped = 0 if taken else self._skipped + 1
        if self._skipped >= MAX_SKIPPED:
            raise TrainingError(
                f"{MAX_SKIPPED} gradients in a row were not finite, up to step {self.step}",
                hint='lower optim.lr, or set run.dtype = "fp32"',
            )
        if taken:
            self._sums += torch.stack([sums[name] for name in _FIELDS])
        rate = learning_rate(self.step, self.config.run.steps, self.config.optim)
        self.step += 1
        return {"lr": rate, "grad_norm": norm, "skipped": float(not taken)}

    def _log_step(self, record: Mapping[str, float], seconds: float) -> None:
        means = (self._sums[:, 0] / self._sums[:, 1].clamp(min=1)).tolist()
        shown = dict(zip(_FIELDS, means, strict=True))
        samples = self.config.run.batch_size
        self._log({
            "event": "step", "step": self.step, "samples": self.step * samples,
            **{k: v for k, v in shown.items() if k in ("loss", "accuracy") or v},
            **record, "seconds": seconds, "samples_per_s": samples / max(seconds, 1e-9),
            "minutes_left": (self.config.run.steps - self.step) * seconds / 60,
        })  # fmt: skip
        self._sums.zero_()

    def _log(self, record: Mapping[str, Any]) -> None:
        if self._journal is not None:
            self._journal.write(record)
            self._progress(record)

    def _describe(self) -> dict[str, Any]:
        sources = {
            source.name: getattr(source, "fingerprint", "") for source in self._data.stream.sources
        }
        return {
            "config": self.config.to_dict(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained": sum(v.numel() for v in self.optimizer.masters.values()),
            "data": sources,
            "processes": self._processes.count,
            "device": str(self._processes.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def micro_batches(self, step: int | None = None) -> Iterator[Batch]:
        """Return the micro-batches of this process, from a step (the current one) to the last."""
        run, processes = self.config.run, self._processes
        first = self.step if step is None else step
        per_step = run.batch_size // run.micro_batch
        # Process r takes every count-th micro-batch of a step.
        order = [
            step * per_step + number
            for step in range(first, run.steps)
            for number in range(processes.rank, per_step, processes.count)
        ]
        return load_in_order(self._data, order, run.workers)

    def _dropout_seed(self, number: int) -> int:
        run, processes = self.config.run, self._processes
        per_step = run.batch_size // run.micro_batch
        index = self.step * per_step + processes.rank + number * processes.count
        return int(generator(run.seed, index, 4).integers(2**62))

    def _open_held_out(self) -> SampleStream | None:
        """Return the stream of the validation samples, on the process that reads them."""
        settings = self.config.validation
        if not settings.samples or not self._processes.is_main:
            return None
        # Drawn samples of another seed are others than those of the training.
        seed = self.config.run.seed + 10**9
        if settings.data:
            return build_stream(settings.data, self.model.config.capabilities, seed=seed)
        weights = [source.weight for source in self.config.data]
        return SampleStream(self._data.stream.sources, weights, seed=seed)

    def _validate(self) -> Validation | None:
        """Read the validation samples on the main process, the others wait."""
        settings = self.config.validation
        if not settings.samples:
            return None
        found = None
        if self._held_out is not None:
            samples = [self._held_out[i] for i in range(settings.samples)]
            found = validate(
                plain_model(self.model, self.optimizer.final_weights()),
                self._codec,
                samples,
                threshold=settings.threshold,
                block_length=self.config.objective.block_length,
            )
            self._log({"event": "validation", "step": self.step, **found.to_dict()})
        self._processes.wait()
        return found

    def _save(self) -> None:
        run = self.config.run
        if self._processes.is_main:
            state = {
                "format": FORMAT,
                "step": self.step,
                "settings": exact_settings(self.config),
                "sums": self._sums.cpu(),
                **self.optimizer.state_dict(),
            }
            save_state(self._states, self.step, state, run.keep)
        self._processes.wait()

    def _resume(self) -> None:
        state = load_state(self._states)
        if state is None:
            return
        if state["format"] != FORMAT:
            raise TrainingError(
                f"the state in {self._states} is of format {state['format']}, this is {FORMAT}",
                hint="finish the run with the version that began it, or start over with --fresh",
            )
        differing = differences(json.loads(state["settings"]), self.config)
        if differing:
            raise TrainingError(
                f"the run in {self.config.run.out} was begun with other settings: "
                + "; ".join(differing),
                hint="restore them, choose another run.out, or start over with --fresh",
            )
        self.optimizer.load_state_dict(state)
        self.step = int(state["step"])
        self._sums.copy_(state["sums"])

    def _check_guide(self) -> None:
        text = self.model.config.text
        for layer, head in self.config.objective.guide_heads:
            if any(self.config.objective.guide) and not (
                layer < text.num_hidden_layers and head < text.num_attention_heads
            ):
                raise TrainingError(
                    f"objective.guide_heads names head {head} of layer {layer}, the network has "
                    f"{text.num_attention_heads} heads in {text.num_hidden_layers} layers"
                )

    def _request_stop(self) -> None:
        self._stop = True


def train(config: TrainConfig, *, fresh: bool = False, progress: Progress | None = None) -> Outcome:
    """Run or resume a training run, alone or as one of the processes of ``torchrun``.

    Args:
        config: Settings.
        fresh: Start over, even where there is a state.
        progress: Called with each record of the log, in the process that writes it.

    Returns:
        How it ended.

    Raises:
        ConfigError: If the settings cannot be used.
        CheckpointError: If the base cannot be used.
        TrainingError: If the run cannot be resumed or cannot go on.
    """
    with join_processes(config.run.device) as processes:
        return Trainer(config, processes, fresh=fresh, progress=progress).run()


def _compute_dtype(wish: str, device: torch.device) -> torch.dtype:
    """Return the type a network is trained in; ``auto`` as :class:`RunConfig` says."""
    if wish == "auto" and device.type == "cuda":
        # Older GPUs emulate bf16, slower than fp32; fp16, which decoding takes there, has too
        # small a range for gradients.
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return choose_dtype(wish, device)


def _split(config: TrainConfig, processes: Processes) -> int:
    """Return the micro-batches of a step that each process takes."""
    total = config.run.batch_size // config.run.micro_batch
    if total % processes.count:
        raise TrainingError(
            f"{total} micro-batches of a step cannot be shared by {processes.count} processes",
            hint="make run.batch_size a multiple of run.micro_batch times the processes",
        )
    return total // processes.count


def _fade(pair: tuple[float, float], step: int, num_steps: int) -> float:
    """Return the weight of an auxiliary loss: linear from its first to its last value."""
    first, last = pair
    return first + (last - first) * step / max(1, num_steps - 1)
