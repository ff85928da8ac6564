"""Texts to draw: real prose of the packages at hand, words, numbers, codes and random characters.

Reading needs the hard cases as much as prose: a model that saw only English guesses English where
the picture says a part number.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path

import numpy as np

from mdiff_core.config import suggest
from mdiff_core.errors import ConfigError

__all__ = ["CHARACTERS", "KINDS", "TextMix", "corpus_of", "prose_paragraphs", "prose_words"]

Rng = np.random.Generator

PUNCTUATION = ".,;:!?-()'\"/&%$#@*+=<>[]{}_\\|^~`"
_ACCENTED = "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿœßšžčćđłńśźżąęőűřůťďňěÀÁÂÄÅÆÇÈÉÊËÍÎÑÓÔÖØÚÛÜŒŠŽČĆŁŃŚŹŻÝ"
_RARELY_ACCENTED = "ğışșțăāēīūļņķģįųėðþľĺŕÃÌÏÒÕÙĐĄĘŐŰŘŮŤĎŇĚĞİŞȘȚĂĀĒĪŪĻŅĶĢĮŲĖÐÞĽĹŔ"
_BASES = {"æ": "a", "Æ": "A", "œ": "o", "Œ": "O", "ø": "o", "Ø": "O", "ß": "s", "đ": "d", "Đ": "D",
          "ł": "l", "Ł": "L", "ı": "i", "ð": "d", "Ð": "D", "þ": "p", "Þ": "P"}  # fmt: skip


def _accented_variants() -> dict[str, str]:
    """Return the accented letters of each plain one, the common ones three times."""
    variants: dict[str, str] = {}
    for char in _ACCENTED * 3 + _RARELY_ACCENTED:
        base = _BASES.get(char) or unicodedata.normalize("NFD", char)[0]
        variants[base] = variants.get(base, "") + char
    return variants


_VARIANTS = _accented_variants()
_TYPOGRAPHIC = "“”‘’–—…•§°€£©®«»×±"
_RARELY_TYPOGRAPHIC = "„·¥¢™÷−µ¼½¾¹²³¿¡†‡≤≥≠≈→←∞√∑"
_GREEK = "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώ"
_CYRILLIC = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
# Ukrainian, Belarusian, Serbian, Macedonian.
_RARELY_CYRILLIC = "єіїґўђјљњћџѓѕќ"
CHARACTERS = "".join(
    [
        _ACCENTED + _RARELY_ACCENTED + _TYPOGRAPHIC + _RARELY_TYPOGRAPHIC,
        _GREEK + "ϊϋΐΰ" + _GREEK.replace("ς", "").upper() + "ΪΫ",
        _CYRILLIC + _RARELY_CYRILLIC + _CYRILLIC.upper() + _RARELY_CYRILLIC.upper() + "№",
    ]
)
"""The letters and signs outside of ASCII that are drawn, but for Chinese: accented Latin letters,
typographic signs, modern Greek, Cyrillic (Russian, Ukrainian, Belarusian, Bulgarian, Serbian,
Macedonian). The embedded checkpoint has a token for each."""
# The 2000 ideographs that start the block are not the common ones; ranges of daily characters are
# spread over it, so all of the basic block is drawn from.
_CHINESE = (0x4E00, 0x9FA5)
_MONTHS = "January February March April May June July August September October November December"


def prose_words(corpus: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words of running text, in order.

    Args:
        corpus: Text files, or folders of ``.txt`` and ``.md`` files; empty takes what is on every
            machine: the language reference inside Python and the descriptions of the installed
            packages.

    Returns:
        Words as written, punctuation attached.

    Raises:
        ConfigError: If a path of ``corpus`` is not there or the text has fewer than 100 words.
    """
    return corpus_of(tuple(corpus))


