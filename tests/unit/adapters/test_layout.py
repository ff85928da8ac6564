"""Layout answers: B1 to B4, B6 and B11 of the faults list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mdiff_adapters.document import RegionType
from mdiff_adapters.layout import parse_layout

RECORD = "<|box_start|>{box}<|box_end|><|ref_start|>{label}<|ref_end|>{turn}"


def record(box: str = "100 200 300 400", label: str = "text", turn: str = "<|rotate_up|>") -> str:
    return RECORD.format(box=box, label=label, turn=turn)


@pytest.mark.parametrize("separator", ["", " ", "\n", "\r\n", "\n\n", " and then 2. "])
def test_records_are_found_anywhere_b1(separator: str) -> None:
    result = parse_layout(f"Sure! {record()}{separator}{record('1 2 3 4', 'title')} done")
    assert [r.type for r in result.records] == ["text", "title"]
    assert result.num_marks == 2
    assert result.refused == result.repaired == ()


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ("078 095 180 161", (0.078, 0.095, 0.18, 0.161)),
        ("100, 100, 200, 300", (0.1, 0.1, 0.2, 0.3)),
        ("100.5 100 200 300", (0.1005, 0.1, 0.2, 0.3)),
        ("1001 -1 900 1020", (0.9, 0.0, 1.0, 1.0)),
        ("300 400 100 200", (0.1, 0.2, 0.3, 0.4)),
        ("(100 100) (200 300)", (0.1, 0.1, 0.2, 0.3)),
        ("٠٧٨ 095 180 161", (0.078, 0.095, 0.18, 0.161)),
        ("100 100 100 300", (0.1, 0.1, 0.1, 0.3)),
        ("1021 100 200 300", "outside of the page"),
        ("-21 100 200 300", "outside of the page"),
        ("1654 2339 200 300", "outside of the page"),
        ("100 200 300", "not four numbers"),
        ("1 2 3 4 5", "not four numbers"),
        ("100 null 200 300", "not four numbers"),
        ("nan 100 200 300", "not four numbers"),
        ("", "not four numbers"),
    ],
)
def test_odd_coordinates_b2(box: str, expected: tuple[float, ...] | str) -> None:
    result = parse_layout(record(box) + "\n" + record("1 2 3 4"), page=6)
    if isinstance(expected, str):
        assert len(result.records) == 1
        (refusal,) = result.refused
        assert expected in refusal.message
        assert repr(record(box)) in refusal.message
        assert (refusal.stage, refusal.page) == ("layout", 6)
    else:
        found = result.records[0].bbox
        assert (found.x0, found.y0, found.x1, found.y1) == expected
        assert result.refused == ()


def test_repairs_are_told_b2() -> None:
    (note,) = parse_layout(record("1001 300 100 200")).repaired
    assert "clamped to the page, corners swapped" in note.message


integers = st.one_of(st.integers(), st.integers(-40, 1040))


@given(st.tuples(integers, integers, integers, integers))
@settings(max_examples=80)
def test_any_four_integers_give_a_box_or_a_refusal_b2(box: tuple[int, int, int, int]) -> None:
    result = parse_layout(record(" ".join(map(str, box))))
    assert len(result.records) + len(result.refused) == result.num_marks == 1
    for found in result.records:
        assert 0 <= found.bbox.x0 <= found.bbox.x1 <= 1
        assert 0 <= found.bbox.y0 <= found.bbox.y1 <= 1


@pytest.mark.parametrize(
    ("box", "size_px"),
    [("398 998 606 999", (500, 500)), ("999 0 1000 1000", (500, 500)), ("0 0 1000 1000", (1, 1)),
     ("1000 1000 1000 1000", (7, 5)), ("500 500 500 500", (1036, 1036))],
)  # fmt: skip
def test_every_box_gives_a_crop_b3(box: str, size_px: tuple[int, int]) -> None:
    (found,) = parse_layout(record(box)).records
    left, top, right, bottom = found.bbox.pixels(size_px)
    assert 0 <= left < right <= size_px[0]
    assert 0 <= top < bottom <= size_px[1]
    crop = Image.new("RGB", size_px).crop((left, top, right, bottom))
    assert min(crop.size) >= 1


@pytest.mark.parametrize("answer", ["]]<|txtMask fill:#>\n" * 200, "I cannot see a page.", ""])
def test_garbage_gives_no_records_b4(answer: str) -> None:
    result = parse_layout(answer)
    assert (result.records, result.num_marks) == ((), 0)


LABELS = [
    "text", "title", "header", "footer", "page_number", "page_footnote", "aside_text", "image",
    "image_caption", "image_footnote", "table", "table_caption", "table_footnote", "equation",
    "equation_block", "list", "code", "code_caption", "algorithm", "ref_text", "phonetic",
    "unknown",
]  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_known_labels_b6(label: RegionType) -> None:
    (found,) = parse_layout(record(label=label)).records
    assert (found.type, found.raw_label) == (label, None)


@pytest.mark.parametrize("label", ["list-item", "wibble", "chart", "other", "图", ""])
def test_unknown_labels_are_kept_with_their_word_b6(label: str) -> None:
    (found,) = parse_layout(record(label=label)).records
    assert (found.type, found.raw_label) == ("other", label)


def test_labels_are_trimmed() -> None:
    (found,) = parse_layout(record(label=" Title ")).records
    assert found.type == "title"


@pytest.mark.parametrize(
    ("turn", "angle"),
    [("<|rotate_up|>", 0), ("<|rotate_right|>", 90), ("<|rotate_down|>", 180),
     ("<|rotate_left|>", 270), ("", 0), ("<|rotate_sideways|>", 0)],
)  # fmt: skip
def test_angles_b11(turn: str, angle: int) -> None:
    assert parse_layout(record(turn=turn)).records[0].angle == angle


def test_missing_marks_lose_no_record() -> None:
    first = record().replace("<|box_start|>", "")
    second = record("1 2 3 4").replace("<|box_end|>", "")
    third = record("5 6 7 8").replace("<|ref_start|>", "")
    result = parse_layout(f"{first}\n{second}\n{third}\n{record('9 10 11 12')}")
    assert [round(r.bbox.x0 * 1000) for r in result.records] == [100, 1, 5, 9]
    assert result.records[2].type == "other"
    assert "no type" in result.repaired[0].message


def test_text_behind_a_stop_token_is_no_layout() -> None:
    assert len(parse_layout(record() + "<|im_end|>" + record()).records) == 1


def test_every_cut_is_flagged_and_keeps_what_is_whole() -> None:
    answer = "\n".join([record("1 2 3 4"), record("5 6 7 8", "title"), record("9 10 11 12")])
    ends = [len("\n".join([record("1 2 3 4"), record("5 6 7 8", "title")][:n])) for n in (1, 2)]
    for end in range(1, len(answer)):
        result = parse_layout(answer[:end])
        assert len(result.records) + len(result.refused) == result.num_marks
        # Between two records a cut cannot be seen in the text: the finish reason tells it.
        between = any(end in (whole, whole + 1) for whole in ends)
        # So it is where the first record's own rotation is missing: nothing says there was one.
        bare = end == answer.index("<|rotate")
        assert result.truncated == (not between and not bare), answer[:end]
        assert len(result.records) >= sum(end >= whole for whole in ends)


@given(st.lists(st.sampled_from(
    ["<|box_start|>", "<|box_end|>", "<|ref_start|>", "<|ref_end|>", "<|rotate_up|>", "<|rot",
     "<|", "1 2 3 4", "999 999 1 1", "text", "5", " ", "\n", "-", ".", "²", "<"]),
    max_size=25).map("".join))  # fmt: skip
@settings(max_examples=80)
def test_any_order_of_marks_is_read(answer: str) -> None:
    result = parse_layout(answer)
    assert len(result.records) + len(result.refused) == result.num_marks
