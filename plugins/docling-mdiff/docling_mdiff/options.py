"""Options of the three engines and the two pipelines: plain JSON, described, nothing opaque.

docling keys its pipelines by the JSON of their options, selects an engine by the exact options
class, and prints the descriptions in ``docling options``. That is why an engine is a string here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal

from docling.datamodel.pipeline_options import (
    BaseLayoutOptions,
    BaseTableStructureOptions,
    OcrOptions,
    PaginatedPipelineOptions,
    ThreadedPdfPipelineOptions,
)
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from docling_mdiff.config import env_default
from mdiff_adapters.engines.spec import mask_keys

__all__ = [
    "EngineOptions",
    "MDiffLayoutOptions",
    "MDiffOcrOptions",
    "MDiffPdfPipelineOptions",
    "MDiffTableOptions",
    "MDiffVlmPipelineOptions",
]

HeaderRows = Literal["none", "first", "auto"]

_SEGMENTER = (
    "How regions are found: 'model' (the checkpoint's layout task), 'lines' (a text line detector, "
    "for checkpoints without one), 'auto' (what the checkpoint can). "
    "Environment: MDIFF_DOCLING_SEGMENTER."
)
_HEADER_ROWS = (
    "Which rows become column headers. The model marks none: 'first' takes the first row, 'auto' "
    "takes it where it has text in every column and reads unlike the rows below, 'none' takes "
    "only what the answer marks. Environment: MDIFF_DOCLING_HEADER_ROWS."
)
_SCALE = "Pages are rendered at 72 dpi times this factor."


def _from_env(name: str) -> Any:
    return partial(env_default, name)


class EngineOptions(BaseModel):
    """What every stage says about the engine that answers it.

    Stages with the same engine and engine options share one model in a process.
    """

    # Values from the environment are checked like any other.
    model_config = ConfigDict(validate_default=True)

    engine: str = Field(
        default_factory=_from_env("engine"),
        min_length=1,
        description=(
            "Engine as a spec string: 'tiny' (comes with mdiff-core), a checkpoint folder, "
            "'org/name' (a hub checkpoint), 'http(s)://...' (a server), 'replay:/folder'. "
            "A folder of that name under docling's artifacts_path is preferred to the hub. "
            "Environment: MDIFF_DOCLING_ENGINE."
        ),
        examples=["tiny", "http://localhost:30000/v1"],
    )
    engine_options: dict[str, JsonValue] = Field(
        default_factory=_from_env("engine_options"),
        description=(
            "Options of the engine, such as dtype, or model and timeout_s of a server; its key is "
            "better given as MDIFF_API_KEY, because options are written out as JSON. "
            "Environment: MDIFF_DOCLING_ENGINE_OPTIONS, a JSON object."
        ),
        examples=[{"dtype": "bf16"}],
    )
    threshold: float = Field(
        default_factory=_from_env("threshold"),
        ge=0.0,
        le=1.0,
        description=(
            "Confidence above which a token is confirmed: lower is faster and less exact. "
            "Environment: MDIFF_DOCLING_THRESHOLD."
        ),
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Limit of tokens an answer; empty takes the checkpoint's own.",
    )
    allow_remote: bool = Field(
        default_factory=_from_env("allow_remote"),
        description=(
            "Allow an http(s):// engine. Docling tells its OCR engines nothing about "
            "enable_remote_services, so they need this switch. "
            "Environment: MDIFF_DOCLING_ALLOW_REMOTE."
        ),
    )
    max_pixels: int = Field(
        default=16_000_000,
        ge=1_000_000,
        description="Pixels a rendered page may have; larger pages are rendered smaller.",
    )

    # Shown only: the JSON keeps a key, because docling tells its pipelines apart by it.
    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if name == "engine_options":
                value = mask_keys(value)
            yield name, value


class MDiffOcrOptions(EngineOptions, OcrOptions):
    """Options of the OCR engine ``mdiff_ocr``."""

    kind: ClassVar[Literal["mdiff_ocr"]] = "mdiff_ocr"

    # docling's command builds the options without arguments, so `lang` needs a default.
    lang: list[str] = Field(
        default=[],
        description=(
            "Accepted and ignored: the checkpoint reads the languages it was trained on without "
            "being told which."
        ),
    )
    read_pictures: bool = Field(
        default_factory=_from_env("read_pictures"),
        description="Read text inside of pictures too. Environment: MDIFF_DOCLING_READ_PICTURES.",
    )

    model_config = ConfigDict(extra="forbid")


class MDiffLayoutOptions(EngineOptions, BaseLayoutOptions):
    """Options of the layout engine ``mdiff_layout``."""

    kind: ClassVar[Literal["mdiff_layout"]] = "mdiff_layout"

    segmenter: str = Field(
        default_factory=_from_env("segmenter"), min_length=1, description=_SEGMENTER
    )
    scale: float = Field(default=3.0, gt=0.0, description=_SCALE)

    model_config = ConfigDict(extra="forbid")


class MDiffTableOptions(EngineOptions, BaseTableStructureOptions):
    """Options of the table engine ``mdiff_table``."""

    kind: ClassVar[Literal["mdiff_table"]] = "mdiff_table"

    header_rows: HeaderRows = Field(
        default_factory=_from_env("header_rows"), description=_HEADER_ROWS
    )
    scale: float = Field(default=3.0, gt=0.0, description=_SCALE)

    model_config = ConfigDict(extra="forbid")


class MDiffPdfPipelineOptions(ThreadedPdfPipelineOptions):
    """Options of :class:`~docling_mdiff.MDiffPdfPipeline`: docling's own with our engines set."""

    allow_external_plugins: bool = True
    ocr_options: OcrOptions = Field(default_factory=MDiffOcrOptions)
    layout_options: BaseLayoutOptions = Field(default_factory=MDiffLayoutOptions)
    table_structure_options: BaseTableStructureOptions = Field(default_factory=MDiffTableOptions)

    model_config = ConfigDict(extra="forbid")


class MDiffVlmPipelineOptions(EngineOptions, PaginatedPipelineOptions):
    """Options of :class:`~docling_mdiff.MDiffVlmPipeline`, which reads whole pages."""

    kind: ClassVar[Literal["mdiff_vlm"]] = "mdiff_vlm"

    allow_external_plugins: bool = True
    segmenter: str = Field(
        default_factory=_from_env("segmenter"), min_length=1, description=_SEGMENTER
    )
    header_rows: HeaderRows = Field(
        default_factory=_from_env("header_rows"), description=_HEADER_ROWS
    )
    scale: float = Field(default=3.0, gt=0.0, description=_SCALE)

    model_config = ConfigDict(extra="forbid")
