"""Text lines on a page image: RapidOCR's detector, one per process.

The detector and the small classifier that tells upright lines from upside-down ones run on ONNX
Runtime; their weights are in RapidOCR's wheel, so nothing is fetched.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mdiff_adapters.errors import EngineUnavailableError
from mdiff_adapters.forks import ForkSafeLock
from mdiff_adapters.segmenters.config import omp_num_threads

__all__ = ["LineDetector", "line_detector"]

Pixels = npt.NDArray[np.uint8]
Quads = npt.NDArray[np.float32]

USUAL_SIDE_PX = 1280
"""Longest side of a page that the detector looks at first. It was trained on images of about this
size: on larger ones it takes longer and overlooks short lines on an empty page."""
LARGE_SIDE_PX = 1984
"""The same for pages of small print; below the detector's own bound of 2000."""
SMALL_PRINT_PX = 14
"""Line height, in px of the image looked at, below which a page is looked at again, larger."""


class LineDetector:
    """Finds text lines and tells whether lines stand on their heads. Thread-safe.

    Args:
        num_threads: Threads of ONNX Runtime for one call; None leaves the choice to it.

    Raises:
        EngineUnavailableError: If RapidOCR or its weights are not installed.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        # RapidOCR keeps per-call state on its objects.
        self._lock = threading.Lock()
        self._ocr = _load_rapidocr(num_threads)

    def detect(self, rgb: Pixels) -> Quads:
        """Find the text lines of a page.

        Args:
            rgb: Page, height x width x 3.

        Returns:
            (n, 4, 2) corners in px as (x, y), clockwise from the corner that is top left for
            horizontal text; n may be 0.
        """
        quads, scale = self._detect(rgb, USUAL_SIDE_PX)
        if scale < 1.0 and _line_height(quads) * scale < SMALL_PRINT_PX:
            larger, _ = self._detect(rgb, LARGE_SIDE_PX)
            if len(larger) >= len(quads):
                return larger
        return quads

    def _detect(self, rgb: Pixels, side_px: int) -> tuple[Quads, float]:
        """Return the lines found, in px of the page, and the scale it was looked at."""
        import cv2

        height, width = rgb.shape[:2]
        scale = min(1.0, side_px / max(height, width))
        if scale < 1.0:
            # By area: the detector's own bilinear shrink loses thin strokes of bilevel scans.
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            rgb = np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
        bgr = np.ascontiguousarray(rgb[:, :, ::-1])
        with self._lock:
            found = self._ocr(bgr, use_det=True, use_cls=False, use_rec=False)
        boxes = getattr(found, "boxes", None)
        if boxes is None or len(boxes) == 0:
            return np.zeros((0, 4, 2), dtype=np.float32), scale
        factor = np.array([width / rgb.shape[1], height / rgb.shape[0]], dtype=np.float32)
        return np.asarray(boxes, dtype=np.float32) * factor, scale

    def upside_down_share(self, lines: Sequence[Pixels]) -> float:
        """Return how sure the classifier is that lines stand on their heads.

        Args:
            lines: RGB or grey crops of lines, each horizontal.

        Returns:
            Mean probability in [0, 1] over the lines; 0 where there are none.
        """
        shares = []
        for line in lines:
            crop = line if line.ndim == 3 else np.repeat(line[:, :, None], 3, axis=2)
            with self._lock:
                found = self._ocr(
                    np.ascontiguousarray(crop), use_det=False, use_cls=True, use_rec=False
                )
            for label, score in getattr(found, "cls_res", None) or ():
                shares.append(float(score) if label == "180" else 1.0 - float(score))
        return sum(shares) / len(shares) if shares else 0.0


def _line_height(quads: Quads) -> float:
    """Return the median short side of boxes, 0 where there are none."""
    if len(quads) == 0:
        return 0.0
    sides = np.linalg.norm(quads[:, [1, 3]] - quads[:, [0]], axis=2)
    return float(np.median(sides.min(axis=1)))


def _load_rapidocr(num_threads: int | None) -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise EngineUnavailableError(
            f"the text-line detector cannot be loaded: {error}",
            hint="pip install rapidocr onnxruntime opencv-python-headless",
        ) from error
    params: dict[str, Any] = {"Global.log_level": "error", "Global.use_rec": False}
    if num_threads is not None:
        threads = max(1, min(num_threads, os.cpu_count() or 1))
        params["EngineConfig.onnxruntime.intra_op_num_threads"] = threads
    return RapidOCR(params=params)


_lock = ForkSafeLock()
_detectors: dict[int, LineDetector] = {}


def line_detector() -> LineDetector:
    """Return the detector of this process, built on first use.

    It takes as many threads as torch where torch is loaded, else ``OMP_NUM_THREADS``.
    """
    # By process: an ONNX Runtime session with its threads does not survive a fork.
    pid = os.getpid()
    with _lock:
        if pid not in _detectors:
            torch = sys.modules.get("torch")
            threads = torch.get_num_threads() if torch is not None else omp_num_threads()
            _detectors[pid] = LineDetector(threads)
        return _detectors[pid]
