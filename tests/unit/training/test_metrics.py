"""Metrics of documents: known values, and what must hold of every one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.evaluation import (
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
from mdiff_adapters.evaluation.latex import latex_tokens
from mdiff_adapters.tables import Cell, Table

ALL = [edit_similarity, teds, teds_structure, formula_match, page_iou]
# Pieces of what models write, so that the drawn texts are tables, formulas and layouts too.
PIECES = st.sampled_from([
    "<fcel>", "<ecel>", "<lcel>", "<ucel>", "<nl>", "<table><tr><td>", "</td></tr>", "a", "17 ",
    "\\frac", "{", "}", "^", "_", "\\left(", "\\begin{array}{cc}", "&", "\\\\", "\\sqrt[", "]", "'",
    "<|box_start|>", "078 095 180 161", "<|box_end|>", "<|ref_start|>text<|ref_end|>", "\n", "é",
])  # fmt: skip
ANSWERS = st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.__name__)
@given(a=ANSWERS, b=ANSWERS)
@settings(max_examples=30)
def test_similarities_are_one_on_equal_answers_symmetric_and_bounded(
    metric: Callable[[str, str], float], a: str, b: str
) -> None:
    assert metric(a, a) == 1
    value = metric(a, b)
    assert 0 <= value <= 1
    assert metric(b, a) == pytest.approx(value)


def test_recorded_answers_equal_themselves(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "recorded").glob("*.json"))[:6]:
        page = json.loads(path.read_text(encoding="utf-8"))
        assert page_iou(page["layout_output"], page["layout_output"]) == 1
        for region in page["regions"]:
            if region["type"] == "equation" and region["content"]:
                assert formula_match(region["content"], region["content"]) == 1
                assert formula_match(region["content"], region["content"] + " + 1") < 1


def test_the_curriculum_has_a_similarity_for_each_task() -> None:
    assert {
        "text": edit_similarity, "table": teds, "formula": formula_match, "layout": page_iou,
    } == SIMILARITIES  # fmt: skip


def test_error_rates() -> None:
    pairs = [("kitten ", "sitting"), ("a  b", "a b")]
    assert character_error(pairs) == pytest.approx(3 / 10)
    assert word_error([("the bat sat", "the cat sat on")]) == pytest.approx(2 / 4)
    assert character_error([]) == 0 and word_error([]) == 0
    assert character_error([("x", "")]) == 1 and word_error([("x", "")]) == 1
    assert edit_similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)


def test_word_recall_counts_each_word_as_often_as_it_stands() -> None:
    assert word_recall("The cat, the mat.", "the cat the hat") == pytest.approx(3 / 4)
    assert word_recall("the", "the the") == pytest.approx(1 / 2)
    assert word_recall("anything", "") == 1


def grid(*rows: str) -> Table:
    return Table.from_rows([list(row) for row in rows])


def test_teds_of_known_tables() -> None:
    plain = Table.from_rows([["abcd", "x"], ["1", "2"]])
    # Seven nodes: the table, two rows, four cells.
    other_text = Table.from_rows([["abce", "x"], ["1", "2"]])
    assert teds(plain, other_text) == pytest.approx(1 - 0.25 / 7)
    assert teds_structure(plain, other_text) == 1
    more = Table.from_rows([["abcd", "x"], ["1", "2"], ["3", "4"]])
    assert teds(plain, more) == teds_structure(plain, more) == pytest.approx(1 - 3 / 10)
    joined = Table(
        num_rows=2,
        num_cols=2,
        cells=(
            Cell(row=0, col=0, text="abcd", col_span=2),
            Cell(row=1, col=0, text="1"),
            Cell(row=1, col=1, text="2"),
        ),
    )
    # One cell is gone, and the other has other spans.
    assert teds(plain, joined) == pytest.approx(1 - 2 / 7)


def test_teds_reads_otsl_and_html_alike() -> None:
    otsl = "<fcel>a<lcel><nl><fcel>1<fcel>2<nl>"
    html = '<table><tr><th colspan="2">a</th></tr><tr><td>1</td><td>2</td></tr></table>'
    assert teds(otsl, html) == 1
    assert teds(otsl, "no table at all") == 0
    assert teds("no table", "no  table ") == 1
    assert teds(grid("ab"), otsl) < 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\[ x^2 \tag{1} \]", r"x ^ { 2 }"),
        (r"$\frac{a}{b}$", r"\dfrac a b"),
        (r"\left( x \right)", r"( x )"),
        (r"f'(x)", r"f^{\prime}(x)"),
        (r"\mathrm{sin}\, x", r"\text{sin} x"),
        (r"a \le b \ne c", r"a\leq b\neq c"),
        (r"\begin{array}{ll} a & b \end{array}", r"\begin{array}{cc} a & b \end{array}"),
        (r"\hspace{1em} x", "x"),
        (r"\lvert x \rvert", "|x|"),
        (r"\left. x \right|", "x |"),
        (r"x \\[2pt] y", r"x \\ y"),
        (r"x \tag{\text{a}}", "x"),
    ],
)
def test_formulas_that_look_the_same_match(a: str, b: str) -> None:
    assert formula_match(a, b) == 1


def test_formulas_that_look_different_do_not_match() -> None:
    assert formula_match("x^2", "x_2") == pytest.approx(0.5)
    assert formula_match(r"\frac{a}{b}", r"\frac{b}{a}") == pytest.approx(1 / 3)
    assert formula_match("abc", "abd") == pytest.approx(2 / 3)
    assert formula_match("x", "") == 0
    assert formula_match("", " ") == 1


def test_places_of_signs() -> None:
    assert latex_tokens(r"\sqrt[3]{x_{i}^2}") == [
        (r"\sqrt", ""),
        ("3", "/index"),
        ("x", "/root"),
        ("i", "/root/sub"),
        ("2", "/root/sup"),
    ]
    assert latex_tokens(r"\hat{x}") == [(r"\hat", ""), ("x", "/hat")]


def test_an_answer_that_loops_is_read_to_its_end() -> None:
    looping = "x^{" * 2000
    assert formula_match(looping, looping) == 1
    assert len(latex_tokens("^" * 5000 + "{" * 5000 + "x")) > 0


def test_page_iou_compares_what_is_covered() -> None:
    whole = [(0.0, 0.0, 10.0, 10.0)]
    halves = [(0.0, 0.0, 10.0, 5.0), (0.0, 5.0, 10.0, 10.0)]
    assert page_iou(whole, halves) == 1
    assert page_iou(whole, halves[:1]) == 0.5
    assert page_iou(whole, [(5.0, 0.0, 15.0, 10.0)]) == pytest.approx(50 / 150)
    # The same region found twice is not the same layout.
    assert page_iou(whole, whole * 2) == 0.5
    assert page_iou(whole, []) == 0
    assert page_iou([], []) == 1
    record = "<|box_start|>{}<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"
    left = record.format("000 000 500 1000")
    assert page_iou(left, record.format("000 000 1000 1000")) == pytest.approx(0.5)
