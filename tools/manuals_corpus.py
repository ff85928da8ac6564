"""Make a corpus of real prose in other languages out of translated manual pages.

``python tools/manuals_corpus.py OUT [--languages fr de …] [--accented 0.03]``, after
``apt install groff manpages-fr manpages-de manpages-es manpages-pl manpages-pt-br …``.

Writes ``OUT/LANGUAGE.txt``, for ``corpus = ["OUT"]`` of a training file's ``[[data]]``. Kept are
paragraphs that the model has tokens for and in which enough letters carry accents: what is plain
ASCII is learned from English as well.
"""

from __future__ import annotations

import argparse
import gzip
import random
import string
import subprocess
import unicodedata
from pathlib import Path

from mdiff_core.training.data.texts import LATIN_CHARACTERS, prose_paragraphs

MANUALS = Path("/usr/share/man")
LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "it", "nb", "nl", "pl", "pt_BR", "ro", "sv",
             "tr")  # fmt: skip
KNOWN = set(string.printable) | set(LATIN_CHARACTERS)


def plain(page: Path) -> str:
    """Return a gzipped manual page as text, one line a paragraph."""
    roff = subprocess.run(
        ["preconv", "-e", "utf-8"], input=gzip.decompress(page.read_bytes()), capture_output=True
    )
    # One endless line, no hyphenation, no escape sequences for bold and underlined.
    command = ["groff", "-t", "-man", "-Tutf8", "-P-cbuo", "-rHY=0", "-rLL=3000n"]
    text = subprocess.run(command, input=roff.stdout, capture_output=True).stdout.decode()
    return text.replace("\N{HYPHEN}", "-")


def corpus(folder: Path, *, accented: float, max_pages: int, max_words: int) -> list[str]:
    """Return different paragraphs of a language's manual pages, in random order.

    Args:
        folder: ``man`` folder of the language.
        accented: Least share of characters that are not ASCII.
        max_pages: Pages looked at, spread evenly over all.
        max_words: Words after which it stops.
    """
    pages = sorted(folder.rglob("*.gz"))
    pages = pages[:: max(1, len(pages) // max_pages)]
    found = {
        unicodedata.normalize("NFC", " ".join(paragraph))
        for page in pages
        for line in plain(page).splitlines()
        for paragraph in prose_paragraphs(line)
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
