"""Cleaning of answers: special tokens, loops, wrapped lines. Works on strings only."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from mdiff_adapters.formulas import escape_dollars
from mdiff_core.protocol import END_TOKENS

__all__ = [
    "Loop",
    "StrippedText",
    "cut_at_stop",
    "escape_html",
    "escape_inline",
    "find_loop",
    "split_list_items",
    "strip_special_tokens",
    "unify_scripts",
    "unwrap_lines",
]

_SPECIAL = re.compile(r"<\|[^<>|\n]{0,64}\|>")
# The tail of an answer that was cut inside a token: `<|im_`, `<|im_end|`. A lone `<` may be text.
_CUT_SPECIAL = re.compile(r"<\|[^\s<>|]{0,64}\|?\Z")
_OTSL_TAG = re.compile(r"<(?:[felux]cel|[cr]hed|srow|nl)>")
# Units that repeat in good answers: rules, dotted leaders, blank and numeric cells.
_FILLER = re.compile(r"[\s\d.\-_=*·•…|~—–+#,;:]*\Z")

_MIN_REPEATS, _MIN_CHARS = 4, 32
_MIN_WEAK_REPEATS, _MIN_WEAK_CHARS = 16, 256

_BULLET = re.compile(r"(?:[•◦▪●○■□‣⁃∙·*–—-]|\(?\d{1,3}[.)]|\[\d{1,3}\]|\(?[a-zA-Z]\))\s+\S")
# Scripts written without spaces between words, with their punctuation and full-width forms.
_NO_SPACE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
    "\uff00-\uffef\U00020000-\U0003ffff]"
)
_HYPHENS = ("-", "\u2010")
_SOFT_HYPHEN = "\u00ad"


@dataclass(frozen=True, slots=True)
class StrippedText:
    """A text without special tokens.

    Attributes:
        text: What is left.
        num_tokens: How many tokens were removed, a cut one at the end included.
    """

    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A repetition at the end of a text.

    Attributes:
        unit: The shortest string that repeats.
        repeats: Whole repetitions.
        trimmed: The text with the unit once.
    """

    unit: str
    repeats: int
    trimmed: str


def cut_at_stop(text: str) -> str:
    """Return what stands before the earliest stop token of any kind."""
    ends = [end for token in END_TOKENS if (end := text.find(token)) >= 0]
    return text[: min(ends)] if ends else text


def strip_special_tokens(text: str) -> StrippedText:
    """Remove what a model's tokens leave in an answer that must not hold any.

    The earliest stop token ends the text, whatever follows it. Every other ``<|…|>`` is removed,
    and so is one that the end of the answer cut.

    Args:
        text: The answer to a text, table or formula request.

    Returns:
        The text and the number of tokens removed.
    """
    kept = cut_at_stop(text)
    num_tokens = int(kept != text)
    while True:
        # What stood around a token may be one itself once the token is gone.
        shorter, removed = _SPECIAL.subn("", kept)
        shorter, cut = _CUT_SPECIAL.subn("", shorter)
        if shorter == kept:
            return StrippedText(kept, num_tokens)
        kept, num_tokens = shorter, num_tokens + removed + cut


