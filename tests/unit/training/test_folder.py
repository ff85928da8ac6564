"""People's own data: what is read, what is refused, and how lines are cut with their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mdiff_adapters.layout import parse_layout
from mdiff_core.config import Capabilities
from mdiff_core.errors import ConfigError, ImageError
from mdiff_core.training.data import build_source
from mdiff_core.training.data.folder import FolderSource, read_labels, split_line
from mdiff_core.training.data.fonts import _pillow_font

from .conftest import REGION, SEGMENT


def draw_text(text: str, size: int = 28) -> Image.Image:
    font = _pillow_font().at(size)
    image = Image.new("L", (round(font.getlength(text)) + 16, round(size * 1.3)), 250)
    ImageDraw.Draw(image).text((8, 2), text, font=font, fill=10)
    return image


def write(folder: Path, records: list[dict[str, Any]], **images: Image.Image) -> Path:
    folder.mkdir(exist_ok=True)
    for name, image in images.items():
        image.save(folder / f"{name}.png")
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "labels.jsonl").write_text(lines, encoding="utf-8")
    return folder


def open_folder(folder: Path, unit: Capabilities = REGION, **options: Any) -> FolderSource:
    source = build_source("folder", {"path": str(folder), **options}, unit)
    assert isinstance(source, FolderSource)
    return source


def test_crops_come_once_an_epoch_in_a_new_order(tmp_path: Path) -> None:
    texts = [f"line {i}" for i in range(6)]
    records = [{"image": f"i{i}.png", "text": text} for i, text in enumerate(texts)]
    images = {f"i{i}": draw_text(text) for i, text in enumerate(texts)}
    source = open_folder(write(tmp_path, records, **images))
    epochs = [[source.sample(1, 6 * epoch + i).text for i in range(6)] for epoch in range(3)]
    assert all(sorted(epoch) == texts for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    in_order = open_folder(tmp_path, shuffle=False)
    assert [in_order.sample(1, i).text for i in range(6)] == texts


def test_a_page_gives_its_layout_and_its_regions(tmp_path: Path) -> None:
    page = Image.new("RGB", (400, 600), "white")
    page.paste((255, 0, 0), (40, 60, 200, 120))
    regions = [
        {"type": "title", "bbox": [0.1, 0.1, 0.5, 0.2], "text": "A title"},
        {"type": "image", "bbox": [0.1, 0.3, 0.5, 0.4]},
        {"type": "table", "bbox": [0.1, 0.5, 0.9, 0.6], "text": "<fcel>x<nl>", "angle": 90},
        {"type": "equation", "bbox": [0.1, 0.7, 0.9, 0.8], "text": "x^2"},
    ]
    write(tmp_path, [{"image": "page.png", "regions": regions}], page=page)
    source = open_folder(tmp_path, shuffle=False, layout_px=280)
    layout, title, table, formula = (source.sample(0, i) for i in range(4))
    assert len(source) == 4
    assert layout.image.size == (280, 280) and layout.task == "layout"
    assert layout.text.split("\n")[1] == (
        "<|box_start|>100 300 500 400<|box_end|><|ref_start|>image<|ref_end|><|rotate_up|>"
    )
    assert (title.text, title.task, title.image.size) == ("A title", "text", (160, 60))
    assert (np.asarray(title.image) == (255, 0, 0)).all()
    assert (table.task, table.image.size) == ("table", (60, 320))
    assert (formula.task, formula.text) == ("formula", "x^2")
    assert len(open_folder(tmp_path, layout=False)) == 3


def test_lines_json_is_read_too(tmp_path: Path) -> None:
    draw_text("abc").save(tmp_path / "0.png")
    entries = [{"file": "0.png", "text": "abc", "src": "x.pdf", "page": 1}]
    (tmp_path / "lines.json").write_text(json.dumps(entries))
    (record,) = read_labels(tmp_path)
    assert (record.text, record.task) == ("abc", "text")


def test_skipped_records_and_unknown_tasks_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [
        {"image": "a.png", "text": "kept"},
        {"image": "a.png", "text": "gone", "status": "skip"},
        {"image": "a.png", "text": "<fcel>a<nl>", "task": "table"},
    ]
    write(tmp_path, records, a=draw_text("kept"))
    assert len(open_folder(tmp_path)) == 2
    assert len(open_folder(tmp_path, SEGMENT)) == 1
    assert "1 of 2 samples ask for tasks this checkpoint does not know" in caplog.text


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "no image"}, "line 1: a record names its image"),
        ({"image": "none.png", "text": "x"}, "none.png is not there"),
        ({"image": "a.png"}, "a record has a text"),
        ({"image": "a.png", "text": "x", "task": "read"}, "one of the tasks"),
        ({"image": "a.png", "regions": [{"type": "text"}]}, "a region has a type and a bbox"),
        (
            {"image": "a.png", "regions": [{"type": "text", "bbox": [0, 0, 40, 50]}]},
            "is not inside the page",
        ),
        *(
            (
                {"image": "a.png", "regions": [{"type": "text", "bbox": [0, 0, 1, 1], "angle": a}]},
                "the angle .* is none of 0, 90, 180, 270",
            )
            for a in (None, "left", 45)
        ),
        ({"image": "a.png", "text": "x", "consistency": "high"}, "no number in"),
    ],
)
def test_wrong_records_are_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    write(tmp_path, [record], a=draw_text("a"))
    with pytest.raises(ConfigError, match=message):
        read_labels(tmp_path)


def test_missing_labels_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no labels"):
        read_labels(tmp_path)
    (tmp_path / "labels.jsonl").write_text("{broken")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_labels(tmp_path)


def test_label_files_are_read_as_people_save_them(tmp_path: Path) -> None:
    draw_text("a").save(tmp_path / "a.png")
    labels, texts = tmp_path / "labels.jsonl", ["a\u2028b", "c\u0085d", "é"]
    records = [json.dumps({"image": "a.png", "text": t}, ensure_ascii=False) for t in texts]
    labels.write_bytes("\r\n".join(records).encode("utf-8-sig"))
    assert [record.text for record in read_labels(tmp_path)] == texts
    labels.write_bytes(records[2].encode("cp1252"))
    with pytest.raises(ConfigError, match=r"labels.jsonl cannot be read: .* \(save it as UTF-8\)"):
        read_labels(tmp_path)
    labels.write_text(records[0] + '\n["a.png", "a"]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"labels.jsonl, line 2 is no JSON object"):
        read_labels(tmp_path)
    labels.unlink()
    lines = json.dumps([{"file": "a.png", "text": "é"}], ensure_ascii=False)
    (tmp_path / "lines.json").write_bytes(lines.encode("utf-8-sig"))
    assert [record.text for record in read_labels(tmp_path)] == ["é"]
    (tmp_path / "lines.json").write_bytes(lines.encode("cp1252"))
    with pytest.raises(ConfigError, match=r"lines.json cannot be read"):
        read_labels(tmp_path)


def test_a_broken_image_is_replaced_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [{"image": f"{name}.png", "text": name} for name in "ab"]
    write(tmp_path, records, a=draw_text("a"), b=draw_text("b"))
    (tmp_path / "a.png").write_bytes(b"no picture")
    source = open_folder(tmp_path, shuffle=False)
    assert source.sample(0, 0).text == "b"
    assert "a.png is replaced" in caplog.text
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(ImageError, match="in a row"):
        source.sample(0, 0)


def test_an_image_of_too_many_pixels_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"image": f"{name}.png", "text": name} for name in "ab"]
    write(tmp_path, records, a=Image.new("L", (200, 200)), b=Image.new("L", (20, 20)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    assert open_folder(tmp_path, shuffle=False).sample(0, 0).text == "b"


def test_a_line_without_ink_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blank = Image.new("L", (200, 40), 255)
    assert split_line(np.asarray(blank), "Short", SEGMENT) == []
    records = [{"image": f"{name}.png", "text": "Short"} for name in "ab"]
    write(tmp_path, records, a=blank, b=draw_text("Short"))
    with caplog.at_level("WARNING"):
        source = open_folder(tmp_path, SEGMENT)
    assert len(source) == 1
    assert "1 of 2 lines are left out" in caplog.text
    assert source.fingerprint == "1 samples, 1 lines left out"


def test_images_are_taken_as_they_are_looked_at(tmp_path: Path) -> None:
    upright = draw_text("Upright")
    size = upright.size
    ink = np.asarray(upright) < 128
    turned = Image.Exif()
    turned[0x0112] = 6
    upright.rotate(90, expand=True).save(tmp_path / "turned.png", exif=turned)
    deep = Image.fromarray(np.asarray(upright).astype(np.uint16) * 257)
    clear = Image.new("RGBA", size)
    clear.putalpha(Image.fromarray(np.where(ink, 255, 0).astype(np.uint8)))
    names = ("turned", "deep", "clear")
    records = [
        {"image": f"{name}.png", "regions": [{"type": "text", "bbox": [0, 0, 1, 1], "text": "x"}]}
        for name in names
    ]
    write(tmp_path, records, deep=deep, clear=clear)
    source = open_folder(tmp_path, shuffle=False, layout=False)
    for number, name in enumerate(names):
        image = source.sample(0, number).image
        assert (image.mode, image.size) == ("RGB", size), name
        assert ((np.asarray(image.convert("L")) < 128) == ink).all(), name
        # Whoever opens the sample's image is not told to turn it once more.
        assert 0x0112 not in image.getexif()


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_a_layout_answer_tells_the_angle_of_a_region(tmp_path: Path, angle: int) -> None:
    upright = draw_text("This way up").convert("RGB")
    page = Image.new("RGB", (500, 500), "white")
    # What the angle makes upright lies turned the other way on the page.
    page.paste(upright.rotate(-angle, expand=True), (50, 100))
    width, height = upright.size if angle % 180 == 0 else upright.size[::-1]
    box = [0.1, 0.2, (50 + width) / 500, (100 + height) / 500]
    region = {"type": "text", "bbox": box, "text": "This way up", "angle": angle}
    write(tmp_path, [{"image": "page.png", "regions": [region]}], page=page)
    source = open_folder(tmp_path, shuffle=False)
    [record] = parse_layout(source.sample(0, 0).text).records
    assert record.angle == angle
    crop = page.crop((50, 100, 50 + width, 100 + height)).rotate(record.angle, expand=True)
    assert crop.tobytes() == source.sample(0, 1).image.tobytes() == upright.tobytes()


LONG = "Every line that is longer than one piece is cut between two of its words, and joined later."


def test_a_long_line_is_cut_with_its_text() -> None:
    gray = np.asarray(draw_text(LONG))
    parts = split_line(gray, LONG, SEGMENT)
    assert len(parts) >= 3
    assert " ".join(text for _, text in parts) == LONG
    # The pictures are as long as the texts say.
    widths = np.array([piece.pixels.shape[1] for piece, _ in parts], float)
    chars = np.array([len(text) for _, text in parts], float)
    assert np.abs(widths / widths.sum() - chars / chars.sum()).max() < 0.08


def test_a_line_whose_gaps_do_not_fit_its_words_is_left_out() -> None:
    gray = np.asarray(draw_text(LONG))
    assert split_line(gray, LONG.replace(" is", "is"), SEGMENT) == []
    assert split_line(gray, LONG.replace("joined", "jo in ed"), SEGMENT) == []
    assert split_line(gray, "", SEGMENT) == []


def test_segment_checkpoints_get_the_pieces(tmp_path: Path) -> None:
    records = [{"image": "long.png", "text": LONG}, {"image": "short.png", "text": "Short"}]
    write(tmp_path, records, long=draw_text(LONG), short=draw_text("Short"))
    source = open_folder(tmp_path, SEGMENT, shuffle=False)
    samples = [source.sample(0, i) for i in range(len(source))]
    assert all(sample.image.size == (896, 28) for sample in samples)
    assert " ".join(sample.text for sample in samples) == f"{LONG} Short"


def test_pieces_of_real_lines_have_their_words(shared_dir: Path) -> None:
    """Real lines: most can be cut, and each piece is as long as its text."""
    records = read_labels(shared_dir / "lines")[::25]
    cut, off = 0, []
    for record in records:
        with Image.open(record.image) as image:
            gray = np.asarray(image.convert("L"))
        parts = split_line(gray, record.text, SEGMENT)
        if len(parts) < 2:
            continue
        cut += 1
        widths = np.array([piece.pixels.shape[1] for piece, _ in parts], float)
        chars = np.array([len(text) for _, text in parts], float)
        off.append(np.abs(widths / widths.sum() - chars / chars.sum()).max())
    assert cut >= 8
    assert max(off) < 0.12
