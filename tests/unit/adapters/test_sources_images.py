"""Images as pages: modes, turns, frames, sizes, bombs."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from mdiff_adapters.errors import (
    CorruptDocumentError,
    InputTooLargeError,
    MDiffError,
    PageError,
)
from mdiff_adapters.segmenters import PageImage
from mdiff_adapters.sources import SourceLimits, open_source
from mdiff_core.imaging import to_rgb


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def load(data: Any, index: int = 0, **options: Any) -> PageImage:
    with open_source(data, **options) as document:
        return document.load(index)


def gray(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image.convert("L")).astype(int)


def corner_mark(size: tuple[int, int] = (200, 100)) -> Image.Image:
    """White with a black square in the top left corner."""
    image = Image.new("L", size, 255)
    image.paste(0, (0, 0, 40, 40))
    return image


def dark_corner(image: Image.Image) -> str:
    values = gray(image)
    half_y, half_x = (side // 2 for side in values.shape)
    quarters = {
        "top left": values[:half_y, :half_x],
        "top right": values[:half_y, half_x:],
        "bottom left": values[half_y:, :half_x],
        "bottom right": values[half_y:, half_x:],
    }
    return min(quarters, key=lambda name: quarters[name].mean())


# Orientation -> corner of the mark after the turn, size, degrees clockwise.
TURNS = {
    0: ("top left", (200, 100), 0),
    1: ("top left", (200, 100), 0),
    2: ("top right", (200, 100), 0),
    3: ("bottom right", (200, 100), 180),
    4: ("bottom left", (200, 100), 180),
    5: ("top left", (100, 200), 90),
    6: ("top right", (100, 200), 90),
    7: ("bottom right", (100, 200), 270),
    8: ("bottom left", (100, 200), 270),
    99: ("top left", (200, 100), 0),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_star_07_exif_turns_once(kind: str, orientation: int) -> None:
    corner, size, rotation = TURNS[orientation]
    if kind == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[0x0112] = orientation
        data = encode(corner_mark(), kind, tiffinfo=tags)
    else:
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(corner_mark().convert("RGB"), kind, exif=exif)
    page = load(data)
    assert (dark_corner(page.image), page.image.size, page.rotation) == (corner, size, rotation)


def test_a_damaged_exif_block_costs_nothing() -> None:
    data = encode(corner_mark(), "JPEG", exif=b"Exif\0\0garbage that is no TIFF")
    assert load(data).image.size == (200, 100)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_resolutions_swap_with_the_axes(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(corner_mark(), kind, exif=exif, dpi=(100, 90))
    for given in (data, Image.open(io.BytesIO(data))):
        page = load(given)
        assert page.image.size == (100, 200)
        assert page.size_pt == pytest.approx((100 * 72 / 90, 200 * 72 / 100))


@pytest.mark.parametrize(
    ("dpi", "expected"),
    [((300, 300), 300), (None, 200), ((0, 0), 200), ((1, 1), 200), ((100_000, 100_000), 200)],
)
def test_sizes_in_points_follow_a_believable_resolution(
    dpi: tuple[int, int] | None, expected: float
) -> None:
    page = load(encode(corner_mark(), "PNG", **({"dpi": dpi} if dpi else {})))
    assert page.size_pt == pytest.approx((200 * 72 / expected, 100 * 72 / expected), rel=1e-3)


def test_a_fax_is_stretched_to_square_pixels() -> None:
    page = load(encode(corner_mark(), "TIFF", dpi=(204, 98)))
    assert page.image.size == (200, 208)
    assert page.size_pt == pytest.approx((200 * 72 / 204, 100 * 72 / 98), rel=1e-3)


def ink_on_nothing(mode: str, ink: int = 0) -> Image.Image:
    """A square of ink on a transparent page."""
    rgba = Image.new("RGBA", (20, 20), (ink, ink, ink, 0))
    rgba.paste((ink, ink, ink, 255), (5, 5, 15, 15))
    if mode == "P":
        palette = Image.new("P", (20, 20), 0)
        palette.putpalette([0, 0, 0, ink, ink, ink])
        palette.paste(1, (5, 5, 15, 15))
        palette.info["transparency"] = 0
        return palette
    if mode == "L key":
        image = Image.new("L", (20, 20), 7)
        image.paste(ink, (5, 5, 15, 15))
        image.info["transparency"] = 7
        return image
    return rgba.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGBa", "L key"])
def test_star_08_transparency_is_paper(mode: str) -> None:
    values = gray(to_rgb(ink_on_nothing(mode)))
    assert (values.max(), values.min()) == (255, 0)
    assert values[0, 0] == 255
    assert values[10, 10] == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_white_ink_on_nothing_is_not_lost(mode: str) -> None:
    values = gray(to_rgb(ink_on_nothing(mode, ink=255)))
    assert values[10, 10] != values[0, 0]


def test_transparent_files_are_pages_on_white() -> None:
    for kind in ("PNG", "WEBP", "TIFF"):
        data = encode(
            ink_on_nothing("RGBA"), kind, **({"lossless": True} if kind == "WEBP" else {})
        )
        values = gray(load(data).image)
        assert (values[0, 0], values[10, 10]) == (255, 0)


def ramp(top: int, dtype: str) -> np.ndarray:
    return np.linspace(0, top, 64 * 64).reshape(64, 64).astype(dtype)


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("I;16", ramp(65535, "uint16")),
        ("I;16", ramp(4095, "uint16")),
        ("I;16", ramp(1023, "uint16")),
        ("I;16B", ramp(65535, ">u2")),
        ("I", ramp(65535, "int32")),
        ("I", ramp(255, "int32")),
        ("F", ramp(1, "float32")),
        ("F", ramp(255, "float32")),
        ("F", ramp(65535, "float32")),
    ],
)
def test_star_09_deep_images_keep_their_greys(mode: str, values: np.ndarray) -> None:
    if mode == "F" and values.max() == 1:
        values = np.linspace(0, 1, 64 * 64, dtype="float32").reshape(64, 64)
    image = Image.frombytes(mode, (64, 64), values.tobytes())
    result = gray(to_rgb(image))
    assert (result.min(), result.max()) == (0, 255)
    assert (np.diff(result.ravel()) >= 0).all()
    assert abs(int(result[32, 0]) - 128) <= 3


def test_negative_and_missing_values_of_float_images() -> None:
    values = np.array([[-5.0, np.nan], [np.inf, 250.0]], dtype="float32")
    result = gray(to_rgb(Image.fromarray(values)))
    assert result[1, 1] == 255
    assert result[0, 0] == 0


def test_a_dark_16_bit_page_is_not_stretched_into_noise() -> None:
    values = np.full((8, 8), 60_000, dtype="uint16")
    values[0, 0] = 59_000
    result = gray(to_rgb(Image.fromarray(values)))
    assert result.max() - result.min() <= 5


def test_16_bit_files_of_both_polarities() -> None:
    page = Image.fromarray(ramp(65535, "uint16"))
    assert gray(load(encode(page, "PNG")).image)[0, 0] == 0
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    assert gray(load(encode(page, "TIFF", tiffinfo=tags)).image)[0, 0] == 0
    data = bytearray(encode(page, "TIFF"))
    at = data.index(struct.pack("<HHI", 262, 3, 1))  # PhotometricInterpretation: black is zero
    data[at + 8 : at + 10] = struct.pack("<H", 0)
    assert gray(load(bytes(data)).image)[0, 0] == 255


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "LAB"])
def test_every_mode_shows_dark_on_light(mode: str) -> None:
    if mode == "LAB":
        image = Image.merge("LAB", [corner_mark(), *(Image.new("L", (200, 100), 128),) * 2])
    else:
        image = corner_mark().convert("RGB").convert(mode)
    values = gray(to_rgb(image))
    assert values[10, 10] < 30
    assert values[90, 190] > 225


def frames(*sizes: tuple[int, int]) -> list[Image.Image]:
    return [Image.new("L", size, 255 - 40 * n) for n, size in enumerate(sizes)]


def test_star_10_every_frame_of_a_tiff_is_a_page() -> None:
    sizes = ((40, 20), (30, 30), (20, 50))
    first, *others = frames(*sizes)
    data = encode(first, "TIFF", save_all=True, append_images=others)
    with open_source(data) as document:
        assert document.num_pages == 3
        for index in (2, 0, 1, 0):
            page = document.load(index)
            assert (page.index, page.label, page.image.size) == (
                index,
                str(index + 1),
                sizes[index],
            )
            assert gray(page.image)[0, 0] == 255 - 40 * index
    with open_source(data, pages="3") as document:
        assert document.page_indices == (2,)


def test_frames_of_a_gif_are_pages_and_animations_are_not() -> None:
    first, *others = frames((40, 20), (40, 20))
    gif = encode(first, "GIF", save_all=True, append_images=others)
    with open_source(gif) as document:
        assert document.num_pages == 2
        assert gray(document.load(1).image)[0, 0] == 215
        assert gray(document.load(0).image)[0, 0] == 255
    webp = encode(first.convert("RGB"), "WEBP", save_all=True, append_images=others)
    with open_source(webp) as document:
        assert document.num_pages == 1


def test_a_loop_in_the_chain_of_frames_ends() -> None:
    first, second = frames((8, 8), (8, 8))
    data = bytearray(encode(first, "TIFF", save_all=True, append_images=[second]))
    start = struct.unpack("<I", data[4:8])[0]
    entries = struct.unpack("<H", data[start : start + 2])[0]
    follow = start + 2 + 12 * entries
    next_ifd = struct.unpack("<I", data[follow : follow + 4])[0]
    count = struct.unpack("<H", data[next_ifd : next_ifd + 2])[0]
    at = next_ifd + 2 + 12 * count
    data[at : at + 4] = struct.pack("<I", start)  # the second frame points back at the first
    with open_source(bytes(data)) as document:
        assert document.num_pages == 2


def test_a_damaged_frame_costs_only_itself() -> None:
    first, second = frames((40, 20), (40, 20))
    data = encode(first, "TIFF", save_all=True, append_images=[second], compression="tiff_lzw")
    with Image.open(io.BytesIO(data)) as image:
        image.seek(1)
        [at] = image.tag_v2[273]
        [size] = image.tag_v2[279]
    broken = bytearray(data)
    broken[at : at + size] = b"\xff" * size
    with open_source(bytes(broken), name="two.tif") as document:
        assert document.load(0).image.size == (40, 20)
        with pytest.raises(PageError, match=r"two\.tif, page 2: the image cannot be decoded"):
            document.load(1)


def test_a_cut_jpeg_fails_its_page() -> None:
    data = encode(Image.effect_noise((300, 300), 80), "JPEG")
    with pytest.raises(PageError, match=r"cut\.jpg, page 1: .*truncated"):
        load(data[: len(data) // 2], name="cut.jpg")


def huge_png(width: int, height: int) -> bytes:
    """The header of a PNG that claims a size, and next to no data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b""))
    )


