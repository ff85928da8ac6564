"""Formulas compared by their signs and where each stands, without rendering."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mdiff_core.training.metrics import normalize_spaces

__all__ = ["formula_match", "latex_tokens"]

_LATEX = re.compile(r"\\(?:[a-zA-Z]+\*?|.)|[{}^_&~]|[^\s\\]", re.DOTALL)
_DELIMITERS = re.compile(r"\A\s*(?:\\\[|\\\(|\$\$?)|(?:\\\]|\\\)|\$\$?)\s*\Z")
_TAG = re.compile(r"\\(?:tag|label)\*?\s*\{(?:[^{}]|\{[^{}]*\})*\}")
# Delimiters that are not drawn, and the room asked for after a line.
_NOTHING = re.compile(r"(\\(?:left|right))\s*\.|(\\\\)\s*\[[^\[\]]*\]")
_COLUMNS = re.compile(r"\\begin\s*\{(array|tabular)\}\s*\{[^{}]*\}")
# What changes size, style or spacing and no sign; its argument, if any, stays.
_SILENT = frozenset({
    "\\left", "\\right", "\\big", "\\Big", "\\bigg", "\\Bigg", "\\bigl", "\\bigr", "\\Bigl",
    "\\Bigr", "\\biggl", "\\biggr", "\\Biggl", "\\Biggr", "\\limits", "\\nolimits",
    "\\displaystyle", "\\textstyle", "\\scriptstyle", "\\,", "\\;", "\\:", "\\!", "\\quad",
    "\\qquad", "\\>", "~", "\\mathrm", "\\mathit", "\\mathbf", "\\mathsf", "\\mathtt",
    "\\mathnormal", "\\boldsymbol", "\\bm", "\\rm", "\\bf", "\\it", "\\text", "\\textrm",
    "\\textbf", "\\textit", "\\mbox", "\\operatorname", "\\operatorname*", "\\mathop",
    "\\mathbin", "\\mathrel", "\\mathord", "\\nonumber", "\\notag",
    "\\ ",
})  # fmt: skip
_MEASURES = ("\\hspace", "\\hspace*", "\\vspace", "\\vspace*")
MAX_DEPTH = 100
"""Deeper nesting, which only an answer that loops has, is read flat."""
_SAME = {r"\le": r"\leq", r"\ge": r"\geq", r"\ne": r"\neq", r"\to": r"\rightarrow",
         r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lvert": "|", r"\rvert": "|", r"\vert": "|",
         r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dots": r"\ldots",
         r"\thinspace": r"\,", r"\ast": "*", r"\colon": ":"}  # fmt: skip
_ACCENTS = frozenset({
    "\\hat", "\\bar", "\\tilde", "\\vec", "\\dot", "\\ddot", "\\acute", "\\grave", "\\breve",
    "\\check", "\\widehat", "\\widetilde", "\\overline", "\\underline", "\\overbrace",
    "\\underbrace", "\\overrightarrow", "\\mathbb", "\\mathcal", "\\mathscr", "\\mathfrak",
})  # fmt: skip
_ARGUMENTS = {r"\frac": ("over", "under"), r"\binom": ("over", "under"), r"\sqrt": ("root",),
              r"\overset": ("over", "base"), r"\underset": ("under", "base"),
              r"\stackrel": ("over", "base")}  # fmt: skip


def latex_tokens(latex: str) -> list[tuple[str, str]]:
    """Return the signs of a formula with where each stands.

    Args:
        latex: LaTeX, with or without delimiters.

    Returns:
        (sign, place) in the order of the source; the place is the path of ``sup``, ``sub``,
        ``over``, ``under``, ``root`` and accents that lead to it. Spacing, sizes, font styles,
        numbers of equations and braces without effect are left out.
    """
    text = _COLUMNS.sub(r"\\begin{\1}", _TAG.sub(" ", latex))
    text = _NOTHING.sub(r"\1\2 ", text)
    text = _DELIMITERS.sub("", _DELIMITERS.sub("", text))
    return _Reader(_LATEX.findall(text)).read_all()


class _Reader:
    """Walks over LaTeX tokens; whatever a model wrote, it ends: missing braces close at the end."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._out: list[tuple[str, str]] = []

    def read_all(self) -> list[tuple[str, str]]:
        while self._at < len(self._tokens):
            self._read_one("")
            # A closing brace without its partner says nothing.
            if self._at < len(self._tokens) and self._tokens[self._at] == "}":
                self._at += 1
        return self._out

    def _read_one(self, path: str) -> None:
        """Read a group or a sign that stands at ``path``."""
        if self._at >= len(self._tokens) or self._tokens[self._at] == "}":
            return
        token = self._tokens[self._at]
        self._at += 1
        token = _SAME.get(token, token)
        if self._depth >= MAX_DEPTH:
            self._out.append((token, path))
            return
        self._depth += 1
        self._read_token(token, path)
        self._depth -= 1

    def _read_token(self, token: str, path: str) -> None:
        if token == "{":
            while self._at < len(self._tokens) and self._tokens[self._at] != "}":
                self._read_one(path)
            self._at += 1
        elif token in ("^", "_"):
            self._read_one(f"{path}/{'sup' if token == '^' else 'sub'}")
        elif token == "'":
            self._out.append((r"\prime", f"{path}/sup"))
        elif token in _SILENT:
            return
        elif token in _MEASURES:
            self._read_name()
        elif token in (r"\begin", r"\end"):
            self._out.append((token + self._read_name(), path))
        elif token in _ARGUMENTS:
            self._out.append((token, path))
            if token == r"\sqrt" and self._next_is("["):
                self._read_option(f"{path}/index")
            for place in _ARGUMENTS[token]:
                self._read_one(f"{path}/{place}")
        else:
            self._out.append((token, path))
            if token in _ACCENTS:
                self._read_one(f"{path}/{token[1:]}")

    def _next_is(self, token: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at] == token

    def _read_option(self, path: str) -> None:
        self._at += 1
        while self._at < len(self._tokens) and self._tokens[self._at] not in ("]", "}"):
            self._read_one(path)
        self._at += 1

    def _read_name(self) -> str:
        if not self._next_is("{"):
            return ""
        self._at += 1
        letters = []
        while self._at < len(self._tokens) and self._tokens[self._at] != "}":
            letters.append(self._tokens[self._at])
            self._at += 1
        self._at += 1
        return "{" + "".join(letters) + "}"


def formula_match(a: str, b: str) -> float:
    """Return the F1 of the signs that two formulas share, in place and order.

    CDM-style: the score of CDM (arXiv 2409.03643) is the F1 of rendered characters matched by sign
    and position. Here nothing is rendered: a sign's position is its place in the structure
    (numerator, exponent, ...) and its order, and signs are matched by a longest common
    subsequence. It agrees with CDM on equal formulas and on signs that are wrong, missing or extra;
    it is stricter where different LaTeX looks the same and the normalisation does not know it.

    Args:
        a: LaTeX.
        b: The other one.

    Returns:
        Similarity in [0, 1].
    """
    from rapidfuzz.distance import LCSseq

    first, second = latex_tokens(a), latex_tokens(b)
    if not first and not second:
        return float(normalize_spaces(a) == normalize_spaces(b) or not (a.strip() and b.strip()))
    return 2 * float(LCSseq.similarity(first, second)) / (len(first) + len(second))
