"""Several processes on one run: each computes a part of every step's gradient, all sum them up.

Not ``DistributedDataParallel``: the gradients of a step are accumulated in fp32 master weights over
the micro-batches first, so they are summed once a step, in fp32, whatever type the network
computes in; and the loss is divided by the counts of the whole step, so one process and many give
the same update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from mdiff_core.engine import choose_device
from mdiff_core.errors import ConfigError
from mdiff_core.training.config import LaunchSettings

BUCKET_ELEMENTS = 2**25
"""Values summed in one call: 128 MiB in fp32."""
MAX_WAIT = timedelta(hours=2)
"""How long the processes wait for one of them. Process 0 validates and saves alone meanwhile, which
takes longer than the ten minutes after which NCCL gives a run up by itself."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Its number; 0 writes the files.
        count: How many there are.
        device: Where it computes.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place, in few calls."""
        if self.count == 1:
            return
        for bucket in _buckets(tensors):
            # NCCL sums on the device alone; sums of losses are kept on the CPU.
            flat = torch.cat([tensor.flatten() for tensor in bucket]).to(self.device)
            dist.all_reduce(flat)
            at = 0
            for tensor in bucket:
                tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
                at += tensor.numel()

    @torch.no_grad()
    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the values of process 0."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        if self.count == 1:
            return flag
        seen = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(seen)
        return bool(seen > 0)

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            dist.barrier()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


@contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started; alone where it did not.

    Args:
        device: As in the settings. With ``auto`` or ``cuda`` each process takes the CUDA device of
            its local rank.

    Yields:
        This process among the others.

    Raises:
        ConfigError: If the device is not available.
    """
    launch = LaunchSettings.from_env()
    target = choose_device(device)
    if launch.num_processes == 1:
        yield Processes(0, 1, target)
        return
    if target.type == "cuda":
        if launch.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {launch.local_rank} has no GPU of its own: there are "
                f"{torch.cuda.device_count()}",
                hint="start as many processes as there are GPUs",
            )
        target = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(target)
    dist.init_process_group("nccl" if target.type == "cuda" else "gloo", timeout=MAX_WAIT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), target)
    finally:
        dist.destroy_process_group()
