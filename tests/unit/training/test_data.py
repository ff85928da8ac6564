"""Drawn data: the same on every call, with labels and boxes that fit the picture."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mdiff_core.errors import ConfigError
from mdiff_core.segments import ink_columns
from mdiff_core.training.config import SourceConfig
from mdiff_core.training.data import SampleStream, build_source, build_stream
from mdiff_core.training.data.effects import EFFECTS, GRADES, damage, paper_level, skew
from mdiff_core.training.data.fonts import FontSet, _pillow_font, font_set, system_folders
from mdiff_core.training.data.lines import (
    LineSource,
    LineStyle,
    choose_font,
    draw_line,
    shuffle_words,
)
from mdiff_core.training.data.pages import PageSource
from mdiff_core.training.data.regions import RegionSource, draw_latex, wrap
from mdiff_core.training.data.sample import Sample, generator
from mdiff_core.training.data.texts import KINDS, TextMix, corpus_of

from .conftest import REGION, SEGMENT, WORDS

CLEAN = [1, 0, 0, 0]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def same(one: Sample, other: Sample) -> bool:
    boxes = (
        one.boxes is other.boxes
        if one.boxes is None or other.boxes is None
        else np.array_equal(one.boxes, other.boxes)
    )
    return (
        one.text == other.text
        and one.task == other.task
        and one.image.tobytes() == other.image.tobytes()
        and boxes
    )


@pytest.mark.parametrize("kind", ["lines", "paragraphs", "tables", "pages"])
def test_a_sample_depends_on_seed_and_index_alone(kind: str, drawing: dict[str, Any]) -> None:
    options = {**drawing, "page_px": [400, 500], "formulas": False} if kind == "pages" else drawing
    one, other = (build_source(kind, options, REGION) for _ in range(2))
    later = [other.sample(3, index) for index in (7, 2, 5)][::-1]
    for index, sample in zip((5, 2, 7), later, strict=True):
        assert same(one.sample(3, index), sample)
    assert not same(one.sample(3, 5), one.sample(4, 5))
    assert not same(one.sample(3, 5), one.sample(3, 6))


def test_pieces_are_prepared_as_in_inference(drawing: dict[str, Any]) -> None:
    source = build_source("lines", {**drawing, "grades": CLEAN}, SEGMENT)
    for index in range(40):
        sample = source.sample(1, index)
        assert sample.image.size == (896, 28)
        assert sample.boxes is not None and sample.boxes.shape == (len(sample.text), 4)
        assert sample.boxes[-1, 2] <= 896 - 8
        assert sample.text == " ".join(sample.text.split()) != ""


def test_boxes_hold_the_ink_of_their_characters(drawing: dict[str, Any]) -> None:
    # No rules, underlines or inverse: what remains of clean damage is blur and thickness.
    source = build_source("lines", {**drawing, "grades": CLEAN, "texts": {"words": 1}}, SEGMENT)
    checked = 0
    for index in range(40):
        sample = source.sample(2, index)
        if set(sample.origin["effects"]) - {"blur", "ink_spread", "jpeg"}:
            continue
        gray = np.asarray(sample.image.convert("L"))
        ink = ink_columns(gray, float(np.median(gray)))
        boxes = sample.boxes
        assert boxes is not None
        for char, (left, _, right, _) in zip(sample.text, boxes, strict=True):
            columns = ink[max(0, round(left)) : round(right)]
            if char.isalnum():
                assert columns.any(), (index, char)
                checked += 1
        # Nothing is drawn outside of the text.
        assert not ink[round(boxes[-1, 2]) + 12 :].any()
        assert not ink[: max(0, round(boxes[0, 0]) - 12)].any()
    assert checked > 60


def plain_style(**changes: Any) -> LineStyle:
    plain = replace(LineStyle.draw(generator(0)), above=0.2, below=0.2, left=0.2, right=0.2,
                    spread=1.0, gap=0.0, tight=None, ink=0, paper=255, neighbours=False,
                    scripts=False, frames=False)  # fmt: skip
    return replace(plain, **changes)


def test_tight_crops_end_at_the_ink_and_gaps_grow() -> None:
    font = font_set((), ()).fonts[0].at(32)
    rng = generator(0)
    plain = plain_style(above=0.1, below=0.1)
    gray, boxes = draw_line("nose on ace", font, plain, rng)
    tight, moved = draw_line("nose on ace", font, replace(plain, tight=0.1), rng)
    rows = np.flatnonzero((gray != 255).any(axis=1))
    high = rows[-1] + 1 - rows[0]
    assert tight.shape[0] == high + 2 * round(0.1 * high) < gray.shape[0]
    # The same ink at the same place of its box.
    top = round(float(moved[0, 1] - boxes[0, 1]))
    np.testing.assert_array_equal(gray[-top : -top + tight.shape[0]], tight)
    wide, apart = draw_line("nose on ace", font, replace(plain, gap=0.5), rng)
    step = 0.5 * sum(font.getmetrics())
    assert wide.shape[1] - gray.shape[1] == pytest.approx(2 * step, abs=1)
    np.testing.assert_allclose(apart[-1] - boxes[-1], [2 * step, 0, 2 * step, 0], atol=0.01)
    # A dash is not blown up to the height of a letter.
    assert draw_line("-", font, replace(plain, tight=0.1), rng)[0].shape[0] == gray.shape[0]


def test_scripts_are_smaller_and_raised_or_lowered() -> None:
    font = font_set((), ()).fonts[0].at(40)
    text = " ".join(["H" * 6] * 4)
    flat, flat_boxes = draw_line(text, font, plain_style(), generator(0))
    full = np.flatnonzero((flat[:, : round(flat_boxes[1, 0])] < 128).any(axis=1))
    seen = set()
    for seed in range(8):
        gray, boxes = draw_line(text, font, plain_style(scripts=True), generator(seed))
        # The canvas stays as wide as the plain line would be; scripts only take less of it.
        assert gray.shape == flat.shape
        assert (np.diff(boxes[:, 0]) > 0).all()
        for i, char in enumerate(text):
            if char == " ":
                continue
            columns = gray[:, round(boxes[i, 0]) : round(boxes[i, 2])]
            ink = np.flatnonzero((columns < 128).any(axis=1))
            if len(ink) < 0.85 * len(full):
                seen.add("raised" if ink[-1] < full[-1] - 3 else "lowered")
                assert boxes[i, 2] - boxes[i, 0] < 0.8 * (flat_boxes[0, 2] - flat_boxes[0, 0])
            else:
                assert (ink[0], ink[-1]) == (full[0], full[-1])
    assert seen == {"raised", "lowered"}


def test_frames_are_thin_and_leave_the_labels() -> None:
    font = font_set((), ()).fonts[0].at(32)
    text = "see Table 12 of [34]"
    plain, _ = draw_line(text, font, plain_style(ink=40), generator(3))
    for seed in range(6):
        framed, boxes = draw_line(text, font, plain_style(ink=40, frames=True), generator(seed))
        added = framed.astype(int) != plain
        assert added.any() and len(boxes) == len(text)
        rows = np.flatnonzero(added.any(axis=1))
        # Four thin sides: far less than the area they enclose.
        assert added.mean() < 0.1
        assert rows[-1] - rows[0] > 8


def test_accents_keep_the_letter_and_its_case() -> None:
    mix = TextMix({"accents": 1.0}, corpus_of(()))
    marked = total = 0
    for seed in range(60):
        text = mix.draw(generator(seed), 40)[1]
        for char in text:
            base = unicodedata.normalize("NFD", char)[0]
            if char.isalpha() and not char.isascii() and base.isascii():
                assert base.isupper() == char.isupper()
                marked += 1
            total += char.isalpha()
    assert 0.05 < marked / total < 0.25


def test_a_line_for_region_checkpoints_keeps_its_size(drawing: dict[str, Any]) -> None:
    sample = build_source("lines", drawing, REGION).sample(0, 1)
    assert sample.image.mode == "RGB" and sample.image.height < 80


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_effects_keep_size_and_type_and_change_the_picture(effect: Any, strength: float) -> None:
    image = Image.new("L", (200, 40), 235)
    ImageDraw.Draw(image).text((10, 8), "Reading 123", fill=20, font_size=22)
    gray = np.asarray(image)
    changed = [effect.apply(gray, generator(i), strength, 30.0) for i in range(5)]
    assert {(c.shape, c.dtype) for c in changed} == {((40, 200), np.dtype(np.uint8))}
    assert any((c != gray).any() for c in changed)
    assert (gray == np.asarray(image)).all()


def test_damage_grows_with_the_grade(drawing: dict[str, Any]) -> None:
    source = build_source("lines", {**drawing, "grades": CLEAN, "texts": {"words": 1}}, REGION)
    clean = [np.asarray(source.sample(5, i).image.convert("L")) for i in range(12)]
    distance = []
    for grade in range(len(GRADES)):
        found = 0.0
        for i, gray in enumerate(clean):
            none = np.zeros((0, 4), np.float32)
            damaged, _, _ = damage(gray, none, generator(9, i), grade, gray.shape[0])
            found += float(np.abs(damaged.astype(float) - gray).mean())
        distance.append(found / len(clean))
    assert distance[0] < distance[1] < distance[2] < distance[3]


def test_skew_moves_boxes_with_their_ink() -> None:
    gray = np.full((60, 400), 255, np.uint8)
    gray[26:34, 350:358] = 0
    boxes = np.array([[350, 26, 358, 34]], np.float32)
    turned, moved = skew(gray, boxes, 3.0)
    rows, columns = np.nonzero(turned < 128)
    centre = moved[0].reshape(2, 2).mean(0)
    assert columns.mean() + 0.5 == pytest.approx(centre[0], abs=1)
    assert rows.mean() + 0.5 == pytest.approx(centre[1], abs=1)
    assert abs(rows.mean() - 29.5) > 5
    assert paper_level(turned) == 255


@pytest.mark.parametrize("kind", list(KINDS))
def test_kinds_of_text(kind: str, drawing: dict[str, Any]) -> None:
    mix = TextMix({kind: 1.0}, corpus_of(tuple(drawing["corpus"])))
    texts = [mix.draw(generator(i), 30)[1] for i in range(50)]
    assert all(1 <= len(text) <= 30 and text == " ".join(text.split()) for text in texts)
    assert len(set(texts)) > 20
    joined = "".join(texts)
    if kind in ("prose", "words", "numbers", "random", "confusable", "code", "cells"):
        assert joined.isascii()
    else:
        assert not joined.isascii()
    if kind == "prose":
        assert set(joined.lower().split()) & set(WORDS.lower().split())


def test_an_unknown_kind_of_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no kind of text 'prosa' \(did you mean 'prose'"):
        TextMix({"prosa": 1.0})
    with pytest.raises(ConfigError, match="all 0"):
        TextMix({"prose": 0.0})


def test_a_corpus_must_be_there_and_long_enough(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        corpus_of((str(tmp_path / "none.txt"),))
    (tmp_path / "short.txt").write_text("Only a few words stand here, and nothing more.")
    with pytest.raises(ConfigError, match="words of prose"):
        corpus_of((str(tmp_path),))


def test_every_machine_has_prose() -> None:
    words = corpus_of(())
    assert len(words) > 20_000
    assert {"the", "and", "is"} <= {word.lower() for word in words}


def test_fonts_fall_back_to_pillows_own(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    fonts = FontSet([str(tmp_path)])
    (font,) = fonts.fonts
    assert font.draws("Az 09~") and not font.draws("я")
    assert fonts.covering("я") == ()
    assert "drawing with Pillow's own" in caplog.text
    with pytest.raises(ConfigError, match="is not there"):
        _ = FontSet([str(tmp_path / "no")]).fonts


def write_font(path: Path, *, empty: str) -> None:
    """Write a font of triangles that lists ``empty`` as well, but has no outlines for it."""
    shapes = {"upper": [(0, 0), (500, 0), (0, 700)], "lower": [(0, 0), (500, 0), (500, 700)]}
    characters = {code: "lower" if chr(code).islower() else "upper" for code in range(0x21, 0x7F)}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "space", "empty", *shapes])
    builder.setupCharacterMap({0x20: "space", **characters, **{ord(c): "empty" for c in empty}})
    blank = TTGlyphPen(None).glyph()
    glyphs = {".notdef": blank, "space": blank, "empty": blank}
    for name, points in shapes.items():
        pen = TTGlyphPen(None)
        pen.moveTo(points[0])
        for point in points[1:]:
            pen.lineTo(point)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Triangles", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(str(path))


def test_a_font_does_not_draw_what_it_lists_but_has_no_outline_for(tmp_path: Path) -> None:
    """EB Garamond's small italic lists the Greek letters."""
    write_font(tmp_path / "triangles.ttf", empty="\N{GREEK CAPITAL LETTER ETA}\N{DAGGER}")
    fonts = FontSet([str(tmp_path)])
    (font,) = fonts.fonts
    assert font.path and fonts.covering("A\N{DAGGER}") == (font,)
    assert font.draws("Aa ~") and not font.draws("A\N{DAGGER}")
    assert choose_font("ab \N{DAGGER}c", fonts, generator(1)) == ("ab c", font)
    assert choose_font("\N{GREEK CAPITAL LETTER ETA}", fonts, generator(1)) == ("-", font)
    options = {"texts": {"greek": 0.5, "words": 0.5}, "fonts": [str(tmp_path)], "grades": CLEAN}
    source = build_source("lines", options, SEGMENT)
    assert all(source.sample(1, index).text.isascii() for index in range(20))


