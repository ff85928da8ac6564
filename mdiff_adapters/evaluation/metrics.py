"""Metrics of documents, each with its source; ``metric(x, x) == 1`` for every similarity.

Similarities are in [0, 1] and symmetric: :func:`edit_similarity`, :func:`teds`,
:func:`teds_structure`, :func:`formula_match`, :func:`page_iou`. Error rates count from 0 and can
exceed 1: :func:`character_error`, :func:`word_error`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mdiff_adapters.errors import EngineUnavailableError
from mdiff_adapters.evaluation.latex import formula_match, latex_tokens
from mdiff_adapters.layout import parse_layout
from mdiff_adapters.tables import Table, parse_table_answer
from mdiff_core.config import Task
from mdiff_core.training.metrics import (
    character_error,
    edit_distance,
    edit_similarity,
    normalize_spaces,
)

__all__ = [
    "SIMILARITIES",
    "character_error",
    "edit_distance",
    "edit_similarity",
    "formula_match",
    "latex_tokens",
    "normalize_spaces",
    "page_iou",
    "teds",
    "teds_structure",
    "word_error",
    "word_recall",
]


def word_error(pairs: Iterable[tuple[str, str]]) -> float:
    """Return words wrong / words: the edit distance in words, over all (answer, truth) pairs.

    Without any true word it is 0 where nothing was answered, else 1.
    """
    from rapidfuzz.distance import Levenshtein

    wrong = total = 0
    for answer, truth in pairs:
        words = truth.split()
        wrong += Levenshtein.distance(answer.split(), words)
        total += len(words)
    return wrong / total if total else float(wrong > 0)


_WORD = re.compile(r"\w+", re.UNICODE)


def word_recall(answer: str, truth: str) -> float:
    """Return the share of the truth's words that the answer has, each as often as it has it.

    Case and punctuation do not count, nor does order: it measures reading, not layout.
    """
    wanted = Counter(_WORD.findall(truth.lower()))
    found = Counter(_WORD.findall(answer.lower()))
    total = sum(wanted.values())
    return sum((wanted & found).values()) / total if total else 1.0


# --- tables ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """A node of a table's tree: the table, a row, or a cell."""

    tag: str
    spans: tuple[int, int] = (1, 1)
    text: str = ""
    children: list[_Node] = field(default_factory=list)


def teds(a: str | Table, b: str | Table) -> float:
    """Return the tree-edit-distance similarity of two tables, with their texts.

    1 - distance / nodes of the larger tree. A node inserted or deleted costs 1, as does a cell with
    other spans; a cell with another text costs the normalised edit distance of the texts.

    Source: TEDS, arXiv 1911.10683. The tree is table > rows > cells: header cells count as cells,
    for neither OTSL nor the reference marks them reliably.

    Args:
        a: A table, or an answer in OTSL or HTML.
        b: The other one.

    Returns:
        Similarity in [0, 1]. An answer that is no table is like another only by equal text.
    """
    return _teds(a, b, with_text=True)


def teds_structure(a: str | Table, b: str | Table) -> float:
    """Return :func:`teds` of the structure alone (TEDS-S): texts do not count."""
    return _teds(a, b, with_text=False)


def _teds(a: str | Table, b: str | Table, *, with_text: bool) -> float:
    first, second = _table(a), _table(b)
    if first is None or second is None:
        return float(first is second and normalize_spaces(str(a)) == normalize_spaces(str(b)))
    if first == second:
        return 1.0
    try:
        from apted import APTED, Config
    except ImportError as error:
        raise EngineUnavailableError(
            "TEDS needs the apted package", hint='pip install "mdiff-adapters[eval]"'
        ) from error

    class Costs(Config):  # type: ignore[misc]  # the package has no types
        def children(self, node: _Node) -> list[_Node]:
            return node.children

        def rename(self, node1: _Node, node2: _Node) -> float:
            if node1.tag != node2.tag or node1.spans != node2.spans:
                return 1.0
            return 1.0 - edit_similarity(node1.text, node2.text) if with_text else 0.0

    trees = [_tree(first), _tree(second)]
    sizes = [1 + len(tree.children) + sum(len(row.children) for row in tree.children)
             for tree in trees]  # fmt: skip
    distance = float(APTED(trees[0], trees[1], Costs()).compute_edit_distance())
    return max(0.0, 1.0 - distance / max(sizes))


def _table(value: str | Table) -> Table | None:
    return value if isinstance(value, Table) else parse_table_answer(value).table


def _tree(table: Table) -> _Node:
    rows = [_Node("tr") for _ in range(table.num_rows)]
    for cell in table.cells:
        node = _Node("td", (cell.row_span, cell.col_span), normalize_spaces(cell.text))
        rows[cell.row].children.append(node)
    return _Node("table", children=rows)


# --- layout ---------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]


def page_iou(a: str | Sequence[Box], b: str | Sequence[Box]) -> float:
    """Return how far two layouts cover the same parts of the page, equally often.

    The sum over the page of min(c_a, c_b) divided by the sum of max(c_a, c_b), c the number of
    boxes over a point. One large box and the smaller ones it is made of are alike: layouts are
    compared by what they cover, not box by box.

    Source: PageIoU of MinerU2.5 (arXiv 2509.22186), which MinerU-Diffusion uses as the consistency
    of layouts; there the sums run over the pixels of a page image, here exactly over areas, and
    over the whole page.

    Args:
        a: A layout answer, or boxes x0, y0, x1, y1 in any unit.
        b: The other one, in the same unit.

    Returns:
        Similarity in [0, 1]; 1 for two empty layouts.
    """
    first, second = _boxes(a), _boxes(b)
    xs = sorted({x for box in (*first, *second) for x in (box[0], box[2])})
    ys = sorted({y for box in (*first, *second) for y in (box[1], box[3])})
    counts = []
    for boxes in (first, second):
        grid = np.zeros((max(0, len(ys) - 1), max(0, len(xs) - 1)))
        for x0, y0, x1, y1 in boxes:
            grid[ys.index(y0) : ys.index(y1), xs.index(x0) : xs.index(x1)] += 1
        counts.append(grid)
    area = np.outer(np.diff(ys), np.diff(xs)) if len(xs) > 1 and len(ys) > 1 else np.zeros((0, 0))
    union = float((np.maximum(*counts) * area).sum())
    if union == 0:
        return float(len(first) == len(second))
    return float((np.minimum(*counts) * area).sum()) / union


def _boxes(value: str | Sequence[Box]) -> list[Box]:
    if not isinstance(value, str):
        return [(x0, y0, x1, y1) for x0, y0, x1, y1 in value]
    found = [record.bbox for record in parse_layout(value).records]
    return [(box.x0, box.y0, box.x1, box.y1) for box in found]


SIMILARITIES: Mapping[Task, Callable[[Any, Any], float]] = {
    "text": edit_similarity,
    "table": teds,
    "formula": formula_match,
    "layout": page_iou,
}
"""The similarity of two answers to each task, as the curriculum uses it."""
