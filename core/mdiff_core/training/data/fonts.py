"""Fonts for drawn text: found in the system's folders, with what characters each can draw.

The list depends on the machine; its fingerprint goes into the log of a run, because the drawn data
are the same only where the fonts are.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mdiff_core.errors import ConfigError

logger = logging.getLogger(__name__)

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
_BASIC = frozenset(range(0x21, 0x7F))
_PROBE_PX = 48
_SMALL_CAPS_AGREEMENT = 0.8


@dataclass(frozen=True, slots=True)
class Font:
    """One face of a font file.

    Attributes:
        path: The file; empty for the font inside Pillow.
        face: Number of the face in a collection.
        codepoints: Characters it can draw.
    """

    path: str
    face: int
    codepoints: frozenset[int] = field(repr=False)

    def at(self, size_px: int) -> ImageFont.FreeTypeFont:
        """Return the font at a size in px per em."""
        return _load(self.path, self.face, size_px)

    def draws(self, text: str) -> bool:
        """Return whether it draws every character of ``text``, none of them as an empty glyph."""
        needed = _codepoints(text)
        return needed <= self.codepoints and all(
            _has_ink(self.path, self.face, chr(code)) for code in needed
        )


def _codepoints(text: str) -> set[int]:
    return {ord(char) for char in text if not char.isspace()}


@lru_cache(maxsize=512)
def _load(path: str, face: int, size_px: int) -> ImageFont.FreeTypeFont:
    if path:
        # Basic layout: what is measured by character is what is drawn.
        return ImageFont.truetype(path, size_px, face, layout_engine=ImageFont.Layout.BASIC)
    font = ImageFont.load_default(size_px)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise ConfigError("this Pillow was built without FreeType, so no text can be drawn")
    return font


@lru_cache(maxsize=2**18)
def _has_ink(path: str, face: int, char: str) -> bool:
    """Return whether a glyph is drawn: some fonts list characters that they have no outline for."""
    return _load(path, face, _PROBE_PX).getmask(char).getbbox() is not None


class FontSet:
    """The usable fonts of some folders.

    Args:
        folders: Folders to search, with everything below; None takes the system's.
        exclude: Font files whose name contains one of these words, in any case, are left out.

    Raises:
        ConfigError: If a given folder is not there.
    """

    def __init__(self, folders: Sequence[str] | None = None, exclude: Iterable[str] = ()) -> None:
        self._folders = None if folders is None else tuple(folders)
        self._exclude = tuple(word.lower() for word in exclude)
        for folder in self._folders or ():
            if not Path(folder).is_dir():
                raise ConfigError(f"font folder {folder} is not there")

    @cached_property
    def fonts(self) -> tuple[Font, ...]:
        """Fonts that draw printable ASCII in both cases; Pillow's own if there is none."""
        folders = system_folders() if self._folders is None else [Path(f) for f in self._folders]
        found = [
            font
            for path in sorted({p for folder in folders for p in _files(folder)})
            if not any(word in path.name.lower() for word in self._exclude)
            for font in _read(path)
        ]
        usable = tuple(font for font in found if not _is_odd(font))
        if not usable:
            logger.warning("no usable font in %s; drawing with Pillow's own", folders)
            return (_pillow_font(),)
        return usable

    @cached_property
    def fixed_width(self) -> tuple[Font, ...]:
        """Those of the fonts whose characters are all equally wide, as code is set in."""
        return tuple(font for font in self.fonts if _is_fixed_width(font))

    def covering(self, text: str, *, fixed_width: bool = False) -> tuple[Font, ...]:
        """Return the fonts that list every character of ``text``; see :meth:`Font.draws`."""
        needed = _codepoints(text)
        among = self.fixed_width if fixed_width else self.fonts
        return tuple(font for font in among if needed <= font.codepoints)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the fonts' names and coverage."""
        digest = hashlib.sha256()
        for font in self.fonts:
            digest.update(f"{Path(font.path).name}:{font.face}:{len(font.codepoints)};".encode())
        return f"{len(self.fonts)} fonts, {digest.hexdigest()[:12]}"


@lru_cache(maxsize=8)
def font_set(folders: tuple[str, ...] | None, exclude: tuple[str, ...]) -> FontSet:
    """Return the one font set of these settings in this process: reading fonts takes seconds."""
    return FontSet(folders, exclude)


def system_folders() -> list[Path]:
    """Return the font folders of this operating system that exist."""
    home = Path.home()
    if sys.platform == "darwin":
        names = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    elif sys.platform == "win32":
        names = [Path("C:/Windows/Fonts"), home / "AppData/Local/Microsoft/Windows/Fonts"]
    else:
        names = [
            Path("/usr/share/fonts"),
            Path("/usr/local/share/fonts"),
            home / ".fonts",
            home / ".local/share/fonts",
        ]
    return [name for name in names if name.is_dir()]


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]


def _read(path: Path) -> list[Font]:
    try:
        from fontTools.ttLib import TTCollection, TTFont, TTLibError
    except ImportError as error:
        raise ConfigError(
            "drawing training text needs fontTools", hint='pip install "mdiff-core[train]"'
        ) from error
    try:
        if path.suffix.lower() in (".ttc", ".otc"):
            with TTCollection(path, lazy=True) as collection:
                faces = list(collection.fonts)
                return [
                    Font(str(path), i, frozenset(face.getBestCmap() or ()))
                    for i, face in enumerate(faces)
                ]
        with TTFont(path, lazy=True) as face:
            return [Font(str(path), 0, frozenset(face.getBestCmap() or ()))]
    except (TTLibError, OSError, ValueError, KeyError, AssertionError) as error:
        logger.warning("font %s is left out: %s", path, error)
        return []


def _pillow_font() -> Font:
    _load("", 0, 16)
    return Font("", 0, _BASIC)


def _is_odd(font: Font) -> bool:
    """Return whether a font cannot teach reading: symbols, no ink, or capitals for small letters.

    With capitals drawn for small letters the picture does not tell which of both is meant.
    """
    if not font.codepoints >= _BASIC:
        return True
    try:
        big = font.at(_PROBE_PX)
        pairs = [(_glyph(big, low), _glyph(big, low.upper())) for low in "aegr"]
    except OSError as error:
        logger.warning("font %s is left out: %s", font.path, error)
        return True
    if any(low is None or high is None for low, high in pairs):
        return True
    agreement = [
        float(np.mean(np.abs(low - high) < 0.5))
        for low, high in pairs
        if low is not None and high is not None
    ]
    return bool(np.mean(agreement) > _SMALL_CAPS_AGREEMENT)


def _is_fixed_width(font: Font) -> bool:
    face = font.at(_PROBE_PX)
    return len({face.getlength(char) for char in "il.MW@"}) == 1


def _glyph(font: ImageFont.FreeTypeFont, char: str) -> np.ndarray | None:
    """Return a character's ink scaled to one size, in [0, 1]; None where nothing is drawn."""
    image = Image.new("L", (3 * _PROBE_PX, 3 * _PROBE_PX))
    ImageDraw.Draw(image).text((_PROBE_PX, _PROBE_PX), char, font=font, fill=255)
    box = image.getbbox()
    if box is None:
        return None
    ink = image.crop(box).resize((24, 24), Image.Resampling.BILINEAR)
    return np.asarray(ink, dtype=np.float32) / 255
