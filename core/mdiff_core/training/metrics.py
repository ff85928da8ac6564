"""Text metrics that training needs; those of documents are in ``mdiff_adapters.evaluation``."""

from __future__ import annotations

from collections.abc import Iterable

from rapidfuzz.distance import Levenshtein

__all__ = ["character_error", "edit_distance", "edit_similarity", "normalize_spaces"]


def normalize_spaces(text: str) -> str:
    """Return the text with runs of white space as one space, none at the ends."""
    return " ".join(text.split())


def edit_distance(a: str, b: str) -> int:
    """Return the Levenshtein distance of two texts in characters."""
    return int(Levenshtein.distance(a, b))


def edit_similarity(a: str, b: str) -> float:
    """Return 1 - distance / longer length; 1 for equal texts, also for two empty ones.

    Source: the normalised edit distance of OmniDocBench (arXiv 2412.07626), turned around.
    """
    longest = max(len(a), len(b))
    return 1.0 - edit_distance(a, b) / longest if longest else 1.0


def character_error(pairs: Iterable[tuple[str, str]]) -> float:
    """Return characters wrong / characters, over all (answer, truth) pairs; spaces normalised.

    Can exceed 1 where answers are longer than truths. Without any true character it is 0 where
    nothing was answered, else 1.
    """
    wrong = total = 0
    for answer, truth in pairs:
        answer, truth = normalize_spaces(answer), normalize_spaces(truth)
        wrong += edit_distance(answer, truth)
        total += len(truth)
    return wrong / total if total else float(wrong > 0)
