"""Make a corpus of real prose in other languages out of translated manual pages and messages.

``python tools/manuals_corpus.py OUT [--languages fr de …] [--accented 0.03]``, after
``apt install groff manpages-fr manpages-de manpages-es manpages-pl manpages-pt-br …``.

Writes ``OUT/LANGUAGE.txt``, for ``corpus = ["OUT"]`` of a training file's ``[[data]]``. Kept are
paragraphs that the model has tokens for and in which enough letters are not plain ASCII: those are
learned from English as well. Other scripts are made the same way. Where a language has few manual
pages, as Greek, the messages of programs give more (``gimp-data``, ``libgtk-3-common``).
"""

from __future__ import annotations

import argparse
import gettext
import gzip
import random
import string
import subprocess
import unicodedata
from pathlib import Path

from mdiff_core.training.data.texts import CHARACTERS, prose_paragraphs

MANUALS = Path("/usr/share/man")
MESSAGES = Path("/usr/share/locale")
LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "it", "nb", "nl", "pl", "pt_BR", "ro", "sv",
             "tr")  # fmt: skip
KNOWN = set(string.printable + CHARACTERS)


def plain(page: Path) -> str:
    """Return a gzipped manual page as text, one line a paragraph."""
    roff = subprocess.run(
        ["preconv", "-e", "utf-8"], input=gzip.decompress(page.read_bytes()), capture_output=True
    )
    # One endless line, no hyphenation, no escape sequences for bold and underlined.
    command = ["groff", "-t", "-man", "-Tutf8", "-P-cbuo", "-rHY=0", "-rLL=3000n"]
    text = subprocess.run(command, input=roff.stdout, capture_output=True).stdout.decode()
    return text.replace("\N{HYPHEN}", "-")


def messages(catalogue: Path) -> list[str]:
    """Return the translated messages of a program."""
    with catalogue.open("rb") as file:
        # No public name gives all of them.
        found = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    # The empty one holds the file's header.
    return [text for key, text in found.items() if key]


def corpus(
    manuals: Path, catalogues: Path, *, accented: float, max_pages: int, max_words: int
) -> list[str]:
    """Return different paragraphs of a language, in random order.

    Args:
        manuals: Folder of the language's manual pages, which may be missing.
        catalogues: Folder of its message catalogues, which may be missing.
        accented: Least share of characters that are not ASCII.
        max_pages: Manual pages looked at, spread evenly over all.
        max_words: Words after which it stops.
    """
    pages = sorted(manuals.rglob("*.gz"))
    pages = pages[:: max(1, len(pages) // max_pages)]
    texts = [line for page in pages for line in plain(page).splitlines()]
    texts += [text for catalogue in sorted(catalogues.glob("*.mo")) for text in messages(catalogue)]
    found = {
        unicodedata.normalize("NFC", " ".join(paragraph))
        for text in texts
        for paragraph in prose_paragraphs(text)
    }
    paragraphs = [
        p
        for p in sorted(found)
        if set(p) <= KNOWN and sum(not c.isascii() for c in p) >= accented * len(p)
    ]
    random.Random(1).shuffle(paragraphs)
    kept, words = [], 0
    for paragraph in paragraphs:
        kept.append(paragraph)
        words += len(paragraph.split())
        if words >= max_words:
            break
    return kept


def main() -> None:
    """Write one file a language."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--accented", type=float, default=0.03, help="least share of characters")
    parser.add_argument("--max-pages", type=int, default=130, help="of a language")
    parser.add_argument("--max-words", type=int, default=60_000, help="of a language")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for language in options.languages:
        paragraphs = corpus(
            MANUALS / language,
            MESSAGES / language / "LC_MESSAGES",
            accented=options.accented,
            max_pages=options.max_pages,
            max_words=options.max_words,
        )
        if paragraphs:
            text = "\n\n".join(paragraphs)
            (options.out / f"{language}.txt").write_text(text, encoding="utf-8")
        print(f"{language}: {sum(len(p.split()) for p in paragraphs)} words")


if __name__ == "__main__":
    main()
