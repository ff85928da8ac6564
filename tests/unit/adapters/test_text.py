"""Cleaning of answers: special tokens (E4), loops (E2), wrapped lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdiff_adapters.text import (
    cut_at_stop,
    find_loop,
    split_list_items,
    strip_special_tokens,
    unify_scripts,
    unwrap_lines,
)


@pytest.mark.parametrize(
    ("answer", "text", "num_tokens"),
    [
        ("plain", "plain", 0),
        ("a<|im_end|>", "a", 1),
        ("a<|endoftext|>b<|im_end|>c", "a", 1),
        ("a<|im_end|>b<|endoftext|>c", "a", 1),
        ("<|im_end|>tail", "", 1),
        ("a<|box_start|>b<|MASK|>c", "abc", 2),
        ("a<|im_", "a", 1),
        ("a<|im_end|", "a", 1),
        ("a<|", "a", 1),
        ("a < b | c > d", "a < b | c > d", 0),
        ("a <", "a <", 0),
        ("p <| q", "p <| q", 0),
        ("a<|<|x|>im_end|>b", "ab", 2),
        ("f(x) <| y |> z", "f(x)  z", 1),
    ],
)
def test_special_tokens_are_removed_and_counted(answer: str, text: str, num_tokens: int) -> None:
    stripped = strip_special_tokens(answer)
    assert (stripped.text, stripped.num_tokens) == (text, num_tokens)


@given(st.lists(st.sampled_from(["a", "<", "|", ">", "<|", "|>", "im_end", "<|x|>"])).map("".join))
@settings(max_examples=80)
def test_no_whole_token_survives(answer: str) -> None:
    text = strip_special_tokens(answer).text
    assert not re.search(r"<\|im_end\|>", text)
    assert not re.search(r"<\|\w*\Z", text)


def test_layout_answers_are_only_cut_at_the_stop() -> None:
    assert cut_at_stop("<|box_start|>1<|im_end|>x<|endoftext|>") == "<|box_start|>1"
    assert cut_at_stop("<|box_start|>1") == "<|box_start|>1"


@pytest.mark.parametrize(
    ("text", "unit", "trimmed"),
    [
        ("the cat " * 200, "the cat ", "the cat"),
        ("Once. " + "the cat " * 200 + "the", " the cat", "Once. the cat"),
        ("head\n" + "one line\nand another\n" * 30, "\none line\nand another", None),
        ("x" + r" \quad" * 400, r" \quad", r"x \quad"),
        ("." * 2000, ".", "."),
        ("价值" * 100, "价值", "价值"),
        ("<fcel>0<fcel>0<nl>" * 100, "<fcel>0<fcel>0<nl>", "<fcel>0<fcel>0<nl>"),
    ],
)
def test_loops_are_found(text: str, unit: str, trimmed: str | None) -> None:
    loop = find_loop(text)
    assert loop is not None
    assert loop.unit == unit
    assert loop.repeats >= 4
    assert loop.trimmed == (trimmed if trimmed is not None else "head\none line\nand another")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ha ha ha",
        "...." * 10,
        "-" * 80,
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "<fcel>yes<fcel>no<nl>" * 12,
        "".join(f"<fcel>row {i}<fcel>{i * i}<nl>" for i in range(12)),
        "\n".join(f"Chapter {i} {'.' * 60} {i * 7}" for i in range(30)),
        "Contents\n1 Introduction " + "." * 120,
        " ".join(str(i) for i in range(1, 366)),
        "<ecel>" * 24 + "<nl>",
        "the cat the cat the cat",
    ],
)
def test_good_answers_are_no_loops(text: str) -> None:
    assert find_loop(text) is None


@given(st.text("ab", max_size=60), st.text("abc", min_size=8, max_size=20), st.integers(4, 9))
@settings(max_examples=60)
def test_a_repeated_tail_is_found_with_a_primitive_unit(head: str, unit: str, times: int) -> None:
    loop = find_loop(head + unit * times)
    assert loop is not None
    assert (loop.unit + loop.unit).find(loop.unit, 1) == len(loop.unit)
    assert len(loop.unit) <= len(unit)
    assert (head + unit * times).startswith(loop.trimmed)


@pytest.mark.parametrize(
    ("wrapped", "text"),
    [
        ("one\ntwo\r\nthree", "one two three"),
        ("one\n\ntwo\nthree", "one\n\ntwo three"),
        ("  one  \n \t\n two ", "one\n\ntwo"),
        ("交换价值首先表现为\n量的关系，\n表现为比例", "交换价值首先表现为量的关系，表现为比例"),
        ("英国著作家用\nworth表示", "英国著作家用worth表示"),
        ("ひらがな\nカタカナ", "ひらがなカタカナ"),
        ("교환 가치는\n우선 양적", "교환 가치는 우선 양적"),
        ("an exam-\nple", "an example"),
        ("the Anglo-\nAmerican", "the Anglo-American"),
        ("COVID-\n19", "COVID-19"),
        ("1998-\n2005", "1998-2005"),
        ("a pause -\nand on", "a pause - and on"),
        ("soft\u00ad\nhyphen", "softhyphen"),
        ("cafe\u0301-\nteria", "cafe\u0301teria"),
        ("विश्वविद्या-\nलय", "विश्वविद्यालय"),
        ("ภาษา\nไทย", "ภาษาไทย"),
        ("- one\n- two\nmore", "- one\n- two more"),
        ("1. one\n2. two", "1. one\n2. two"),
        ("", ""),
    ],
)
def test_lines_are_unwrapped(wrapped: str, text: str) -> None:
    assert unwrap_lines(wrapped) == text
    assert unwrap_lines(text) == text


@pytest.mark.parametrize(
    ("read", "unified"),
    [
        ("п\u0440иветc\u0442вуем", "приветствуем"),
        ("\u041d προβολή \u0410ν", "Η προβολή Αν"),
        ("t\u0430 λόγια", "τα λόγια"),
        ("\u043e l\u0430ser \u0430 \u0421\u041e2", "o laser a CO2"),
        # What could be meant stays: formulas, names and options in other scripts, real mixtures.
        ("Δx sinα λmax μm 2πr", "Δx sinα λmax μm 2πr"),
        ("файл -o HP x", "файл -o HP x"),
        ("USB-кабель, ШИМ и PWM", "USB-кабель, ШИМ и PWM"),
        ("x-ый", "x-ый"),
        ("plain ASCII, naïve café", "plain ASCII, naïve café"),
        ("", ""),
    ],
)
def test_words_are_in_one_script(read: str, unified: str) -> None:
    assert unify_scripts(read) == unified
    assert unify_scripts(unified) == unified
    assert len(unify_scripts(read)) == len(read)


def test_a_word_list_decides_about_hyphens() -> None:
    assert unwrap_lines("a well-\nknown exam-\nple", {"well-known"}) == "a well-known example"
    assert unwrap_lines("the Pass-\nWord", {"password"}) == "the PassWord"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("3.1 Problem 5  \n3.2 Method 6", ["3.1 Problem 5", "3.2 Method 6"]),
        ("• one\n• two\ngoes on\n• three", ["one", "two goes on", "three"]),
        ("1. one\ngoes on\n2. two", ["1. one goes on", "2. two"]),
        ("- a", ["a"]),
        ("", []),
    ],
)
def test_lists_are_split_into_items(text: str, items: list[str]) -> None:
    assert split_list_items(text) == items