def find_loop(text: str) -> Loop | None:
    """Find an exact repetition at the end of a text.

    At least 4 repetitions and 32 characters; a unit of table tags, digits, spaces, dots and rules
    repeats in good answers too and needs 16 repetitions and 256 characters. Whether the text is
    to be trimmed is for the caller to say: only one that ran into its token limit is.

    Args:
        text: The text.

    Returns:
        The loop with the shortest unit, or None.

    Source: the guards and their false alarms in faults E2 of the project's research.
    """
    size = len(text)
    # The period of a tail is a prefix period of the reversed text; z[p] characters repeat at p.
    z = _z_array(text[::-1])
    for period in range(1, size // _MIN_REPEATS + 1):
        run = period + z[period]
        if run < max(_MIN_REPEATS * period, _MIN_CHARS):
            continue
        unit = text[size - run : size - run + period]
        if (unit + unit).find(unit, 1) != period:
            # A multiple of a shorter unit that did not pass its own bar.
            continue
        repeats = run // period
        weak = _FILLER.match(_OTSL_TAG.sub("", unit)) or _OTSL_TAG.search(unit + unit)
        if weak and (repeats < _MIN_WEAK_REPEATS or run < _MIN_WEAK_CHARS):
            continue
        return Loop(unit, repeats, text[: size - run + period].rstrip())
    return None


def _z_array(text: str) -> list[int]:
    """Return for each position the length of the longest common prefix with the whole text."""
    size = len(text)
    z = [0] * (size + 1)
    left = right = 0
    for i in range(1, size):
        match = min(right - i, z[i - left]) if i < right else 0
        while i + match < size and text[match] == text[i + match]:
            match += 1
        z[i] = match
        if i + match > right:
            left, right = i, i + match
    return z


def unwrap_lines(text: str, words: Collection[str] = ()) -> str:
    """Join the lines of each paragraph; blank lines and list items stay lines of their own.

    Scripts without spaces between words are joined without one. A hyphen at a line's end goes
    away where ``words`` has the joined word, or, where ``words`` knows neither form, where the
    next line goes on in lower case; it stays in ``Anglo-/American`` and ``COVID-/19``.

    Args:
        text: Text with the line breaks of the page.
        words: Known words in lower case.

    Returns:
        The text, paragraphs separated by one blank line.
    """
    paragraphs = []
    for block in re.split(r"\n[^\S\n]*\n\s*", text.replace("\r\n", "\n").strip()):
        lines: list[str] = []
        for line in filter(None, (part.strip() for part in block.split("\n"))):
            if not lines or _BULLET.match(line):
                lines.append(line)
            else:
                lines[-1] = _join_lines(lines[-1], line, words)
        paragraphs.append("\n".join(lines))
    return "\n\n".join(filter(None, paragraphs))


def _join_lines(line: str, following: str, words: Collection[str]) -> str:
    if line.endswith(_SOFT_HYPHEN):
        return line[:-1] + following
    if line.endswith(_HYPHENS):
        return _join_hyphen(line, following, words)
    if _NO_SPACE.match(line[-1]) or _NO_SPACE.match(following[0]):
        return line + following
    return f"{line} {following}"


def _join_hyphen(line: str, following: str, words: Collection[str]) -> str:
    tail = "".join(takewhile(_is_letter, reversed(line[:-1])))[::-1]
    head = "".join(takewhile(_is_letter, following))
    if not tail:
        # A dash, or a number's minus, and not a divided word.
        glue = "" if line[-2:-1].isdigit() else " "
        return f"{line}{glue}{following}"
    if not head:
        return line + following
    left, right = tail.lower(), head.lower()
    if left + right in words:
        return line[:-1] + following
    if f"{left}-{right}" in words:
        return line + following
    return (line if head[0] != head[0].lower() else line[:-1]) + following


def _is_letter(char: str) -> bool:
    """Whether a character is a letter or an accent or vowel sign that belongs to one."""
    return unicodedata.category(char)[0] in "LM"


def split_list_items(text: str) -> list[str]:
    """Split the text of a list into its items.

    Where lines begin with a bullet or a number, the lines between go to the item before; without
    any, each line is an item.

    Args:
        text: Text of a list region.

    Returns:
        The items; markers that only say "bullet" are removed, numbers stay.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    marked = any(_BULLET.match(line) for line in lines)
    items: list[str] = []
    for line in lines:
        if items and marked and not _BULLET.match(line):
            items[-1] = _join_lines(items[-1], line, ())
        else:
            items.append(line)
    return [re.sub(r"^[•◦▪●○■□‣⁃∙·*–—-]\s+", "", item) for item in items]


# `<` that a renderer would take for a tag; superscripts and subscripts are meant as such.
# What an odd number of backslashes stands before is escaped already.
_TAG_START = re.compile(r"(?<!\\)(?:\\\\)*<(?!/?su[bp]>)(?=[A-Za-z/!?])")
# Where a link or a picture has its target, which would be hidden, or loaded from elsewhere. Its
# opening bracket cannot be escaped: `\\[` opens a formula.
_LINK = re.compile(r"\](?=\()")
_ENTITY = re.compile(r"&(?=#?\w{1,32};)")


def escape_inline(text: str) -> str:
    """Escape what markdown would read as something else than text inside a line.

    These are ``$`` of money, a ``<`` that would open a tag, links, pictures and entities. Emphasis
    marks stay as they are: they do no harm to the reader.

    Args:
        text: Plain text.

    Returns:
        Markdown that renders as the text where no block can begin: in a title or a table's cell.
    """
    for pattern in (_TAG_START, _LINK, _ENTITY):
        text = pattern.sub(r"\\\g<0>", text)
    return escape_dollars(text)


# Raised and lowered text is the one markup that models put into plain answers.
_SCRIPT = re.compile(r"&lt;(su[bp])&gt;(.*?)&lt;/\1&gt;", re.DOTALL)


def escape_html(text: str) -> str:
    """Return plain text as HTML: escaped once, newlines ``<br>``, ``<sup>`` and ``<sub>`` meant."""
    escaped = html.escape(text, quote=False)
    return _SCRIPT.sub(r"<\1>\2</\1>", escaped).replace("\n", "<br>")


# Letters of one shape, for each script what stands for those of the others. Small Greek letters
# become no Latin ones, but for omicron: in sin α they are meant.
_TO_LATIN = str.maketrans(
    "аеорсухіјѕкмтАВЕКМНОРСТУХІЈЅ" + "οΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxijskmtABEKMHOPCTYXIJS" + "oABEZHIKMNOPTYX",
)
_TO_CYRILLIC = str.maketrans(
    "aeopcyxijskmtABEKMHOPCTYXIJS" + "αορχυκτπφΑΒΕΗΙΚΜΟΡΤΥΧΠΦΓΛ",
    "аеорсухіјѕкмтАВЕКМНОРСТУХІЈЅ" + "аорхуктпфАВЕНІКМОРТУХПФГЛ",
)
_TO_GREEK = str.maketrans(
    "aopxukitvywnABEZHIKMNOPTYXáéíóú" + "аорхкітпфуАВЕНІКМОРТУХПФГЛ",
    "αορχυκιτνγωηΑΒΕΖΗΙΚΜΝΟΡΤΥΧάέίόύ" + "αορχκιτπφγΑΒΕΗΙΚΜΟΡΤΥΧΠΦΓΛ",
)
_SCRIPTS = {"LATIN": _TO_LATIN, "CYRILLIC": _TO_CYRILLIC, "GREEK": _TO_GREEK}
_LETTERS = re.compile(r"[^\W\d_]+")


def unify_scripts(line: str) -> str:
    """Return a line whose words are in one script each, where letters look the same in several.

    A reader that looks at letters one by one cannot tell a Latin ``a`` from a Cyrillic one; its
    word can. A word whose letters could all be meant stays, such as a delta before an x.

    Args:
        line: Text of one line.

    Returns:
        Text of the same length. Words made of look-alikes follow the line, but for Latin ones: in
        a line of another script those are names and options.
    """
    if line.isascii():
        return line
    line = _LETTERS.sub(lambda word: _in_script(word[0], _main_script(word[0])), line)
    main = _main_script(line)

    def follow(word: re.Match[str]) -> str:
        return word[0] if _main_script(word[0]) == "LATIN" else _in_script(word[0], main)

    return _LETTERS.sub(follow, line)


def _main_script(text: str) -> str | None:
    """Return the script of most of the letters; None where no script has more than the others."""
    counts = Counter(filter(None, map(_script, text))).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


@lru_cache(maxsize=2048)
def _script(char: str) -> str | None:
    name = unicodedata.name(char, "").split(" ", 1)[0] if char.isalpha() else ""
    return name if name in _SCRIPTS else None


def _in_script(word: str, script: str | None) -> str:
    """Return a word in a script; as it is where a letter of it has no look-alike there."""
    if script is None:
        return word
    letters = [
        char if _script(char) in (script, None) else char.translate(_SCRIPTS[script])
        for char in word
    ]
    return "".join(letters) if all(_script(c) in (script, None) for c in letters) else word