@pytest.mark.skipif(not system_folders(), reason="this machine has no font folder")
def test_system_fonts_are_found_in_order_and_can_be_excluded() -> None:
    fonts = FontSet(exclude=["MONO", "condensed"])
    paths = [(font.path, font.face) for font in fonts.fonts]
    assert paths == sorted(paths)
    assert fonts.fingerprint.startswith(f"{len(paths)} fonts, ")
    names = [path.rsplit("/", 1)[-1].lower() for path, _ in paths]
    assert not any("mono" in name or "condensed" in name for name in names)


@pytest.mark.skipif(not system_folders(), reason="this machine has no font folder")
def test_fonts_of_fixed_width_are_known() -> None:
    fonts = FontSet()
    names = {font.path.rsplit("/", 1)[-1].lower() for font in fonts.fixed_width}
    others = {font.path.rsplit("/", 1)[-1].lower() for font in fonts.fonts} - names
    for word, wide in (("sansmono", True), ("sans-regular", False), ("serif-regular", False)):
        assert not any(word in name for name in (others if wide else names))
    assert set(fonts.covering("x", fixed_width=True)) <= set(fonts.fixed_width)


@given(
    text=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=20).map(" ".join),
    share=st.floats(0, 1),
)
def test_shuffling_keeps_the_words(text: str, share: float) -> None:
    shuffled = shuffle_words(text, share, generator(1))
    assert Counter(shuffled.split(" ")) == Counter(text.split(" "))
    moved = sum(a != b for a, b in zip(text.split(" "), shuffled.split(" "), strict=True))
    assert moved <= round(len(text.split(" ")) * share)
    assert shuffle_words(text, 0.0, generator(1)) == text


