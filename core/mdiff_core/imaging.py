"""Image preparation: PIL image in, uint8 patches in merge-window order out. Loads no torch.

The pixels stay uint8 until they are on the device; normalisation happens there
(:meth:`mdiff_core.models.vision.VisionTower.normalize`).

Source: the reference processor's behaviour (Qwen2-VL, slow variant), held to its recorded outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from mdiff_core.errors import ImageError

MAX_EDGE_RATIO = 50
MIN_EDGE_PX = 28


@dataclass(frozen=True, slots=True)
class Patches:
    """One prepared image.

    Attributes:
        pixels: (rows * cols, 3 * patch * patch) uint8, each patch as (channel, y, x), patches in
            the order (row pair, col pair, row in pair, col in pair).
        rows: Patch rows, even.
        cols: Patch columns, even.
    """

    pixels: npt.NDArray[np.uint8]
    rows: int
    cols: int


def smart_size(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the size in px that an image is resized to before it is cut into patches.

    Both sides become multiples of ``factor``; the area is brought into the limits with the aspect
    ratio kept.

    Args:
        width: Image width in px.
        height: Image height in px.
        factor: Side of one image token in px (patch size times merge size).
        min_pixels: Smallest area in px.
        max_pixels: Largest area in px.

    Returns:
        ``(width, height)`` in px.
    """
    # Python's round (half to even) is what the reference uses.
    new_h = max(factor, round(height / factor) * factor)
    new_w = max(factor, round(width / factor) * factor)
    if new_h * new_w > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        new_h = max(factor, math.floor(height / scale / factor) * factor)
        new_w = max(factor, math.floor(width / scale / factor) * factor)
    elif new_h * new_w < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        new_h = math.ceil(height * scale / factor) * factor
        new_w = math.ceil(width * scale / factor) * factor
    return new_w, new_h


def fit_edges(image: Image.Image) -> Image.Image:
    """Pad an RGB image beyond 50:1 on white to 50:1, then enlarge a short side below 28 px."""
    width, height = image.size
    if max(width, height) > MAX_EDGE_RATIO * min(width, height):
        short = math.ceil(max(width, height) / MAX_EDGE_RATIO)
        size = (width, short) if width > height else (short, height)
        padded = Image.new("RGB", size, (255, 255, 255))
        padded.paste(image, ((size[0] - width) // 2, (size[1] - height) // 2))
        image = padded
    if min(image.size) < MIN_EDGE_PX:
        scale = MIN_EDGE_PX / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    return image


def load_image(image: Image.Image) -> None:
    """Decode an image now. Pillow decodes lazily and not thread-safely, so this comes first.

    Raises:
        ImageError: If ``image`` is not an image, has no pixels, or cannot be decoded.
    """
    if not isinstance(image, Image.Image):
        raise ImageError(f"a request needs a PIL image, got {type(image).__name__}")
    if min(image.size) < 1:
        raise ImageError(f"image of {image.width}x{image.height} px has no pixels")
    try:
        image.load()
    except Exception as error:  # decoders raise whatever they like on broken bytes
        raise ImageError(f"image cannot be decoded: {error}") from error


def to_patches(
    image: Image.Image, *, patch_size: int, merge_size: int, min_pixels: int, max_pixels: int
) -> Patches:
    """Resize an image and cut it into patches.

    Args:
        image: Image of any mode; converted to RGB.
        patch_size: Side of a patch in px.
        merge_size: Patches a side of one image token.
        min_pixels: Smallest area in px after resizing.
        max_pixels: Largest area in px after resizing.

    Returns:
        The patches.

    Raises:
        ImageError: If ``image`` is not an image, has no pixels, or cannot be decoded.
    """
    load_image(image)
    rgb = fit_edges(image if image.mode == "RGB" else image.convert("RGB"))
    size = smart_size(
        *rgb.size, factor=patch_size * merge_size, min_pixels=min_pixels, max_pixels=max_pixels
    )
    if size != rgb.size:
        rgb = rgb.resize(size, Image.Resampling.BICUBIC)
    array = np.asarray(rgb, dtype=np.uint8)
    rows, cols = size[1] // patch_size, size[0] // patch_size
    m, p = merge_size, patch_size
    tiles = array.reshape(rows // m, m, p, cols // m, m, p, 3)
    order = tiles.transpose(0, 3, 1, 4, 6, 2, 5)
    return Patches(np.ascontiguousarray(order).reshape(rows * cols, 3 * p * p), rows, cols)
