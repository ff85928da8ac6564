"""What belongs together on a page: captions with figures, items with lists; for all exports."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from mdiff_adapters.document import ParsedPage, Region, RegionType
from mdiff_adapters.text import split_list_items
from mdiff_core.errors import ConfigError

FURNITURE: frozenset[RegionType] = frozenset(
    {"header", "footer", "page_number", "aside_text", "page_footnote", "unknown"}
)
"""Types that exports leave out unless asked for, as the reference does."""

_ATTACHED: frozenset[RegionType] = frozenset(
    {"image_caption", "image_footnote", "table_caption", "table_footnote", "code_caption"}
)

_NO_ITEMS: frozenset[RegionType] = frozenset({"title", "table", "image", "code", "algorithm"})
"""Types that stand between the items of a list as blocks of their own."""

Images = str | os.PathLike[str]
"""``none``, ``embed``, or a folder that images are written to."""


@dataclass(slots=True)
class Block:
    """A unit of a page that exports render as one.

    Attributes:
        region: The region; for a list told by its items, the list.
        before: Captions and footnotes that come before it in reading order.
        after: Captions and footnotes that come after it.
        items: Items of a list, each with the region that tells it; empty for any other region.
    """

    region: Region
    before: list[Region] = field(default_factory=list)
    after: list[Region] = field(default_factory=list)
    items: list[tuple[str, Region]] = field(default_factory=list)


def page_blocks(page: ParsedPage, *, include_furniture: bool = False) -> Iterator[Block]:
    """Yield the blocks of a page in reading order, regions without content left out.

    A list's items are one block as long as they follow each other; a caption moves next to its
    figure, table or code, everything else stays where the model put it.

    Args:
        page: The page.
        include_furniture: Whether running headers, page numbers and the like are wanted.

    Yields:
        Blocks; each region with content is in exactly one of them.
    """
    shown = {
        region.id: region
        for region in page.regions
        if has_content(region) and (include_furniture or region.type not in FURNITURE)
    }
    lists = {region.id: region for region in page.regions if region.type == "list"}
    attached: dict[str, list[Region]] = {}
    for region in shown.values():
        if region.type in _ATTACHED and region.parent in shown:
            attached.setdefault(region.parent or "", []).append(region)
    open_list: Block | None = None
    for region in shown.values():
        if region.type in _ATTACHED and region.parent in shown:
            continue
        parent = lists.get(region.parent or "")
        if parent is not None and region.text and region.type not in _NO_ITEMS:
            item = (" ".join(region.text.split("\n")), region)
            if open_list is not None and open_list.region is parent:
                open_list.items.append(item)
                continue
            if open_list is not None:
                yield open_list
            open_list = Block(parent, items=[item])
            continue
        if open_list is not None:
            yield open_list
            open_list = None
        block = Block(region)
        if region.type == "list":
            block.items = [(text, region) for text in split_list_items(region.text)]
        for other in attached.get(region.id, ()):
            (block.before if other.order < region.order else block.after).append(other)
        yield block
    if open_list is not None:
        yield open_list


def has_content(region: Region) -> bool:
    """Whether a region has anything of its own to show; figures always have a place."""
    return bool(region.text or region.table or region.latex or region.type == "image")


def image_url(region: Region, images: Images) -> str | None:
    """Return what an image reference points to; writes the file where a folder is given.

    Args:
        region: A region, with or without a picture.
        images: ``none``, ``embed`` (a data URL) or a folder.

    Returns:
        The URL, or None where there is no picture or none is wanted.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    if images == "none" or region.image is None:
        return None
    if images == "embed":
        return f"data:image/png;base64,{base64.b64encode(region.image).decode('ascii')}"
    folder = Path(images)
    # Pages of several documents may go to one folder: what a picture shows tells them apart.
    path = folder / f"{region.id}-{hashlib.sha256(region.image).hexdigest()[:8]}.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(region.image)
    except OSError as error:
        raise ConfigError(
            f"images = {os.fspath(images)!r} cannot be written: {error}",
            hint="give 'none', 'embed' or a folder that can be written",
        ) from error
    return quote(path.as_posix(), safe="/:")
