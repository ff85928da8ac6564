"""Formulas: delimiters (D1), validity (D2), spacing (D3), numbers (D5), and money in markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.errors import ConfigError
from mdiff_adapters.formulas import (
    check_latex,
    escape_dollars,
    strip_delimiters,
    tidy_spacing,
    wrap_formula,
)

ANSWERS = [
    "x^2",
    " x^2\n",
    r"\[x^2\]",
    "\\[\nx^2\n\\]",
    "$$x^2$$",
    "$x^2$",
    r"\(x^2\)",
    "```latex\nx^2\n```",
    "```\n$$x^2$$\n```",
    r"\begin{equation}x^2\end{equation}",
    "\\begin{equation*}\nx^2\n\\end{equation*}",
    r"\[ \begin{equation} x^2 \end{equation} \]",
    # cut by the token limit: half of a pair
    r"\[ x^2",
    "$$x^2",
    r"x^2 \]",
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_outer_delimiters_go_away_d1(answer: str) -> None:
    assert strip_delimiters(answer) == "x^2"
    assert wrap_formula(answer) == "\\[\nx^2\n\\]"
    assert wrap_formula(answer, "dollars") == "$$\nx^2\n$$"
    assert wrap_formula(answer, "none") == "x^2"


@pytest.mark.parametrize(
    "latex",
    [
        r"a \\]",
        r"\begin{matrix} a \\[2pt] b \end{matrix}",
        r"x = 1 \tag{3}",
        r"\text{if $x$ and $y$}",
        r"\(a\) and \(b\)",
        r"\$5 + \$6",
        r"\begin{aligned} a &= b \\ c &= d \end{aligned}",
        r"\left[ x \right]",
    ],
)
def test_what_is_no_outer_delimiter_stays(latex: str) -> None:
    assert strip_delimiters(latex) == latex
    assert strip_delimiters(wrap_formula(latex)) == latex


@pytest.mark.parametrize(
    ("answer", "latex"),
    [
        (r"\begin{equation}x\end{equation}\tag{1}", r"x \tag{1}"),
        (r"\begin{equation} x", "x"),
        (r"y \end {equation*}", "y"),
        (r"a \\begin{equation}", r"a \\begin{equation}"),
    ],
)
def test_equation_environments_go_away_wherever_they_stand(answer: str, latex: str) -> None:
    assert strip_delimiters(answer) == latex


@pytest.mark.parametrize(
    "answer",
    ["\\[a\\]\n\\[b\\]", r"\begin{equation}a\end{equation} \begin{equation}b\end{equation}"],
)
def test_two_formulas_in_one_answer_are_wrapped_once(answer: str) -> None:
    wrapped = wrap_formula(answer)
    assert "equation" not in wrapped
    assert wrapped.count("\\[") == wrapped.count("\\]") == 1
    assert "a" in wrapped
    assert "b" in wrapped


pieces = st.sampled_from(
    ["\\", "[", "]", "(", ")", "$", "$$", "x", " ", "\n", "```", "```latex\n", "\\[", "\\]", "\\(",
     "\\)", r"\begin{equation}", r"\end{equation}", "{", "}", "\\tag{1}", "\\\\"]
)  # fmt: skip


@given(st.lists(pieces, max_size=14).map("".join) | st.text(max_size=12),
       st.sampled_from(["brackets", "dollars", "none"]))  # fmt: skip
@settings(max_examples=80)
def test_stripping_and_wrapping_are_idempotent(text: str, delimiters: str) -> None:
    bare = strip_delimiters(text)
    assert strip_delimiters(bare) == bare
    wrapped = wrap_formula(text, delimiters)  # type: ignore[arg-type]
    assert strip_delimiters(wrapped) == bare
    assert wrap_formula(strip_delimiters(wrapped), delimiters) == wrapped  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("latex", "tidy"),
    [
        (
            r"f n ( Q , K ) = \text {s o f t} ( \frac { Q K ^ { T } } { \sqrt { d _ { k } } } ) V",
            r"fn(Q, K) = \text{s o f t} (\frac{QK^{T}}{\sqrt{d_{k}}}) V",
        ),
        (r"\operatorname {s o f t m a x} (x)", r"\operatorname{softmax} (x)"),
        (r"\operatorname* {a r g m a x} _ {x}", r"\operatorname*{argmax}_{x}"),
        (r"1 6 \pi G + 0 . 5", r"16 \pi G + 0.5"),
        (r"\hspace {1 c m} x", r"\hspace{1cm} x"),
        (r"\begin {array} {c c} a & b \end {array}", r"\begin{array}{cc} a & b \end{array}"),
        (r"\{ a \} , \tag { 1 }", r"\{ a \}, \tag{ 1 }"),
    ],
)
def test_blanks_without_meaning_go_away_d3(latex: str, tidy: str) -> None:
    assert tidy_spacing(latex) == tidy


@pytest.mark.parametrize(
    "latex",
    [
        "",
        "x = 1",
        r"\alpha x",
        r"\frac 1 2",
        "x_i y",
        r"a \ b",
        r"a \\ [b]",  # without the blank, [b] would be a distance
        r"[a \\ ]",  # nor is there a delimiter now
        r"\mathrm{for all}",
        r"\text{a _ {b} c} + \tag*{1 2}",
        r"\text{if $x _ 1$ and {so} on} = 3",
        r"\text{cut a b",
        "a b % a b\nc d",
        r"\(a b\) and $c d$",
        r"\begin{tabular}{c} a b \end{tabular}",
    ],
)
def test_blanks_that_count_stay_d3(latex: str) -> None:
    assert tidy_spacing(latex) == latex


def tex_tokens(latex: str) -> list[str]:
    """Return what TeX sees of a formula; a blank is seen only where it keeps `[` from `\\\\`."""
    return re.findall(r"\\[A-Za-z]+|\\\\\s+(?=[\[*])|\\[\s\S]|\S", latex)


@given(
    st.lists(
        st.sampled_from(
            [" ", " ", " ", "\n", "\\", r"\\", r"\ ", r"\frac", r"\tag", r"\text", "{", "}",
             "[", "]", "(", ")",
             "_", "^", ",", ".", "*", "=", "a", "b", "cd", "1", "23", r"\,", "'"]
        ),
        max_size=16,
    ).map("".join)
)  # fmt: skip
@settings(max_examples=200)
def test_tidy_formulas_are_the_same_to_tex(latex: str) -> None:
    tidy = tidy_spacing(latex)
    assert tex_tokens(tidy) == tex_tokens(latex)
    assert tidy_spacing(tidy) == tidy


@pytest.mark.parametrize(
    "latex",
    [
        "",
        r"\{a\}",
        r"\frac{a}{b} % a } in a comment",
        r"\left( x \right)",
        r"\left\{ x \right.",
        r"x_{1}^{2}",
        "x _ {1} ^ {2}",
        r"{x_1}_2",
        r"\begin{array}{cc} a_{1} & a_{2} \\ b_1 & b_2 \end{array}",
        r"\leftarrow \rightarrow",
        r"f'_1 + \sum_{i=1}^{n} x_i^2 \tag{4}",
        r"\left( \frac{a}{b} \right)_{1}",
    ],
)
def test_valid_formulas(latex: str) -> None:
    assert check_latex(latex) is None


@pytest.mark.parametrize(
    ("latex", "reason"),
    [
        (r"\frac{a}{b", "{ is not closed"),
        ("a}", "} without {"),
        (r"\left( x", r"\left is not closed"),
        (r"x \right)", "without its opening"),
        ("x_{1}_{2}", "double subscript"),
        ("x^1^2", "double superscript"),
        (r"\begin{aligned} a", r"\begin{aligned} is not closed"),
        (r"\begin{a} x \end{b}", "without its opening"),
        (r"\left( {a \right) }", "{ is not closed"),
        (r"{\left( a }", r"} inside \left"),
        ("x_", "ends inside"),
        ("x_^2", "without its script"),
    ],
)
def test_invalid_formulas_say_why_d2(latex: str, reason: str) -> None:
    found = check_latex(latex)
    assert found is not None
    assert reason in found


@given(st.lists(pieces, max_size=20).map("".join))
@settings(max_examples=80)
def test_any_text_can_be_checked(text: str) -> None:
    reason = check_latex(text)
    assert reason is None or reason


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("$5 and $6", r"\$5 and \$6"),
        (r"already \$5", r"already \$5"),
        (r"\(x = \$3\) costs $3", r"\(x = \$3\) costs \$3"),
        (r"\( a \) $ \( b \)", r"\( a \) \$ \( b \)"),
        ("0022-1694/$ - see", r"0022-1694/\$ - see"),
    ],
)
def test_money_is_escaped_in_markdown(text: str, markdown: str) -> None:
    assert escape_dollars(text) == markdown
    assert escape_dollars(markdown) == markdown


def test_unknown_delimiters_are_refused() -> None:
    with pytest.raises(ConfigError, match="brackets"):
        wrap_formula("x", "bracket")  # type: ignore[arg-type]
