"""What is said to the checkpoints and what they say: prompts, end tokens, layout records.

Words only, so that whoever writes or reads them needs no tokenizer and no network.
"""

from __future__ import annotations

from collections.abc import Mapping

from mdiff_core.config import Task

SYSTEM_PROMPT = "You are a helpful assistant."
TASK_PROMPTS: Mapping[Task, str] = {
    "layout": "\nLayout Detection:",
    "text": "\nText Recognition:",
    "table": "\nTable Recognition:",
    "formula": "\nFormula Recognition:",
}
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""The end of an answer, and what fills its last block."""
LAYOUT_SIZE_PX = 1036
"""Side of the square that a page is resized to for its layout, whatever its shape."""
ROTATIONS: Mapping[int, str] = {0: "up", 90: "right", 180: "down", 270: "left"}
"""The word for the degrees counter-clockwise that make a region upright."""


def format_record(corners: str, label: str, angle: int) -> str:
    """Return one region in the words of a layout answer.

    Args:
        corners: x0, y0, x1, y1 in thousandths of the page, with blanks between.
        label: Region type, or the model's own word.
        angle: One of :data:`ROTATIONS`.
    """
    return (
        f"<|box_start|>{corners}<|box_end|><|ref_start|>{label}<|ref_end|>"
        f"<|rotate_{ROTATIONS[angle]}|>"
    )
