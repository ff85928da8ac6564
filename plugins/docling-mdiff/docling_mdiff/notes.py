"""What one stage knows about a page and a later stage needs, kept exactly as long as the page.

docling hands the same page object from stage to stage. Its models refuse new attributes and are not
hashable, so the notes hang on the object's identity and vanish with it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from docling.datamodel.base_models import Page

from mdiff_adapters.document import ParsedPage, Region
from mdiff_adapters.forks import ForkSafeLock


@dataclass(slots=True)
class PageNotes:
    """Notes on one page; cluster ids stay the same through all of docling's stages.

    Attributes:
        regions: What was read, by cluster id.
        layout_seen: Whether our layout engine looked at the page, so that no region means blank.
        parsed: The whole page, where a pipeline reads pages as a whole.
    """

    regions: dict[int, Region] = field(default_factory=dict)
    layout_seen: bool = False
    parsed: ParsedPage | None = None


_notes: dict[int, tuple[weakref.ref[Page], PageNotes]] = {}
# Reentrant: an allocation under the lock may collect a dead page, whose callback takes it again.
_lock = ForkSafeLock()


def page_notes(page: Page) -> PageNotes:
    """Return the notes on ``page``; new ones at the first call."""
    key = id(page)

    def forget(reference: weakref.ref[Page]) -> None:
        with _lock:
            # Another page may have got the same id by now.
            if key in _notes and _notes[key][0] is reference:
                del _notes[key]

    with _lock:
        if key not in _notes or _notes[key][0]() is not page:
            _notes[key] = (weakref.ref(page, forget), PageNotes())
        return _notes[key][1]


def num_noted_pages() -> int:
    """Return how many pages have notes; 0 once the conversions are done."""
    return len(_notes)
