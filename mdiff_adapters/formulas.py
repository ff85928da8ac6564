r"""Formulas: bare LaTeX inside, delimiters only where a renderer asks for them.

Models write ``\[ x \]``, ``$$x$$``, a code fence or an ``equation`` environment. One outer layer
is not enough to strip: what is stored must never hold a display delimiter, so that wrapping it
once gives a formula that is wrapped once.
"""

from __future__ import annotations

import re
from typing import Literal

from mdiff_core.config import suggest
from mdiff_core.errors import ConfigError

__all__ = [
    "Delimiters",
    "check_latex",
    "escape_dollars",
    "strip_delimiters",
    "tidy_spacing",
    "wrap_formula",
]

Delimiters = Literal["brackets", "dollars", "none"]

_WRAPPERS: dict[str, tuple[str, str]] = {
    "brackets": ("\\[\n", "\n\\]"),
    "dollars": ("$$\n", "\n$$"),
    "none": ("", ""),
}
# An escape takes its character with it, so that the bracket of a line break `\\]` is no delimiter.
_DISPLAY = re.compile(r"\\(?:begin|end)\s*\{(?:equation\*?|displaymath|math)\}|\\([\s\S])|\$\$")
_INLINE = re.compile(r"\\([\s\S])|\$")
_FENCE_OPEN = re.compile(r"\A```[ \t]*(?:latex|tex|math|katex)?[ \t]*(?:\n|\Z)", re.IGNORECASE)
_FENCE_INLINE = re.compile(r"\A```(?:latex|tex|math|katex)\s+", re.IGNORECASE)
_FENCE_CLOSE = re.compile(r"\s*```\Z")
_INLINE_SPAN = re.compile(r"\\\(.*?\\\)", re.DOTALL)
_TOKEN = re.compile(
    r"\\(?P<environment>begin|end)\s*\{(?P<name>[^{}]*)\}|\\(?P<fence>left|right)(?![A-Za-z])"
    r"|\\(?P<command>[A-Za-z]+|[\s\S])|(?P<comment>%[^\n]*)|(?P<other>\S)"
)

_PIECE = re.compile(r"[ \t\r\n]+|\\[A-Za-z]+\*?|\\[\s\S]|[A-Za-z0-9]+|[\s\S]")
_BLANK = frozenset(" \t\r\n")
# Their argument is text, where a blank is a blank.
_TEXT_COMMAND = re.compile(
    r"\\(?:text[a-z]*|[fhm]box|(?:short)?intertext|tag\*?|label|(?:eq|h)?ref)"
)
# What holds text, or ends at the end of a line, is not told apart from formulas here.
_NOT_ONLY_MATH = frozenset({"%", "$", "\\(", "\\)", "\\verb", "tabular"})


def strip_delimiters(text: str) -> str:
    r"""Return the bare LaTeX of a formula answer.

    Outer ``\[ \]``, ``$$``, ``$``, ``\( \)``, code fences and ``equation`` environments go away,
    half of a pair too (the answer may be cut). Display delimiters and ``equation`` inside become a
    space, since no formula can hold them. ``\tag`` and all other content stay. Stripping twice
    changes nothing.

    Args:
        text: The answer, special tokens removed.

    Returns:
        LaTeX without delimiters, without white space around it.
    """
    bare = text.strip()
    while True:
        shorter = _strip_once(bare).strip()
        if shorter == bare:
            return bare
        bare = shorter


def _strip_once(text: str) -> str:
    if opened := _FENCE_OPEN.match(text) or _FENCE_INLINE.match(text):
        text = text[opened.end() :]
    text = _FENCE_CLOSE.sub("", text).strip()
    text = _DISPLAY.sub(lambda m: " " if m.group(1) in (None, "[", "]") else m.group(), text)
    marks = [(m.start(), m.group()) for m in _INLINE.finditer(text) if m.group() in _INLINE_MARKS]
    at_start = bool(marks) and marks[0][0] == 0
    at_end = bool(marks) and marks[-1][0] + len(marks[-1][1]) == len(text)
    names = [name for _, name in marks]
    if len(marks) == 1:
        # A single mark is half of a pair; inside the text it would be nobody's business.
        opens = names[0] in ("\\(", "$") and at_start
        closes = names[0] in ("\\)", "$") and at_end
        if opens:
            return text[len(names[0]) :]
        return text[: -len(names[0])] if closes else text
    if names in (["\\(", "\\)"], ["$", "$"]) and at_start and at_end:
        return text[len(names[0]) : -len(names[1])]
    return text


_INLINE_MARKS = frozenset({"\\(", "\\)", "$"})


def wrap_formula(latex: str, delimiters: Delimiters = "brackets") -> str:
    r"""Return a display formula with the delimiters its renderer wants, exactly once.

    Args:
        latex: LaTeX, bare or not.
        delimiters: ``brackets`` for ``\[ \]``, ``dollars`` for ``$$``, ``none`` for bare LaTeX.

    Returns:
        The formula; empty for an empty one.

    Raises:
        ConfigError: If ``delimiters`` is unknown.
    """
    if delimiters not in _WRAPPERS:
        raise ConfigError(
            f"formula_delimiters = {delimiters!r} is unknown",
            hint=suggest(str(delimiters), list(_WRAPPERS)),
        )
    before, after = _WRAPPERS[delimiters]
    bare = strip_delimiters(latex)
    return f"{before}{bare}{after}" if bare else ""


