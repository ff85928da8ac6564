"""The engine: owns model, cache and scheduler; many callers share one continuous batch.

There is no background thread. Whoever waits for an answer runs the next forward for everybody, so
requests of several threads meet in the same batch, and an abandoned stream holds nobody up.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image
from typing_extensions import Self

from mdiff_core.attention import choose_varlen
from mdiff_core.cache import KVCache
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.closing import ClosedOnExit
from mdiff_core.config import TASKS, Capabilities, check_count, suggest
from mdiff_core.errors import (
    CapacityError,
    ConfigError,
    DecodeError,
    EngineError,
    ImageError,
)
from mdiff_core.graphs import GraphedRunner
from mdiff_core.imaging import Patches, load_image, to_patches, to_rgb
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.packing import bf16_is_fast_on_cpu, can_pack, pack_linears
from mdiff_core.prompts import Codec
from mdiff_core.runner import Outcome, Runner
from mdiff_core.scheduler import PagePool, Scheduler, Sequence, Span
from mdiff_core.types import DecodeRequest, DecodeResult
from mdiff_core.unmasking import get_rule

logger = logging.getLogger(__name__)

DTYPES = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
}
PAGE_SIZE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What runs: reported by ``mdiff-adapters doctor`` and benchmarks.

    Attributes:
        checkpoint: Folder of the checkpoint.
        device: torch device.
        dtype: Type of weights and cache.
        attention: Kernel of the image tower: ``sdpa``, ``varlen`` or ``flash``.
        cuda_graphs: Whether the steady state of decoding is replayed as graphs.
        packed_linears: Linears with prepacked CPU weights.
        num_parameters: Weights, shared ones counted once.
        cache_tokens: Tokens the cache holds.
        cache_bytes: Its size in bytes.
        num_threads: CPU threads torch uses.
    """

    checkpoint: str
    device: str
    dtype: str
    attention: str
    cuda_graphs: bool
    packed_linears: int
    num_parameters: int
    cache_tokens: int
    cache_bytes: int
    num_threads: int


@dataclass(slots=True, eq=False)
class _Ticket:
    """One request on its way: where its result goes, and its sequence once it has one."""

    index: int
    inbox: deque[tuple[int, DecodeResult]]
    sequence: Sequence | None = None


