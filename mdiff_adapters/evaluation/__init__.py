"""Evaluation: metrics with their sources, folders of truth, curves. Loads no torch."""

from mdiff_adapters.evaluation.metrics import (
    SIMILARITIES,
    character_error,
    edit_similarity,
    formula_match,
    page_iou,
    teds,
    teds_structure,
    word_error,
    word_recall,
)

__all__ = [
    "SIMILARITIES",
    "character_error",
    "edit_similarity",
    "formula_match",
    "page_iou",
    "teds",
    "teds_structure",
    "word_error",
    "word_recall",
]