def tidy_spacing(latex: str) -> str:
    r"""Take out the blanks that mean nothing: ``\mathrm {m a x} _ {1 0}`` is ``\mathrm{max}_{10}``.

    Models write a blank after each token. TeX skips it; readers of the source, search, and
    converters to MathML do not (two digits become two numbers). Blanks around operators and
    between words stay, and so do all of ``\text{…}`` and the like. What TeX sets is the same. A
    formula with comments or with formulas inside text is returned as it is.

    Args:
        latex: Bare LaTeX.

    Returns:
        The same formula. Doing it twice changes nothing.
    """
    pieces = _pieces(latex)
    if not _NOT_ONLY_MATH.isdisjoint(pieces):
        return latex
    return "".join(
        piece for i, piece in enumerate(pieces) if piece[0] not in _BLANK or _counts(pieces, i)
    )


def _pieces(latex: str) -> list[str]:
    """Cut LaTeX into commands, words, signs and blanks; a group of text is one piece."""
    pieces: list[str] = []
    start = 0
    while match := _PIECE.match(latex, start):
        end = match.end()
        before = next((piece for piece in reversed(pieces[-2:]) if piece[0] not in _BLANK), "")
        if match.group() == "{" and _TEXT_COMMAND.fullmatch(before):
            end = _end_of_group(latex, start)
        pieces.append(latex[start:end])
        start = end
    return pieces


def _end_of_group(latex: str, start: int) -> int:
    depth = 0
    for match in _PIECE.finditer(latex, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    return len(latex)


def _counts(pieces: list[str], i: int) -> bool:
    """Say whether the blank that is piece ``i`` stays."""
    if i in (0, len(pieces) - 1) or pieces[i - 1] == r"\\":
        return True  # after a line break it may keep a bracket from being an option, or a delimiter
    before, after = pieces[i - 1], pieces[i + 1]
    if before in ("{", "(", "[", "_", "^") or after in ("}", ")", "]", "_", "^"):
        return False
    is_word = before.isalnum()
    if after in (",", ";", ".", "'"):
        return not (is_word or before[-1] in "})]")
    if after[0] == "{":
        return not (is_word or before[-1] in "}]" or _is_command(before))
    if after == "(":
        return not is_word
    earlier = [piece for piece in pieces[max(i - 3, 0) : i - 1] if piece[0] not in _BLANK]
    if before == ".":
        decimal = i > 2 and pieces[i - 2][0] in _BLANK and earlier[0][-1:].isdigit()
        return not (decimal and after.isdigit())
    # `\frac 1 2` and `x_i y` stay readable: what follows a command or a script is its argument.
    is_argument = bool(earlier) and (earlier[-1] in "_^" or _is_command(earlier[-1]))
    return not (is_word and after.isalnum() and len(before) == len(after) == 1 and not is_argument)


def _is_command(piece: str) -> bool:
    return piece[0] == "\\" and piece[1:].rstrip("*").isalpha()


def check_latex(latex: str) -> str | None:
    r"""Say what makes a formula unreadable for a renderer; the formula itself is left as it is.

    Checked are braces (``\{`` and comments aside), ``\left`` and ``\right``, environments, and
    scripts given twice.

    Args:
        latex: Bare LaTeX.

    Returns:
        The first reason, or None for a valid formula.
    """
    # What is open: `{`, `left` or an environment's name in brackets.
    stack: list[str] = []
    # Scripts the current atom has, by nesting level; a script's own argument is no new atom.
    scripts: list[set[str]] = [set()]
    awaiting_argument = False
    for match in _TOKEN.finditer(latex):
        kind, value = match.lastgroup, match.group()
        if kind == "comment":
            continue
        if kind == "name":
            opening = match.group("environment") == "begin"
            expected = f"[{match.group('name')}]"
        elif kind == "fence":
            opening, expected = value == "\\left", "left"
        else:
            opening, expected = value == "{", "{"
        if kind in ("name", "fence") or value in ("{", "}"):
            if opening:
                stack.append(expected)
                if not awaiting_argument:
                    scripts[-1] = set()
                awaiting_argument = False
                scripts.append(set())
                continue
            if not stack or stack[-1] != expected:
                return _mismatch(stack, expected, value)
            stack.pop()
            scripts.pop()
            continue
        if value in ("_", "^"):
            if awaiting_argument:
                return f"{value} without its script"
            if value in scripts[-1]:
                return f"double {'subscript' if value == '_' else 'superscript'}"
            scripts[-1].add(value)
            awaiting_argument = True
        elif awaiting_argument:
            awaiting_argument = False
        elif value != "'":
            scripts[-1] = set()
    if stack:
        return _unclosed(stack[-1])
    return "ends inside a script" if awaiting_argument else None


def _mismatch(stack: list[str], closing: str, value: str) -> str:
    if stack and stack[-1] != "{" and closing == "{":
        return f"unbalanced braces: }} inside {_name(stack[-1])}"
    if closing == "{":
        return "unbalanced braces: } without {"
    if closing in stack:
        return _unclosed(stack[-1])
    return f"{value} without its opening"


def _unclosed(name: str) -> str:
    return "unbalanced braces: { is not closed" if name == "{" else f"{_name(name)} is not closed"


def _name(opened: str) -> str:
    return "\\left" if opened == "left" else f"\\begin{{{opened[1:-1]}}}"


def escape_dollars(text: str) -> str:
    r"""Escape the ``$`` of money for markdown, where it would open a formula.

    Inline formulas ``\( … \)`` are left alone, an escaped ``\$`` is not escaped again.

    Args:
        text: Plain text.

    Returns:
        Text for markdown.
    """
    parts = []
    end = 0
    for span in _INLINE_SPAN.finditer(text):
        parts += [_escape(text[end : span.start()]), span.group()]
        end = span.end()
    return "".join([*parts, _escape(text[end:])])


def _escape(text: str) -> str:
    return _INLINE.sub(lambda match: r"\$" if match.group() == "$" else match.group(), text)