@dataclass(slots=True)
class _Prepared:
    patches: Patches
    prompt: Any
    max_tokens: int


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was loaded.

    Attributes:
        num_forwards: Forwards of the decoder.
        num_requests: Requests finished, failed ones included.
        num_tokens: Answer tokens.
        num_rows: Tokens that went through the decoder.
    """

    num_forwards: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_rows: int = 0


class Engine(ClosedOnExit):
    """Decodes images with one checkpoint. Thread-safe; a context manager.

    Use :meth:`load`; the constructor takes finished parts.

    Args:
        model: The network.
        codec: Its tokenizer and prompts.
        cache_bytes: Budget of the key/value cache in bytes.
        max_batch_tokens: Tokens of one forward, at least a request's ``block_length``.
        max_sequences: Requests decoded at the same time.
        max_batch_patches: Image patches of one image-tower call.
        attention: Kernel of the image tower: ``auto``, ``sdpa``, ``varlen`` or ``flash``.
        cuda_graphs: Replay the steady state of decoding as CUDA graphs; no effect on a CPU.
        name: What to call the checkpoint in reports.

    Raises:
        ConfigError: If a budget or limit is below 1, the cache holds no page, or the attention is
            unknown.
    """

    def __init__(
        self,
        model: MinerUDiffusion,
        codec: Codec,
        *,
        cache_bytes: int | None = None,
        max_batch_tokens: int | None = None,
        max_sequences: int | None = None,
        max_batch_patches: int | None = None,
        attention: str = "auto",
        cuda_graphs: bool = True,
        name: str = "",
    ) -> None:
        for setting, value in (
            ("cache_bytes", cache_bytes),
            ("max_batch_tokens", max_batch_tokens),
            ("max_sequences", max_sequences),
            ("max_batch_patches", max_batch_patches),
        ):
            if value is not None:
                check_count("Engine", setting, value)
        config, device = model.config, model.device
        on_cpu = device.type == "cpu"
        self._model, self._codec, self._name = model, codec, name
        self.config: ModelConfig = config
        per_token = KVCache.bytes_per_token(config.text, model.dtype)
        budget = _default_cache_bytes(device) if cache_bytes is None else cache_bytes
        num_pages = (budget - per_token) // (per_token * PAGE_SIZE_TOKENS)
        if num_pages < 1:
            raise ConfigError(
                f"cache_bytes = {budget} holds no page of {PAGE_SIZE_TOKENS} tokens",
                hint=f"one page takes {per_token * PAGE_SIZE_TOKENS} bytes",
            )
        # One slot more than the scheduler knows: padding rows of graphs write there.
        num_slots = num_pages * PAGE_SIZE_TOKENS
        self._cache = KVCache(config.text, num_slots + 1, device=device, dtype=model.dtype)
        self._scheduler = Scheduler(
            PagePool(num_pages, PAGE_SIZE_TOKENS),
            max_batch_tokens=max_batch_tokens or (4096 if on_cpu else 16384),
            max_sequences=max_sequences or (64 if on_cpu else 512),
        )
        self._max_batch_patches = max_batch_patches or (8192 if on_cpu else 32768)
        attention_name, model.vision.varlen = choose_varlen(device, model.dtype, attention)
        num_parameters = sum(p.numel() for p in model.parameters())
        packed = 0
        if on_cpu and can_pack(model.dtype):
            packed = pack_linears(model)
        runner = Runner(model, self._cache)
        graphed = cuda_graphs and device.type == "cuda"
        self._runner: Runner | GraphedRunner = (
            GraphedRunner(runner, trash_slot=num_slots, capture=True) if graphed else runner
        )
        self.info = EngineInfo(
            checkpoint=name,
            device=str(device),
            dtype=str(model.dtype).removeprefix("torch."),
            attention=attention_name,
            packed_linears=packed,
            num_parameters=num_parameters,
            cuda_graphs=graphed,
            cache_tokens=num_slots,
            cache_bytes=self._cache.num_bytes,
            num_threads=torch.get_num_threads(),
        )
        self.stats = EngineStats()
        self._tickets: dict[int, _Ticket] = {}
        self._abandoned: deque[int] = deque()
        self._next_key = 0
        self._lock = Lock()
        self._closed = False
        workers = min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="mdiff-image")

    @classmethod
    def load(
        cls,
        checkpoint: str | Path = "tiny",
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        **options: Any,
    ) -> Engine:
        """Load a checkpoint.

        Args:
            checkpoint: ``tiny`` (embedded), a folder, ``org/name`` or ``modelscope:org/name``.
            device: ``auto`` (CUDA if there is one, else CPU), or a torch device.
            dtype: ``auto`` (bf16 where the device multiplies it natively, else fp32), ``bf16``,
                ``fp16``, ``fp32`` or a torch dtype.
            **options: Further arguments of :class:`Engine`.

        Returns:
            The engine.

        Raises:
            CheckpointError: If the checkpoint is not there or does not fit.
            ConfigError: If the device or dtype is unknown or not available.
        """
        target = choose_device(device)
        kind = choose_dtype(dtype, target)
        folder = resolve_checkpoint(checkpoint)
        config = ModelConfig.from_folder(folder)
        codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
        model = load_model(folder, config, device=target, dtype=kind)
        return cls(model, codec, name=str(checkpoint), **options)

    @property
    def capabilities(self) -> Capabilities:
        """What the checkpoint can be asked."""
        return self.config.capabilities

    def generate(self, requests: Iterable[DecodeRequest]) -> list[DecodeResult]:
        """Decode requests and return their results in the order of the requests."""
        results = dict(self.stream(requests))
        return [results[index] for index in range(len(results))]

    def stream(self, requests: Iterable[DecodeRequest]) -> Iterator[tuple[int, DecodeResult]]:
        """Decode requests as a continuous batch.

        Args:
            requests: Taken lazily, a bounded number ahead of the answers. A request that cannot be
                decoded (a broken image, too large for the cache) gives a result with its error.

        Yields:
            ``(index of the request, result)`` as soon as each is ready.

        Raises:
            EngineError: If the engine is closed.
            ConfigError: If a request names an unknown rule or task, before anything runs for it.
        """
        source = enumerate(requests)
        pending: deque[tuple[_Ticket, DecodeRequest, Future[_Prepared]]] = deque()
        inbox: deque[tuple[int, DecodeResult]] = deque()
        mine: set[int] = set()
        lookahead = 2 * self._scheduler.max_sequences
        exhausted = False
        try:
            while True:
                while not exhausted and len(pending) + len(mine) + len(inbox) < lookahead:
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    index, request = item
                    _check_request(request)
                    self._check_open()
                    ticket = _Ticket(index, inbox)
                    try:
                        image = _own_image(request.image)
                    except ImageError as error:
                        self._finish(ticket, DecodeResult(finish_reason="error", error=error))
                        continue
                    try:
                        future = self._pool.submit(self._prepare, request, image)
                    except RuntimeError:  # the pool has been shut down in the meantime
                        self._check_open()
                        raise
                    pending.append((ticket, request, future))
                while inbox:
                    yield inbox.popleft()
                if exhausted and not pending and not mine:
                    return
                with self._lock:
                    self._check_open()
                    # Another caller may have finished ours while we waited for the lock.
                    if not inbox:
                        self._admit(pending, mine)
                    if not inbox:
                        self._step()
                    # Still under the lock: a ticket that is gone is answered, and not taken from us
                    # by close() or by somebody who is about to put its answer into our inbox.
                    mine = {key for key in mine if key in self._tickets}
        finally:
            for _, _, future in pending:
                future.cancel()
            # A garbage collector may get here in the middle of a forward of this very thread, so
            # the lock cannot be waited for: whoever holds it, or takes it next, drops them.
            self._abandoned.extend(mine)
            if self._lock.acquire(blocking=False):
                try:
                    self._drop_abandoned()
                finally:
                    self._lock.release()

    def close(self) -> None:
        """Release model and cache; waiting callers get an :class:`EngineError`.

        Calling it twice is fine.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._tickets.clear()
            self._pool.shutdown(wait=False, cancel_futures=True)
            del self._model, self._runner, self._cache
        if torch.cuda.is_available() and self.info.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed", hint="load a new one")

    def _prepare(self, request: DecodeRequest, image: Image.Image) -> _Prepared:
        vision, limits = self.config.vision, self.config.image
        try:
            patches = to_patches(
                image,
                patch_size=vision.patch_size,
                merge_size=vision.spatial_merge_size,
                min_pixels=limits.min_pixels,
                max_pixels=limits.max_pixels,
            )
        except Exception as error:
            raise _image_error(error) from error
        num_image_tokens = patches.rows * patches.cols // vision.spatial_merge_size**2
        return _Prepared(
            patches=patches,
            prompt=np.array(self._codec.prompt_ids(request.task, num_image_tokens), np.int64),
            max_tokens=request.config.max_tokens or self.capabilities.limit(request.task),
        )

    def _drop_abandoned(self) -> None:
        """Forget the requests of streams that nobody reads any more; the lock must be held."""
        while self._abandoned:
            ticket = self._tickets.pop(self._abandoned.popleft(), None)
            if ticket is not None and ticket.sequence is not None:
                self._scheduler.remove(ticket.sequence)

    def _admit(
        self,
        pending: deque[tuple[_Ticket, DecodeRequest, Future[_Prepared]]],
        mine: set[int],
    ) -> None:
        """Queue prepared requests in order; wait for one only if there is nothing else to do."""
        while pending and (pending[0][2].done() or self._scheduler.is_idle):
            ticket, request, future = pending.popleft()
            try:
                prepared = future.result()
                sequence = Sequence(
                    key=self._next_key,
                    prompt=prepared.prompt,
                    config=request.config,
                    max_tokens=prepared.max_tokens,
                    end_ids=self._codec.end_ids,
                    mask_id=self.config.mask_token_id,
                    features=prepared.patches,
                    generator=self._generator(request),
                )
                self._scheduler.add(sequence)
            except (ImageError, CapacityError) as error:
                self._finish(ticket, DecodeResult(finish_reason="error", error=error))
                continue
            ticket.sequence = sequence
            self._tickets[sequence.key] = ticket
            mine.add(sequence.key)
            self._next_key += 1

    def _generator(self, request: DecodeRequest) -> torch.Generator | None:
        if request.config.temperature == 0:
            return None
        return torch.Generator(self._model.device).manual_seed(request.config.seed or 0)

    def _step(self) -> None:
        """Run one forward for everybody and hand out what is finished."""
        self._drop_abandoned()
        spans = self._scheduler.plan()
        if spans:
            self._run(spans)

    def _run(self, spans: list[Span]) -> None:
        generators = [s.sequence.generator for s in spans if s.sequence.generator is not None]
        states = [generator.get_state() for generator in generators]
        try:
            new = [s.sequence for s in spans if isinstance(s.sequence.features, Patches)]
            self._runner.encode(new, self._max_batch_patches)
            outcomes = self._runner.run(spans)
        except Exception as error:  # noqa: BLE001 - one request must not cost the others
            is_full = isinstance(error, torch.OutOfMemoryError)
            reason = "out of memory" if is_full else type(error).__name__
            if is_full and torch.cuda.is_available():
                torch.cuda.empty_cache()
            if len(spans) == 1:
                self._fail(spans[0].sequence, DecodeError(f"{reason}: {error}"))
                return
            # Nothing has changed yet but what was drawn, so the same work can run in two halves.
            logger.warning("%s with %d requests; halving the batch", reason, len(spans))
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            half = len(spans) // 2
            self._run(spans[:half])
            self._run(spans[half:])
            return
        self.stats.num_forwards += 1
        self.stats.num_rows += sum(len(span.ids) for span in spans)
        self._scheduler.ran(spans)
        for outcome in outcomes:
            self._advance(outcome)

    def _advance(self, outcome: Outcome) -> None:
        sequence = outcome.span.sequence
        if np.isnan(outcome.confidence).any():
            self._fail(sequence, DecodeError("the network produced NaN", hint="try dtype='fp32'"))
            return
        if not sequence.confirm(outcome.tokens, outcome.confidence, outcome.chosen):
            return
        ids, confidences = sequence.answer, sequence.confidences
        result = DecodeResult(
            token_ids=ids,
            step_map=sequence.step_map,
            text=self._codec.decode(ids),
            finish_reason=sequence.finish_reason or "stop",
            confidence=sum(confidences) / len(confidences) if confidences else None,
            num_forwards=sequence.num_forwards,
            num_prompt_tokens=len(sequence.prompt),
        )
        self._scheduler.remove(sequence)
        self._finish(self._tickets.pop(sequence.key, None), result)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._scheduler.remove(sequence)
        result = DecodeResult(
            finish_reason="error",
            error=error,
            num_forwards=sequence.num_forwards,
            num_prompt_tokens=len(sequence.prompt),
        )
        self._finish(self._tickets.pop(sequence.key, None), result)

    def _finish(self, ticket: _Ticket | None, result: DecodeResult) -> None:
        self.stats.num_requests += 1
        self.stats.num_tokens += result.num_tokens
        if ticket is not None:
            ticket.inbox.append((ticket.index, result))


