"""The model's reading order inside of docling's reading-order stage.

docling orders the elements of a page by geometry. The model answers its regions in reading order,
which our layout engine keeps on the clusters; this stage uses it where a page has it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from typing import Any

from docling.datamodel.document import ConversionResult
from docling.models.postprocessing.reading_order_rb import PageElement, ReadingOrderPredictor
from docling.models.stages.reading_order.readingorder_model import (
    ReadingOrderModel,
    ReadingOrderOptions,
)

from docling_mdiff.convert import MDiffCluster


class OrderedElement(PageElement):
    """docling's reading-order element with the model's position, None where it has none."""

    order: int | None = None


class ModelOrderPredictor(ReadingOrderPredictor):
    """Orders pages by the model where it gave an order, all others as docling does."""

    def predict_reading_order(
        self, page_elements: list[PageElement], **separators: Any
    ) -> list[PageElement]:
        """Return the elements in reading order.

        An element without a position (docling makes one of text that no region holds) comes right
        after the element that precedes it geometrically.
        """
        geometric = super().predict_reading_order(page_elements, **separators)
        pages: dict[int, list[PageElement]] = defaultdict(list)
        for element in geometric:
            pages[element.page_no].append(element)
        return [element for page_no in sorted(pages) for element in _by_model_order(pages[page_no])]

    def predict_merges(self, sorted_elements: list[PageElement]) -> dict[int, list[int]]:
        """Return which paragraphs go on in which others, across columns and pages.

        docling also joins a paragraph that has no full stop with one that begins with a capital
        letter, which in the model's order is often the text of a figure in between.
        """
        texts = {element.cid: element.text.lstrip() for element in sorted_elements}
        merges = super().predict_merges(sorted_elements)
        kept = {
            cid: list(takewhile(lambda target: texts[target][:1].islower(), targets))
            for cid, targets in merges.items()
        }
        return {cid: targets for cid, targets in kept.items() if targets}


def _by_model_order(geometric: list[PageElement]) -> list[PageElement]:
    positions: list[tuple[int, int]] = []
    last = -1
    for index, element in enumerate(geometric):
        order = getattr(element, "order", None)
        if order is not None:
            last = order
        # Behind its predecessor (0) and in geometric order among other strays (index + 1).
        positions.append((last, 0 if order is not None else index + 1))
    ranked = sorted(range(len(geometric)), key=positions.__getitem__)
    return [geometric[i] for i in ranked] if last >= 0 else geometric


class MDiffReadingOrderModel(ReadingOrderModel):
    """docling's reading-order stage with :class:`ModelOrderPredictor`.

    Args:
        options: Options of docling's stage.
    """

    def __init__(self, options: ReadingOrderOptions) -> None:
        super().__init__(options)
        self.ro_model = ModelOrderPredictor()

    def _assembled_to_readingorder_elements(self, conv_res: ConversionResult) -> list[PageElement]:
        plain = super()._assembled_to_readingorder_elements(conv_res)
        return [
            OrderedElement(**dict(element), order=_order(source.cluster))
            for element, source in zip(plain, conv_res.assembled.elements, strict=True)
        ]


def _order(cluster: Any) -> int | None:
    known = isinstance(cluster, MDiffCluster) and cluster.order >= 0
    return cluster.order if known else None