def test_a_shuffled_line_differs_in_order_only(drawing: dict[str, Any]) -> None:
    options = {**drawing, "texts": {"prose": 1}, "grades": CLEAN}
    plain = build_source("lines", options, SEGMENT)
    mixed = build_source("lines", {**options, "shuffle": 1.0}, SEGMENT)
    differing = 0
    for index in range(30):
        a, b = plain.sample(6, index), mixed.sample(6, index)
        assert sorted(a.text.split()) == sorted(b.text.split())
        assert a.origin["font"] == b.origin["font"]
        differing += a.text != b.text
    assert differing > 10


def test_paragraphs_have_lines_and_boxes_in_reading_order(drawing: dict[str, Any]) -> None:
    options = {**drawing, "grades": CLEAN, "texts": {"prose": 1}, "width_px": [200, 260]}
    source = build_source("paragraphs", options, REGION)
    rows = []
    for index in range(12):
        sample = source.sample(1, index)
        boxes = sample.boxes
        assert boxes is not None and len(boxes) == len(sample.text)
        assert sample.text == " ".join(sample.text.split())
        assert (boxes[:, 2] <= sample.image.width + 1).all()
        tops = np.array([box[1] for char, box in zip(sample.text, boxes, strict=True)
                         if char != " "])  # fmt: skip
        assert (np.diff(tops) >= -0.01).all()
        rows.append(len(np.unique(tops.round())))
    assert max(rows) > 3