BOMB_GIF = (
    b"GIF89a\xff\xff\xff\xff\x80\0\0\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\x02D\x01\0;"
)


@pytest.mark.parametrize(
    "data", [BOMB_GIF, huge_png(30_000, 30_000), huge_png(12_000, 10_000)], ids=len
)
def test_star_11_bombs_are_typed_and_pillows_limit_stays(data: bytes) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        # 12000 x 10000 is in the zone where Pillow only warns; the test run makes that an error.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(InputTooLargeError, match=r"bomb\.png") as caught:
            load(data, name="bomb.png")
    assert limit == Image.MAX_IMAGE_PIXELS
    assert caught.value.hint


def test_bombs_are_refused_where_pillows_limit_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(InputTooLargeError):
        load(huge_png(30_000, 30_000))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_large_images_are_scaled_into_the_budget(kind: str) -> None:
    page = load(encode(corner_mark((2000, 1000)), kind), limits=SourceLimits(max_pixels=200_000))
    assert 150_000 < page.image.width * page.image.height <= 200_000
    assert page.size_pt == pytest.approx((720, 360))
    assert dark_corner(page.image) == "top left"
    [warning] = page.warnings
    assert "scaled from" in warning.message


def test_a_pillow_image_is_one_page_and_is_left_alone() -> None:
    image = ink_on_nothing("RGBA")
    before = image.tobytes()
    page = load(image)
    assert gray(page.image)[0, 0] == 255
    assert (image.mode, image.tobytes()) == ("RGBA", before)
    rgb = Image.new("RGB", (9, 9), "white")
    own = load(rgb).image
    own.paste("black", (0, 0, 9, 9))
    assert rgb.getpixel((0, 0)) == (255, 255, 255), "the page is a copy"


def test_a_pillow_image_from_a_file_keeps_its_frame_and_its_name(tmp_path: Any) -> None:
    path = tmp_path / "three.tif"
    first, *others = frames((40, 20), (30, 30), (20, 50))
    first.save(path, save_all=True, append_images=others)
    with Image.open(path) as image:
        image.seek(1)
        with open_source(image) as document:
            assert document.num_pages == 1
            assert document.source == str(path)
            assert document.load(0).image.size == (30, 30)
        assert image.tell() == 1


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_raise_only_typed_errors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "JPEG2000", "PPM")[seed % 8]
    data = bytearray(encode(corner_mark((60, 40)).convert("RGB"), kind))
    for at in rng.integers(0, len(data), 12):
        data[at] = rng.integers(0, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about what it then reads or refuses
        try:
            page = load(bytes(data[: rng.integers(30, len(data) + 1)]))
        except MDiffError:
            return
    assert page.image.mode == "RGB"


def test_error_kinds() -> None:
    with pytest.raises(CorruptDocumentError, match="damaged"):
        load(encode(corner_mark(), "PNG")[:20])
