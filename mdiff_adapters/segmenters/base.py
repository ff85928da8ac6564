"""What a segmenter gets and gives: page images in, parsed pages out.

A segmenter decides what an engine is asked about a page. It sees a window of pages at once, so that
the requests of all of them can share the engine's batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from mdiff_adapters.document import ErrorRecord, ParsedPage
from mdiff_adapters.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

    from mdiff_adapters.engines.base import DecodeConfig, Engine

__all__ = ["PageImage", "Segmenter", "SegmenterOptions"]


@dataclass(eq=False, kw_only=True)
class PageImage:
    """One rendered page.

    Attributes:
        index: 0-based index in the document.
        label: Page label as printed, the 1-based number where there is none.
        image: RGB pixels, upright as the file says (``/Rotate`` and EXIF applied).
        size_pt: Width and height in PDF points (1/72 inch) of the upright page.
        rotation: The turn that was applied, in degrees clockwise.
        source: The document's path, URL or name.
        stem: File stem of the document, safe as a file name.
        warnings: What was repaired or reduced on the way, for example a lowered resolution.
    """

    index: int
    label: str
    image: Image.Image = field(repr=False)
    size_pt: tuple[float, float]
    rotation: int = 0
    source: str = ""
    stem: str = ""
    warnings: tuple[ErrorRecord, ...] = ()

    @property
    def dpi(self) -> float:
        """Pixels per inch of the image, by its width."""
        return self.image.width * 72.0 / self.size_pt[0] if self.size_pt[0] > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterOptions:
    """Options of a segmenter that do not change what is asked.

    Attributes:
        images: ``embed`` keeps PNG bytes of figure crops in ``Region.image``; ``none`` does not.
    """

    images: Literal["none", "embed"] = "none"

    def __post_init__(self) -> None:
        if self.images not in ("none", "embed"):
            raise ConfigError(
                f"images = {self.images!r} is unknown", hint="allowed: 'none', 'embed'"
            )


@runtime_checkable
class Segmenter(Protocol):
    """Turns page images into parsed pages with the help of an engine."""

    @property
    def name(self) -> str:
        """The name it is registered under."""
        ...

    def read(
        self,
        pages: Sequence[PageImage],
        engine: Engine,
        decode: DecodeConfig,
        options: SegmenterOptions,
    ) -> list[ParsedPage]:
        """Read a window of pages with one engine call where the task allows it.

        Args:
            pages: Pages of one document, in order.
            engine: Answers the requests.
            decode: Decoding settings of every request.
            options: See :class:`SegmenterOptions`.

        Returns:
            One parsed page for each page image, in order. A page or region that fails is recorded
            in its place and never raises.

        Raises:
            EngineError: If the engine as a whole cannot answer.
        """
        ...
