"""The engine of a stage: opened from its options, asked without ever raising.

All stages with the same spec share one engine in the process, whatever pipeline or document they
belong to. Its worker batches their requests together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docling.datamodel.accelerator_options import AcceleratorDevice, AcceleratorOptions
from docling.datamodel.base_models import DoclingComponentType, ErrorItem, FailureCategory
from docling.datamodel.document import ConversionResult
from docling.exceptions import OperationNotAllowed
from docling.utils.accelerator_utils import decide_device

from docling_mdiff.options import EngineOptions
from mdiff_adapters.engines import (
    Answer,
    Capabilities,
    DecodeConfig,
    Engine,
    EngineSpec,
    Request,
    open_engine,
)
from mdiff_adapters.engines.answers import failed
from mdiff_adapters.errors import EngineError, EngineTimeoutError
from mdiff_core.closing import ClosedOnExit

logger = logging.getLogger(__name__)

_DEVICES = [AcceleratorDevice.CPU, AcceleratorDevice.CUDA, AcceleratorDevice.MPS]


def open_stage_engine(
    options: EngineOptions,
    accelerator_options: AcceleratorOptions,
    artifacts_path: Path | str | None = None,
    *,
    remote_services: bool = False,
) -> Engine:
    """Return the engine that a stage's options name.

    Args:
        options: Options of the stage.
        accelerator_options: docling's device; ``auto`` leaves the choice to the engine.
        artifacts_path: docling's folder of models. A checkpoint ``org/name`` is looked for there
            as ``org--name``, as docling stores its own.
        remote_services: docling's ``enable_remote_services``, where it tells.

    Returns:
        The shared engine.

    Raises:
        OperationNotAllowed: If the engine is a server and neither docling nor the options allow it.
        AcceleratorDeviceNotAvailableError: If a device was asked for that is not there.
        MDiffError: If the engine cannot be built.
    """
    name = options.engine
    if artifacts_path is not None:
        stored = Path(artifacts_path) / name.replace("/", "--")
        name = str(stored) if "/" in name and stored.is_dir() else name
    spec = EngineSpec.parse(name)
    if spec.kind == "http" and not (remote_services or options.allow_remote):
        raise OperationNotAllowed(
            f"engine {name!r} is a server, and remote services are not allowed: set "
            "allow_remote=True in the engine's options, or MDIFF_DOCLING_ALLOW_REMOTE=1"
        )
    settings: dict[str, Any] = dict(options.engine_options)
    # A server has its own device; what an engine of a plugin takes is not known here.
    takes_device = "device" in (spec.known_options or ())
    if takes_device and accelerator_options.device != AcceleratorDevice.AUTO.value:
        settings.setdefault("device", decide_device(accelerator_options.device, _DEVICES))
    return open_engine(spec, **settings)


def decode_config(options: EngineOptions) -> DecodeConfig:
    """Return the decoding settings of a stage."""
    return DecodeConfig(threshold=options.threshold, max_tokens=options.max_tokens)


def deadline_s(conv_res: ConversionResult) -> float | None:
    """Return the monotonic time at which docling gives up on the document; None without a limit."""
    deadline: float | None = getattr(conv_res, "_conversion_deadline", None)
    return deadline


def ask(
    engine: Engine, requests: Iterable[Request], *, deadline: float | None = None
) -> dict[str, Answer]:
    """Return an answer to every request, by id; what failed is an answer with an error.

    Args:
        engine: The engine.
        requests: Requests with different ids. The large ones are asked first, so that the last
            ones in flight are short.
        deadline: Monotonic time after which nothing more is waited for.
    """
    ordered = sorted(requests, key=lambda r: r.image.width * r.image.height, reverse=True)
    answers: dict[str, Answer] = {}
    problem: Exception = EngineError("the engine gave no answer", adapter=engine.name)
    if ordered and not _is_over(deadline):
        stream: Any = None
        try:
            stream = engine.answer(ordered)
            for answer in stream:
                answers[answer.id] = answer
                if len(answers) < len(ordered) and _is_over(deadline):
                    break
        except Exception as error:
            logger.warning("engine %s failed: %s", engine.name, error, exc_info=True)
            problem = error
        finally:
            # An abandoned call is not decoded any further.
            if hasattr(stream, "close"):
                stream.close()
    if _is_over(deadline):
        problem = EngineTimeoutError("the document's time is over", adapter=engine.name)
    for request in ordered:
        if request.id not in answers:
            answers[request.id] = failed(request.id, problem)
    return answers


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


@dataclass(frozen=True, slots=True)
class GivenLayout:
    """A layout that is known already, as the layout task would have answered it.

    Attributes:
        text: The records.
        orders: The position that each record's region has in the layout of the whole page.
    """

    text: str
    orders: tuple[int, ...]

    def place(self, request: Request) -> Request:
        """Return the request with its region's place on the page, not in this layout."""
        order = self.orders[request.origin["order"]]
        region = f"p{request.origin['page']}r{order}"
        return replace(request, origin={**request.origin, "order": order, "region": region})


class StageEngine(ClosedOnExit):
    """An engine as a segmenter sees it from inside a docling stage: it never raises.

    Args:
        engine: The engine that answers.
        deadline: Monotonic time after which nothing more is waited for.
        outline: Answer only layout requests; the others stay empty, because a later stage reads
            the regions, or nobody does.
        layouts: By 0-based page index, layouts in place of the engine's own answers.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        deadline: float | None = None,
        outline: bool = False,
        layouts: Mapping[int, GivenLayout] | None = None,
    ) -> None:
        self._engine = engine
        self._deadline = deadline
        self._outline = outline
        self._layouts = layouts

    @property
    def name(self) -> str:
        """The engine's name."""
        return self._engine.name

    @property
    def capabilities(self) -> Capabilities:
        """What the engine knows, and layout where the answers to that are given."""
        known = self._engine.capabilities
        if self._layouts is None or "layout" in known.tasks:
            return known
        return replace(known, tasks=("layout", *known.tasks))

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request."""
        left = []
        for request in requests:
            given = self._layouts.get(request.origin["page"]) if self._layouts else None
            if request.task != "layout" and self._outline:
                yield Answer(id=request.id, finish_reason="empty")
            elif given is None:
                left.append(request)
            elif request.task == "layout":
                yield Answer(id=request.id, text=given.text)
            else:
                left.append(given.place(request))
        yield from ask(self._engine, left, deadline=self._deadline).values()

    def close(self) -> None:
        """Do nothing: the engine belongs to everybody."""


def record_error(
    conv_res: ConversionResult,
    stage: str,
    page_no: int,
    message: str,
    *,
    timeout: bool = False,
) -> None:
    """Add an error to a conversion's result, which makes it a partial success.

    Args:
        conv_res: The conversion.
        stage: Name of the stage.
        page_no: 1-based page.
        message: What failed, and where on the page.
        timeout: Whether it failed for lack of time.
    """
    category = FailureCategory.TIMEOUT if timeout else FailureCategory.INFERENCE_FAILURE
    conv_res.errors.append(
        ErrorItem(
            component_type=DoclingComponentType.MODEL,
            module_name=stage,
            error_message=message,
            category=category,
            page_no=page_no,
        )
    )