@lru_cache(maxsize=4)
def corpus_of(corpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return :func:`prose_words` of these paths, read once a process."""
    if corpus:
        texts = [_read_text(path) for name in corpus for path in _text_files(Path(name))]
    else:
        texts = [_python_topics(), *_package_descriptions()]
    words = tuple(
        word for text in texts for paragraph in prose_paragraphs(text) for word in paragraph
    )
    if len(words) < 100:
        raise ConfigError(
            f"the corpus has {len(words)} words of prose", hint="give larger text files"
        )
    return words


def _text_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md") and p.is_file())
    if path.is_file():
        return [path]
    raise ConfigError(f"corpus {path} is not there")


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def _python_topics() -> str:
    topics: Mapping[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def _package_descriptions() -> list[str]:
    found = {}
    for distribution in metadata.distributions():
        body = distribution.metadata.get_payload()  # type: ignore[attr-defined]  # an email message
        name = distribution.metadata["Name"]
        if isinstance(body, str) and name:
            found[name.lower()] = body
    return [found[name] for name in sorted(found)]


_MARKUP = re.compile(r"https?:|[`*_|<>\[\]{}#=~\\]|::|\S{25}")


def prose_paragraphs(text: str) -> list[list[str]]:
    """Return the words of each paragraph that reads like sentences; empty lines part paragraphs."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        cleaned = [word for word in paragraph.split() if not _MARKUP.search(word)]
        letters = sum(word[0].isalpha() for word in cleaned)
        if len(cleaned) >= 8 and letters > 0.75 * len(cleaned):
            paragraphs.append([word for word in cleaned if word.isprintable()])
    return paragraphs


@dataclass(frozen=True)
class TextMix:
    """Draws short texts of several kinds.

    Attributes:
        shares: Share of each kind of :data:`KINDS`, relative to each other.
        words: Running text for the kinds that use it.
    """

    shares: Mapping[str, float]
    words: Sequence[str] = field(repr=False, default=())

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            if name not in KINDS:
                raise ConfigError(
                    f"there is no kind of text {name!r}", hint=suggest(name, list(KINDS))
                )
            if share < 0:
                raise ConfigError(f"share {share} of text {name!r} is negative")
        if not any(self.shares.values()):
            raise ConfigError("the shares of the kinds of text are all 0")

    def draw(self, rng: Rng, max_chars: int, full_share: float = 0.0) -> tuple[str, str]:
        """Draw a text.

        Args:
            rng: Random stream.
            max_chars: Its longest length; lengths are spread evenly below.
            full_share: Share of texts that are as long as they may be.

        Returns:
            Its kind, and the text: at least one character, single spaces between words.
        """
        names = list(self.shares)
        shares = np.array([self.shares[name] for name in names], dtype=float)
        kind = names[int(rng.choice(len(names), p=shares / shares.sum()))]
        # Short pieces are the ends of lines and table cells, so they are common.
        is_full = bool(full_share) and rng.random() < full_share
        target = max_chars if is_full else int(rng.integers(1, max_chars + 1))
        words: list[str] = []
        make = KINDS[kind](rng, self.words)
        while not words or len(" ".join(words)) < target:
            words.append(make())
        text = " ".join(" ".join(words).split())[:max_chars].strip()
        return kind, text or "-"


Maker = Callable[[], str]


def _prose_maker(rng: Rng, words: Sequence[str]) -> Maker:
    position = int(rng.integers(len(words)))
    upper = rng.random() < 0.05

    def make() -> str:
        nonlocal position
        word = words[position % len(words)]
        position += 1
        return word.upper() if upper else word

    return make


def _letters(rng: Rng, alphabet: str, low: int = 1, high: int = 11) -> str:
    return "".join(rng.choice(list(alphabet), int(rng.integers(low, high))))


def _words_maker(rng: Rng, words: Sequence[str]) -> Maker:
    """Words out of context: real ones, and letters in their place."""
    style = rng.random()

    def make() -> str:
        if words and rng.random() < 0.6:
            word = words[int(rng.integers(len(words)))]
        else:
            word = _letters(rng, string.ascii_lowercase)
        if style < 0.15:
            return word.upper()
        return word.capitalize() if style < 0.35 else word

    return make


def _numbers_maker(rng: Rng, _: Sequence[str]) -> Maker:
    def make() -> str:
        value, kind = int(rng.integers(0, 10 ** int(rng.integers(1, 8)))), int(rng.integers(10))
        if kind < 2:
            return str(value)
        if kind == 2:
            return f"{value:,}"
        if kind == 3:
            return f"{value / 100:.2f}"
        if kind == 4:
            return f"${value / 100:,.2f}"
        if kind == 5:
            return f"{value % 1000 / 10:.1f}%"
        day, month, year = rng.integers(1, 29), rng.integers(1, 13), rng.integers(1900, 2031)
        if kind == 6:
            return f"{year}-{month:02d}-{day:02d}"
        if kind == 7:
            return f"{_MONTHS.split()[int(month) - 1]} {day}, {year}"
        if kind == 8:
            return f"{int(rng.integers(24)):02d}:{int(rng.integers(60)):02d}"
        codes = string.ascii_uppercase + string.digits
        return f"{_letters(rng, codes, 2, 6)}-{_letters(rng, codes, 2, 7)}"

    return make


def _random_maker(rng: Rng, _: Sequence[str]) -> Maker:
    alphabet = string.ascii_letters + string.digits + PUNCTUATION
    return lambda: _letters(rng, alphabet, 1, 9)


def _confusable_maker(rng: Rng, _: Sequence[str]) -> Maker:
    """What the first checkpoint mixed up: l, I, 1, | and the like, and doubled letters."""
    groups = [
        "lI1|i!j",
        "O0oQDC",
        "rnmnmu",
        "5S8B3",
        "2Z7",
        "cecoea",
        ".,:;'`",
        "vwVWyY",
        "ftfflfi",
    ]

    def make() -> str:
        word = _letters(rng, groups[int(rng.integers(len(groups)))], 1, 6)
        at = int(rng.integers(len(word)))
        return word[: at + 1] + word[at] * int(rng.integers(0, 3)) + word[at + 1 :]

    return make


def _code_maker(rng: Rng, words: Sequence[str]) -> Maker:
    """Names, brackets and marks as they stand in code, LaTeX, paths, addresses and references."""

    def name() -> str:
        word = words[int(rng.integers(len(words)))] if words and rng.random() < 0.7 else ""
        letters = "".join(c for c in word if c.isascii() and c.isalpha())
        word = letters or _letters(rng, string.ascii_lowercase, 1, 8)
        style = int(rng.integers(8))
        return word.upper() if style == 0 else word if style == 1 else word.lower()

    def value() -> str:
        kind = int(rng.integers(5))
        if kind == 0:
            return str(int(rng.integers(0, 1000)))
        if kind == 1:
            return f"{rng.random() * 10:.{int(rng.integers(1, 4))}f}"
        if kind == 2:
            return f'"{name()}"' if rng.random() < 0.5 else f"'{name()}'"
        return name()

    def choice(of: str) -> str:
        return str(rng.choice(of.split()))

    def enclosed(inner: str) -> str:
        pair = choice("() [] {} {} <>")
        return pair[0] + inner + pair[1]

    makers: Sequence[Maker] = (
        lambda: f"\\{name()}{enclosed(value())}",
        lambda: f"\\{name()}[{value()}]{{{value()}}}",
        lambda: f"{{\\{name()} {name()}}}",
        lambda: f"{name()}({value()}, {value()});",
        lambda: f"{name()}.{name()}({value()})",
        lambda: f"{name()}_{name()}[{value()}]",
        lambda: f"{name()} = {enclosed(value())}",
        lambda: f"{{{value()}: {value()}, {value()}: {value()}}}",
        lambda: f"if ({name()} {choice('== != < >= && ||')} {value()}) {{",
        lambda: enclosed(f"{value()}, {value()}"),
        lambda: enclosed(name()),
        lambda: f"/{name()}/{name()}.{name()[:3]}",
        lambda: f"{name()}@{name()}.{choice('com org net edu')}",
        lambda: f"https://{name()}.org/{name()}",
        lambda: f"doi:10.{int(rng.integers(1000, 9999))}/{name()}.{int(rng.integers(1900, 2031))}",
        lambda: f"${name()}^{{{value()}}}_{{{name()[:2]}}}$",
        lambda: f"#{name()} | {value()} ~ {value()};",
        lambda: f"{name()} += {value()} * {value()}",
    )
    return lambda: makers[int(rng.integers(len(makers)))]()


def _cells_maker(rng: Rng, _: Sequence[str]) -> Maker:
    """The numbers of a table's row, of like size and precision."""
    digits, places = int(rng.integers(1, 4)), int(rng.integers(0, 4))
    signed = rng.random() < 0.15

    def make() -> str:
        number = f"{rng.random() * 10**digits:.{places}f}"
        return f"-{number}" if signed and rng.random() < 0.5 else number

    return make


def _accents_maker(rng: Rng, words: Sequence[str]) -> Maker:
    """Latin words in which letters carry accents: few in some texts, a quarter in others."""
    plain, share = _words_maker(rng, words), rng.uniform(0.03, 0.4)

    def accented(char: str) -> str:
        variants = _VARIANTS.get(char, "")
        return str(rng.choice(list(variants))) if variants and rng.random() < share else char

    return lambda: "".join(accented(char) for char in plain())


def _typographic_maker(rng: Rng, words: Sequence[str]) -> Maker:
    plain = _words_maker(rng, words)

    def make() -> str:
        sign = str(rng.choice(list(_TYPOGRAPHIC * 3 + _RARELY_TYPOGRAPHIC)))
        return f"{sign}{plain()}" if rng.random() < 0.5 else f"{plain()}{sign}"

    return make


def _script(alphabet: str) -> Callable[[Rng, Sequence[str]], Maker]:
    def build(rng: Rng, _: Sequence[str]) -> Maker:
        style = rng.random()

        def make() -> str:
            word = _letters(rng, alphabet)
            return word.upper() if style < 0.1 else word.capitalize() if style < 0.4 else word

        return make

    return build


def _chinese_maker(rng: Rng, _: Sequence[str]) -> Maker:
    low, high = _CHINESE
    return lambda: "".join(
        chr(int(code)) for code in rng.integers(low, high, int(rng.integers(2, 9)))
    )


KINDS: Mapping[str, Callable[[Rng, Sequence[str]], Maker]] = {
    "prose": _prose_maker,
    "words": _words_maker,
    "numbers": _numbers_maker,
    "random": _random_maker,
    "confusable": _confusable_maker,
    "code": _code_maker,
    "cells": _cells_maker,
    "accents": _accents_maker,
    "typographic": _typographic_maker,
    "greek": _script(_GREEK),
    "cyrillic": _script(_CYRILLIC * 3 + _RARELY_CYRILLIC),
    "chinese": _chinese_maker,
}
"""Kinds of text by name, each ``kind(rng, words) -> maker of words``."""
