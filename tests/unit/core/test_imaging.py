"""Image sizes and patches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mdiff_core.errors import ImageError
from mdiff_core.imaging import fit_edges, smart_size, to_patches, upright_rgb

LIMITS = {"min_pixels": 3136, "max_pixels": 1605632}


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((1036, 1036), (1036, 1036)),
        ((390, 37), (392, 28)),
        ((61, 29), (84, 56)),  # below 4 tokens: enlarged
        ((5000, 5000), (1260, 1260)),  # above 2048 tokens: shrunk
        ((42, 4000), (56, 4004)),  # 1.5 tokens: half to even
    ],
)
def test_sizes(size: tuple[int, int], want: tuple[int, int]) -> None:
    assert smart_size(*size, factor=28, **LIMITS) == want


@settings(max_examples=200)
@given(width=st.integers(28, 20000), height=st.integers(28, 20000))
def test_sizes_are_tokens_within_limits(width: int, height: int) -> None:
    if max(width, height) > 50 * min(width, height):
        return
    w, h = smart_size(width, height, factor=28, **LIMITS)
    assert w % 28 == h % 28 == 0
    assert 4 <= w * h // 784 <= 2048


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((3000, 10), (3000, 60)),
        ((10, 3000), (60, 3000)),
        ((1000, 10), (1400, 28)),
        ((100, 7), (400, 28)),
        ((500_000, 1), (32768, 656)),
    ],
)
def test_edges(size: tuple[int, int], want: tuple[int, int]) -> None:
    fitted = fit_edges(Image.new("RGB", size, "black"))
    assert fitted.size == want
    if max(size) > 50 * min(size):
        assert np.asarray(fitted).max() == 255  # padded on white


def test_patches_are_ordered_by_merge_window() -> None:
    rows = np.arange(4).repeat(14)[:, None] * 16
    cols = np.arange(4).repeat(14)[None, :]
    image = Image.fromarray((rows + cols).astype(np.uint8))
    patches = to_patches(image, patch_size=14, merge_size=2, min_pixels=1, max_pixels=10**6)
    order = patches.pixels[:, 0].tolist()
    assert order == [0, 1, 16, 17, 2, 3, 18, 19, 32, 33, 48, 49, 34, 35, 50, 51]
    assert (patches.pixels == patches.pixels[:, :1]).all()


def test_an_image_is_looked_at_upright_on_white(tmp_path: Path) -> None:
    ink = Image.new("LA", (40, 200), (0, 0))
    ink.paste((0, 255), (0, 0, 40, 20))
    exif = Image.Exif()
    exif[0x112] = 6
    ink.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        values = np.asarray(upright_rgb(image).convert("L"))
    assert values.shape == (40, 200)  # turned to the right, so that its head is on the right
    assert values[:, 190].max() == 0 and values[:, 10].min() == 255
    deep = Image.fromarray(np.array([[0, 1000, 65535]], np.uint16).repeat(30, 0).repeat(30, 1))
    levels = np.asarray(upright_rgb(deep))[0, [0, 40, 80], 0]
    assert levels.tolist() == [0, 4, 255]


@pytest.mark.parametrize("image", [None, "scan.png", Image.new("RGB", (0, 10))])
def test_what_is_no_image(image: object) -> None:
    with pytest.raises(ImageError):
        to_patches(image, patch_size=14, merge_size=2, **LIMITS)  # type: ignore[arg-type]
