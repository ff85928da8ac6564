"""From a checkpoint's name to a folder: embedded, local, Hugging Face or ModelScope.

The network is touched only for a hub name. Loads no torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from mdiff_core.errors import CheckpointError

EMBEDDED = ("tiny",)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.jinja", "*.safetensors", "*.txt"]
_LOCAL_HINT = "download it elsewhere and give the folder, for example /models/MinerU-Diffusion"


def resolve_checkpoint(name: str | Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name: ``tiny`` (embedded), a folder, ``org/name`` (Hugging Face hub; its local cache is
            used when there is no network), or ``modelscope:org/name``.

    Returns:
        An existing folder.

    Raises:
        CheckpointError: If it is not there and cannot be fetched; says where a local folder goes.
    """
    text = str(name)
    if text in EMBEDDED:
        return Path(__file__).parent / "checkpoints" / text
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"checkpoint {text} is a file", hint="give the folder that holds it")
    if isinstance(name, str) and text.startswith("modelscope:"):
        return _from_modelscope(text.removeprefix("modelscope:"))
    if isinstance(name, str) and _HUB_NAME.fullmatch(text):
        return _from_hugging_face(text)
    raise CheckpointError(
        f"there is no checkpoint folder {text}",
        hint=f"known names: {', '.join(EMBEDDED)}; else a folder or a hub name org/name",
    )


def _from_hugging_face(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # the hub client has many error types; all mean "not to be had"
        raise CheckpointError(
            f"there is no local folder {name}, and the Hugging Face hub does not give {name} "
            f"({type(error).__name__}: {_first_line(error)})",
            hint=_LOCAL_HINT,
        ) from error


def _from_modelscope(name: str) -> Path:
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"modelscope:{name} needs the modelscope package",
            hint='pip install "mdiff-core[modelscope]"',
        ) from error
    try:
        return Path(snapshot_download(name))
    except Exception as error:  # as above
        raise CheckpointError(
            f"ModelScope does not give {name} ({type(error).__name__}: {_first_line(error)})",
            hint=_LOCAL_HINT,
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
