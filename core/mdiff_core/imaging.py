"""Image preparation: PIL image in, uint8 patches in merge-window order out. Loads no torch.

The pixels stay uint8 until they are on the device; normalisation happens there
(:meth:`mdiff_core.models.vision.VisionTower.normalize`).

Source: the reference processor's behaviour (Qwen2-VL, slow variant), held to its recorded outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps

from mdiff_core.errors import ImageError

MAX_EDGE_RATIO = 50
MIN_EDGE_PX = 28
MAX_EDGE_PX = 2**15
"""Longest side that is prepared as it is; the released model sees 9 000 px at most."""

_ORIENTATION_TAG = 0x0112
_PHOTOMETRIC_TAG = 262


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
    if max(image.size) > MAX_EDGE_PX:
        # Such a strip, padded to 50:1, would not fit any memory.
        scale = MAX_EDGE_PX / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BICUBIC)
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
        image: Image of any mode, see :func:`to_rgb`.
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
    rgb = fit_edges(to_rgb(image))
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


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 where it is absent, illegal or cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - EXIF blocks are often damaged, the pixels are not
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    """Undo an EXIF orientation of 1 to 8."""
    method = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return an opened image as it is to be looked at: turned by its EXIF orientation, in RGB.

    Args:
        image: Image of any mode.

    Returns:
        RGB image.

    Raises:
        ImageError: If it has no pixels or cannot be decoded.
    """
    orientation = exif_orientation(image)
    load_image(image)
    rgb = to_rgb(image)
    # Pillow turns a TIFF while loading it.
    return rgb if image.format == "TIFF" else turn_upright(rgb, orientation)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB as a reader would see it on white paper.

    Transparency is laid on white; 16-bit, 32-bit and float images are scaled to 8 bit, which
    Pillow's own conversion clips; Lab goes through a colour profile.

    Args:
        image: Image of any mode.

    Returns:
        RGB image; the same object where it is RGB already.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_depth(image)
    if _is_transparent(image):
        return _on_white(image)
    if image.mode == "RGB":
        return image
    if image.mode == "LAB":
        profile = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, *profile, outputMode="RGB")
        if converted is not None:
            return converted
    return image.convert("RGB")


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _on_white(image: Image.Image) -> Image.Image:
    # LA, PA and colour keys (PNG tRNS) reach RGBA by different ways inside Pillow; all do.
    rgba = image.convert("RGBA")
    page = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    page.alpha_composite(rgba)
    rgb = page.convert("RGB")
    if _is_uniform(rgb) and not _is_uniform(rgba.getchannel("A")):
        # White ink on nothing would vanish on white paper.
        page = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        page.alpha_composite(rgba)
        rgb = ImageOps.invert(page.convert("RGB"))
    return rgb


def _is_uniform(image: Image.Image) -> bool:
    values = np.asarray(image)
    return bool((values == values[:1, :1]).all())


def _scale_depth(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if low < 0:
        values, high = values - low, high - low
    values *= 255.0 / _white_level(image.mode, high)
    if _is_white_zero(image):
        values = 255.0 - values
    gray = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")


def _white_level(mode: str, high: float) -> float:
    """Return the value that is white: the top of the smallest bit depth that holds the values.

    Scanners store 10 or 12 bits in 16; stretching to the brightest pixel instead would turn a
    dark, empty page into noise.
    """
    if mode == "F" and high <= 1.0:
        return 1.0
    for bits in (8, 10, 12, 14, 16, 24):
        if high <= 2**bits - 1:
            return float(2**bits - 1)
    return high


def _is_white_zero(image: Image.Image) -> bool:
    # Pillow inverts 8-bit TIFFs of this kind by itself, not those of 16 bits.
    tags: Any = getattr(image, "tag_v2", None)
    return tags is not None and image.mode.startswith("I;16") and tags.get(_PHOTOMETRIC_TAG) == 0