def test_wrap_cuts_what_is_too_long_and_keeps_the_rest() -> None:
    font = _pillow_font().at(20)
    lines = wrap(["one", "two", "three", "x" * 100], font, 80, 10)
    assert [word for line in lines for word in line][:3] == ["one", "two", "three"]
    assert all(font.getlength(" ".join(line)) <= 80 for line in lines)
    assert wrap([], font, 80) == []


def test_tables_are_complete_grids(drawing: dict[str, Any]) -> None:
    source = build_source("tables", {**drawing, "width_px": [400, 700]}, REGION)
    seen: Counter[str] = Counter()
    for index in range(24):
        sample = source.sample(2, index)
        assert sample.task == "table"
        rows = sample.text.removesuffix("<nl>").split("<nl>")
        tags = [re.findall(r"<(fcel|ecel|lcel|ucel|xcel)>", row) for row in rows]
        assert len({len(row) for row in tags}) == 1
        for r, row in enumerate(tags):
            for c, tag in enumerate(row):
                if tag in ("lcel", "xcel"):
                    assert c > 0
                if tag in ("ucel", "xcel"):
                    assert r > 0
            seen.update(row)
    assert min(seen[tag] for tag in ("fcel", "ecel", "lcel", "ucel", "xcel")) > 0


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="drawing formulas needs matplotlib")
def test_formulas_are_set(drawing: dict[str, Any]) -> None:
    source = build_source("formulas", {**drawing, "grades": CLEAN}, REGION)
    for index in range(10):
        sample = source.sample(3, index)
        assert sample.task == "formula"
        assert sample.text.count("{") == sample.text.count("}")
        gray = np.asarray(sample.image.convert("L"))
        assert gray.max() - gray.min() > 80
    assert len({draw_latex(generator(i)) for i in range(50)}) > 40


