"""OCR engines side by side in one docling pipeline, in one process, interleaved.

Every engine reads the same page images under the same layout (one text region a page), so that the
figures are those of the OCR stage: seconds a page and character error against the known text.

Run it with a folder of scans that have their text beside them (``NAME.tif``, ``NAME.txt``), and of
born-digital PDFs, which are turned into pixels and whose own text is the truth::

    python plugins/docling-mdiff/benchmarks/ocr_side_by_side.py FOLDER [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import re
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pypdfium2
from docling.datamodel.base_models import Cluster, InputFormat, LayoutPrediction
from docling.datamodel.pipeline_options import (
    BaseLayoutOptions,
    OcrMode,
    OcrOptions,
    RapidOcrOptions,
    TesseractCliOcrOptions,
    ThreadedPdfPipelineOptions,
)
from docling.datamodel.settings import settings
from docling.document_converter import DocumentConverter, ImageFormatOption
from docling.models.base_layout_model import BaseLayoutModel
from docling.models.factories import get_layout_factory
from docling_core.types.doc import BoundingBox, DocItemLabel
from PIL import Image
from rapidfuzz.distance import Levenshtein

from docling_mdiff import MDiffOcrOptions

SCAN_DPI = 300
PDF_PAGES = 1
MIN_CHARS = 500
MAX_SIDE_PT = 1000


class WholePageOptions(BaseLayoutOptions):
    """Options of a layout that knows nothing."""

    kind: ClassVar[str] = "whole_page"


class WholePageLayout(BaseLayoutModel):
    """Takes every page for one text region."""

    def __init__(self, **_: Any) -> None:
        """Take docling's arguments and need none of them."""

    @classmethod
    def get_options_type(cls) -> type[WholePageOptions]:
        """Return the options class."""
        return WholePageOptions

    def predict_layout(self, conv_res: Any, pages: Any) -> list[LayoutPrediction]:
        """Return one cluster a page."""
        return [
            LayoutPrediction(
                clusters=[
                    Cluster(
                        id=0,
                        label=DocItemLabel.TEXT,
                        bbox=BoundingBox(l=0, t=0, r=page.size.width, b=page.size.height),
                    )
                ]
            )
            for page in pages
        ]


def engines() -> dict[str, OcrOptions]:
    """Return the engines that can run here without a network."""
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    found: dict[str, OcrOptions] = {
        "mdiff_ocr (tiny)": MDiffOcrOptions(engine="tiny"),
        "RapidOCR": RapidOcrOptions(
            backend="onnxruntime",
            det_model_path=str(next(models.glob("*det*.onnx"))),
            rec_model_path=str(next(models.glob("*rec*.onnx"))),
            cls_model_path=str(next(models.glob("*cls*.onnx"))),
        ),
        "Tesseract": TesseractCliOcrOptions(lang=["eng"]),
    }
    for options in found.values():
        options.mode = OcrMode.FULL_PAGE
    return found


def converter(options: OcrOptions) -> DocumentConverter:
    """Return a converter that only differs in its OCR engine."""
    pipeline = ThreadedPdfPipelineOptions(
        allow_external_plugins=True,
        ocr_options=options,
        layout_options=WholePageOptions(),
        do_table_structure=False,
    )
    return DocumentConverter(
        allowed_formats=[InputFormat.IMAGE],
        format_options={InputFormat.IMAGE: ImageFormatOption(pipeline_options=pipeline)},
    )


def pages(folder: Path, work: Path) -> dict[str, tuple[Path, str]]:
    """Return page images with their text: scans, and PDF pages turned into pixels."""
    found = {}
    for path in sorted(folder.glob("*.tif")):
        if (truth := path.with_suffix(".txt")).is_file():
            with Image.open(path) as scan:
                scan.convert("L").save(work / f"{path.stem}.png", dpi=(SCAN_DPI, SCAN_DPI))
            found[path.stem] = (work / f"{path.stem}.png", truth.read_text("utf-8"))
    for path in sorted(folder.glob("*.pdf")):
        for index in range(PDF_PAGES):
            try:
                document = pypdfium2.PdfDocument(path)
                page = document[index]
                truth = page.get_textpage().get_text_bounded()
            except (pypdfium2.PdfiumError, IndexError):
                break  # encrypted, broken, or at its end
            if len(truth) < MIN_CHARS or max(page.get_size()) > MAX_SIDE_PT:
                continue
            name = f"{path.stem} p{index + 1}"
            image = page.render(scale=SCAN_DPI / 72).to_pil().convert("L")
            image.save(work / f"{name}.png", dpi=(SCAN_DPI, SCAN_DPI))
            found[name] = (work / f"{name}.png", truth)
    return found


def char_error(text: str, truth: str) -> float:
    """Return the edit distance as a share of the truth; white space and line hyphens made equal."""

    def plain(value: str) -> str:
        value = re.sub(r"[-\u00ad\ufffe\x02]\s*\n", "", value)
        return " ".join(value.translate(str.maketrans("“”‘’–—•", "\"\"''--·")).split())

    return Levenshtein.distance(plain(text), plain(truth)) / len(plain(truth))


def main() -> None:
    """Run and print a table, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    settings.debug.profile_pipeline_timings = True
    get_layout_factory(allow_external_plugins=True).register(WholePageLayout, "benchmark", __name__)
    converters = {name: converter(options) for name, options in engines().items()}
    seconds: dict[tuple[str, str], list[float]] = {}
    errors: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as work:
        documents = pages(arguments.folder, Path(work))
        for number in range(arguments.rounds + 1):
            for page, (path, truth) in documents.items():
                for engine, convert in converters.items():
                    result = convert.convert(path)
                    text = " ".join(item.text for item in result.document.texts)
                    errors[engine, page] = char_error(text, truth)
                    if number:  # the first round warms up
                        seconds.setdefault((engine, page), []).append(
                            sum(result.timings["ocr"].times)
                        )
    out = sys.stdout.write
    out(f"{platform.machine()}, {platform.platform()}, docling {version('docling-slim')}\n\n")
    out("| page | " + " | ".join(f"{e}: s, error" for e in converters) + " |\n")
    out("|---|" + "---|" * len(converters) + "\n")
    for page in documents:
        row = [
            f"{statistics.median(seconds[e, page]):.2f}, {errors[e, page]:.2%}" for e in converters
        ]
        out(f"| {page} | " + " | ".join(row) + " |\n")
    mean = {
        engine: {
            "seconds_a_page": round(
                statistics.mean(statistics.median(seconds[engine, p]) for p in documents), 3
            ),
            "char_error": round(statistics.mean(errors[engine, p] for p in documents), 4),
        }
        for engine in converters
    }
    out(
        "| mean | "
        + " | ".join(f"{m['seconds_a_page']:.2f}, {m['char_error']:.2%}" for m in mean.values())
        + " |\n"
    )
    out(json.dumps({"rounds": arguments.rounds, "pages": len(documents), "mean": mean}) + "\n")


if __name__ == "__main__":
    main()