def choose_device(device: str | torch.device) -> torch.device:
    """Return the torch device of a wish; ``auto`` is CUDA if there is one, else the CPU.

    Raises:
        ConfigError: If it is unknown or not available.
    """
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r} is unknown", hint="auto, cpu, cuda, cuda:1, mps"
        ) from error
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} is not available", hint="torch sees no CUDA GPU")
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device {device!r} is not available", hint="torch sees no Metal GPU")
    return target


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of a wish; ``auto`` is bf16 where it is fast on ``device``, else fp32.

    Raises:
        ConfigError: If it is unknown.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            return torch.bfloat16 if native else torch.float16
        fast = device.type == "cpu" and bf16_is_fast_on_cpu()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown", hint=suggest(dtype, ["auto", *DTYPES]))
    return DTYPES[dtype]


def _own_image(image: Image.Image) -> Image.Image:
    """Return a decoded image whose pixels stay as they are while it waits.

    An image that is read from a file changes under its reader when it goes to the next page.

    Raises:
        ImageError: If it is not an image, has no pixels, or cannot be decoded.
    """
    load_image(image)
    if type(image) is Image.Image:
        return image
    try:
        rgb = to_rgb(image)
        return rgb.copy() if rgb is image else rgb
    except Exception as error:
        raise _image_error(error) from error


def _image_error(error: Exception) -> ImageError:
    if isinstance(error, ImageError):
        return error
    return ImageError(f"image cannot be prepared: {type(error).__name__}: {error}")


def _check_request(request: DecodeRequest) -> None:
    get_rule(request.config.rule)
    if request.task not in TASKS:
        raise ConfigError(f"there is no task {request.task!r}", hint=suggest(request.task, TASKS))


def _default_cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.6)
    return 2 * 2**30