def test_pages_tell_where_their_regions_are(drawing: dict[str, Any]) -> None:
    options = {**drawing, "page_px": [500, 700], "formulas": False, "grades": CLEAN}
    source = build_source("pages", options, REGION)
    assert isinstance(source, PageSource)
    kinds: Counter[str] = Counter()
    for index in range(12):
        page = source.draw_page(generator(1, index))
        for region in page.regions:
            x0, y0, x1, y1 = region.box
            assert 0 <= x0 < x1 <= 500 and 0 <= y0 < y1 <= 700
            assert page.gray[y0:y1, x0:x1].min() < 128
            kinds[region.type] += 1
            assert bool(region.text) == (region.task is not None)
        # Regions do not overlap, and nothing is drawn outside of them.
        covered = np.zeros(page.gray.shape, int)
        for region in page.regions:
            x0, y0, x1, y1 = region.box
            covered[y0:y1, x0:x1] += 1
        assert covered.max() <= 1
        assert page.gray[covered == 0].min() == 255
        records = page.layout_text.split("\n")
        assert len(records) == len(page.regions)
    assert {"text", "title", "table", "image"} <= set(kinds)


def test_pages_give_layouts_and_crops(drawing: dict[str, Any]) -> None:
    options = {**drawing, "page_px": [400, 500], "formulas": False, "layout_px": 280}
    source = build_source("pages", options, REGION)
    samples = [source.sample(1, index) for index in range(12)]
    layouts = [sample for sample in samples if sample.task == "layout"]
    assert layouts and len(layouts) < len(samples)
    assert all(sample.image.size == (280, 280) for sample in layouts)
    assert re.fullmatch(
        r"<\|box_start\|>\d{3,4} \d{3,4} \d{3,4} \d{3,4}<\|box_end\|>"
        r"<\|ref_start\|>\w+<\|ref_end\|><\|rotate_up\|>",
        layouts[0].text.split("\n")[0],
    )


def test_a_stream_mixes_in_groups_by_weight(drawing: dict[str, Any]) -> None:
    def make(group: int) -> SampleStream:
        sources = (
            SourceConfig(kind="lines", weight=3.0, options=drawing),
            SourceConfig(kind="tables", weight=1.0, options=drawing),
        )
        return build_stream(sources, REGION, seed=2, group=group)

    stream = make(4)
    chosen = [stream.source_of(index) for index in range(2000)]
    assert all(len(set(chosen[i : i + 4])) == 1 for i in range(0, 2000, 4))
    assert np.mean(np.array(chosen) == 0) == pytest.approx(0.75, abs=0.06)
    assert isinstance(stream.sources[0], LineSource) and isinstance(stream.sources[1], RegionSource)
    assert same(stream[5], make(4)[5])


def test_wrong_sources_are_refused(drawing: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no kind of data 'line' \(did you mean 'lines'"):
        build_source("line", {}, REGION)
    with pytest.raises(ConfigError, match=r"no setting 'max_char' \(did you mean 'max_chars'"):
        build_source("lines", {"max_char": 3}, REGION)
    with pytest.raises(ConfigError, match="do not fit a checkpoint of unit segment"):
        build_source("tables", drawing, SEGMENT)
    with pytest.raises(ConfigError, match="a path is needed"):
        build_source("folder", {}, REGION)
    with pytest.raises(ConfigError, match="4 shares"):
        build_source("lines", {**drawing, "grades": [1]}, REGION)
