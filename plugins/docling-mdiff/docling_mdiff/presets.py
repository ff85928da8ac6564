"""docling's own VLM pipeline on a server that runs MinerU-Diffusion: a preset and its builder."""

from __future__ import annotations

from typing import Any

from docling.datamodel.pipeline_options import VlmConvertOptions
from docling.datamodel.pipeline_options_vlm_model import ResponseFormat
from docling.datamodel.stage_model_specs import ApiModelConfig, StageModelPreset, VlmModelSpec
from docling.datamodel.vlm_engine_options import ApiVlmEngineOptions
from docling.models.inference_engines.vlm import VlmEngineType

from mdiff_core.protocol import END_TOKENS, TASK_PROMPTS

PRESET_ID = "mineru_diffusion"
"""``VlmConvertOptions.from_preset(...)``, and ``docling --pipeline vlm --vlm-model ...``."""

MODEL = "opendatalab/MinerU-Diffusion-V1-0320-2.5B"

_MAX_TOKENS = 2048
# Layout records are special tokens: a server that skips them answers nothing readable.
_PARAMS: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": _MAX_TOKENS,
    "skip_special_tokens": False,
}


def register_preset() -> None:
    """Make :data:`PRESET_ID` known to docling; once, further calls do nothing."""
    if PRESET_ID in VlmConvertOptions.list_preset_ids():
        return
    VlmConvertOptions.register_preset(
        StageModelPreset(
            preset_id=PRESET_ID,
            name="MinerU-Diffusion",
            description="MinerU-Diffusion on an OpenAI-compatible server (2.5B, block diffusion)",
            model_spec=VlmModelSpec(
                name="MinerU-Diffusion-V1-0320-2.5B",
                default_repo_id=MODEL,
                prompt=TASK_PROMPTS["layout"],
                response_format=ResponseFormat.MINERU2,
                supported_engines={VlmEngineType.API},
                max_new_tokens=_MAX_TOKENS,
                stop_strings=list(END_TOKENS),
                api_overrides={VlmEngineType.API: ApiModelConfig(params=dict(_PARAMS))},
            ),
            scale=2.0,
            default_engine_type=VlmEngineType.API,
        )
    )


def server_vlm_options(
    url: str, *, concurrency: int = 16, timeout_s: float = 300.0, **params: Any
) -> VlmConvertOptions:
    """Return options for docling's ``VlmPipeline`` on a server.

    docling lets the parameters of a caller replace those of the preset altogether, and so loses
    ``skip_special_tokens``; here they are added to it.

    Args:
        url: Address of the chat endpoint, ``http://host:port/v1/chat/completions``.
        concurrency: Requests in flight at a time.
        timeout_s: Limit of one request in seconds.
        **params: Fields of the request body, for example ``model`` or ``max_tokens``.

    Returns:
        The options, for ``VlmPipelineOptions(vlm_options=…, enable_remote_services=True)``.
    """
    register_preset()
    return VlmConvertOptions.from_preset(
        PRESET_ID,
        engine_options=ApiVlmEngineOptions(
            engine_type=VlmEngineType.API,
            url=url,
            concurrency=concurrency,
            timeout=timeout_s,
            params={**_PARAMS, **params},
        ),
    )
