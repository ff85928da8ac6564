"""A segmenter without layout: the page is one region and one request."""

from collections.abc import Sequence

from mdiff_adapters.document import BBox, ErrorRecord, ParsedPage, Region
from mdiff_adapters.engines import Answer, DecodeConfig, Engine, Request
from mdiff_adapters.segmenters.base import PageImage, SegmenterOptions


class WholePage:
    """Asks for each page as one text; all pages of a window go to the engine together."""

    name = "whole-page"

    def read(
        self,
        pages: Sequence[PageImage],
        engine: Engine,
        decode: DecodeConfig,
        options: SegmenterOptions,
    ) -> list[ParsedPage]:
        """Return one parsed page for each page image."""
        requests = [
            Request(
                id=str(page.index),
                image=page.image,
                decode=decode,
                origin={"source": page.source, "stem": page.stem, "page": page.index},
            )
            for page in pages
        ]
        answers = {answer.id: answer for answer in engine.answer(requests)}
        return [_parsed(page, answers[str(page.index)]) for page in pages]


def _parsed(page: PageImage, answer: Answer) -> ParsedPage:
    error = None
    if answer.error is not None:
        kind = type(answer.error).__name__
        error = ErrorRecord(kind=kind, message=str(answer.error), page=page.index)
    text = answer.text.strip()
    region = Region(
        id=f"p{page.index}r0",
        order=0,
        type="text",
        bbox=BBox(0.0, 0.0, 1.0, 1.0),
        text=text,
        confidence=answer.confidence,
        finish_reason=answer.finish_reason,
        raw=answer.text,
    )
    return ParsedPage(
        index=page.index,
        label=page.label,
        size_px=page.image.size,
        size_pt=page.size_pt,
        rotation=page.rotation,
        regions=(region,) if text else (),
        status="failed" if error else "ok" if text else "blank",
        error=error,
        num_tokens=answer.num_tokens,
        num_forwards=answer.num_forwards,
    )
