"""The curriculum: consistency, what is hard, and the second stage's data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mdiff_adapters.evaluation import SIMILARITIES, teds
from mdiff_core import Engine
from mdiff_core.errors import ConfigError
from mdiff_core.models.config import ModelConfig
from mdiff_core.prompts import Codec
from mdiff_core.testing import write_random_checkpoint
from mdiff_core.training.batch import Encoder
from mdiff_core.training.config import MineConfig, ObjectiveConfig
from mdiff_core.training.curriculum import (
    MinedRecord,
    central_answer,
    consistency,
    mine,
    sample_answers,
)
from mdiff_core.training.data import build_source, build_stream
from mdiff_core.training.metrics import edit_similarity

from .conftest import REGION, SEGMENT, MakeConfig
from .test_folder import draw_text, write


def test_consistency_is_the_mean_over_all_pairs() -> None:
    assert consistency(["same"] * 4, edit_similarity) == 1
    # Three pairs: one equal, two that differ in one of four characters.
    assert consistency(["abcd", "abcd", "abce"], edit_similarity) == pytest.approx(
        (1 + 0.75 + 0.75) / 3
    )
    tables = ["<fcel>a<nl>", "<fcel>a<nl>", "<fcel>b<nl>"]
    assert consistency(tables, teds) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    with pytest.raises(ValueError, match="at least two"):
        consistency(["one"], edit_similarity)


def test_the_central_answer_is_the_one_most_like_the_others() -> None:
    assert central_answer(["xxxx", "abcd", "abce", "abcd"], edit_similarity) == "abcd"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random model that is quick to run and never sure of anything."""
    folder = tmp_path_factory.mktemp("unsure") / "checkpoint"
    write_random_checkpoint(folder, seed=2)
    raw = json.loads((folder / "config.json").read_text())
    raw["mdiff"] = {"tasks": ["text"], "text_unit": "segment", "segment_px": [896, 28],
                    "stretch": 2.4, "max_tokens": {"text": 32}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=2**26) as engine:
        yield engine


FAST = {"samples": 3, "runs": 3, "threshold": 0.0}


def test_runs_differ_and_are_reproducible(engine: Engine, drawing: dict[str, Any]) -> None:
    source = build_source("lines", drawing, SEGMENT)
    samples = [source.sample(1, i) for i in range(3)]
    settings = MineConfig(**FAST)
    first = sorted(sample_answers(engine, samples, settings, block_length=32))
    again = sorted(sample_answers(engine, samples, settings, block_length=32))
    assert [number for number, _, _ in first] == [0, 1, 2]
    assert [answers for _, _, answers in first] == [answers for _, _, answers in again]
    assert all(len(set(answers)) > 1 for _, _, answers in first)
    other = sorted(sample_answers(engine, samples, MineConfig(**FAST, seed=5), block_length=32))
    assert first[0][2] != other[0][2]


def test_hard_samples_are_drawn_again_with_their_truth(
    engine: Engine, make_config: MakeConfig, drawing: dict[str, Any], tmp_path: Path
) -> None:
    config = make_config(mine={**FAST, "tau": 0.99})
    found = list(mine(config, engine, similarities=SIMILARITIES))
    assert len(found) == 3
    assert all(record.status == "truth" and record.consistency < 0.9 for record in found)
    path = tmp_path / "hard.jsonl"
    path.write_text("".join(record.to_json() + "\n" for record in found))
    source = build_source("mined", {"path": str(path)}, SEGMENT)
    again = sorted((source.sample(9, i) for i in range(3)), key=lambda s: s.text)
    for sample, record in zip(again, sorted(found, key=lambda r: r.text), strict=True):
        drawn = build_source("lines", {**drawing, "max_chars": 40}, SEGMENT)
        original = drawn.sample(record.seed, record.index)
        assert sample.text == record.text == original.text
        assert sample.image.tobytes() == original.image.tobytes()
        assert sample.consistency == record.consistency
        assert sample.boxes is not None
    # With other fonts another text would have fitted: no label may be taken on trust.
    path.write_text(replace(found[0], text=found[0].text + "x").to_json() + "\n")
    with pytest.raises(ConfigError, match="mine again"):
        build_source("mined", {"path": str(path)}, SEGMENT).sample(9, 0)


def test_sure_samples_are_looked_at_and_not_hard(engine: Engine, make_config: MakeConfig) -> None:
    config = make_config(mine={**FAST, "tau": 0.0})
    looked_at: list[None] = []
    assert list(mine(config, engine, on_looked_at=lambda: looked_at.append(None))) == []
    assert len(looked_at) == 3


def test_mined_sources_take_no_part_of_the_samples(
    engine: Engine, make_config: MakeConfig, drawing: dict[str, Any]
) -> None:
    data = [
        {"kind": "mined", "weight": 2.0, "path": "hard.jsonl"},
        {"kind": "lines", "weight": 1.0, **drawing},
    ]
    config = make_config(data=data, mine={**FAST, "tau": 0.99})
    assert len(list(mine(config, engine))) == 3


def test_any_seed_of_mining_gives_seeds_of_requests(
    engine: Engine, drawing: dict[str, Any]
) -> None:
    sample = build_source("lines", drawing, SEGMENT).sample(1, 0)
    settings = MineConfig(**FAST, seed=2**63 - 1)
    [(_, _, answers)] = sample_answers(engine, [sample], settings, block_length=32)
    assert len(answers) == 3
    with pytest.raises(ConfigError, match=r"\[mine\] seed = .* is out of range"):
        MineConfig(seed=2**63)


def test_a_person_reviews_what_has_no_truth(
    engine: Engine, make_config: MakeConfig, tmp_path: Path
) -> None:
    records = [{"image": f"{i}.png", "text": ""} for i in range(2)]
    folder = write(tmp_path / "pages", records, **{str(i): draw_text("ab cd") for i in range(2)})
    labels = folder / "labels.jsonl"
    labels.write_text(labels.read_text().replace('"text": ""', '"text": "?"'))
    data = [{"kind": "folder", "path": str(folder)}]
    config = make_config(data=data, mine={**FAST, "tau": 0.99})
    found = list(mine(config, engine, labelled=False))
    assert {record.status for record in found} == {"open"}
    assert all(record.text in record.answers for record in found)
    path = tmp_path / "hard.jsonl"
    lines = [json.loads(record.to_json()) for record in found]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="no labelled sample"):
        build_source("mined", {"path": str(path)}, SEGMENT)
    lines[0] |= {"text": "ab cd", "status": "reviewed"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sample = build_source("mined", {"path": str(path)}, SEGMENT).sample(0, 0)
    assert sample.text == "ab cd"


@pytest.fixture
def reviewed(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of six images, and the samples that a person has reviewed."""
    names = [str(i) for i in range(6)]
    records = [{"image": f"{name}.png", "text": "?"} for name in names]
    images = {name: draw_text(f"image {name}") for name in names}
    folder = write(tmp_path / "pages", records, **images)
    options = {"path": str(folder)}
    source = build_source("folder", options, REGION)
    lines = [
        MinedRecord(
            task="text", consistency=0.5, answers=("a", "b"), status="reviewed", seed=1,
            text=Path(sample.origin["image"]).stem, index=index, origin=sample.origin,
            source={"kind": "folder", "options": options},
        ).to_json()
        for index, sample in ((index, source.sample(1, index)) for index in range(6))
    ]  # fmt: skip
    (tmp_path / "hard.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder, tmp_path / "hard.jsonl"


def texts_and_images(path: Path) -> dict[str, str]:
    source = build_source("mined", {"path": str(path)}, REGION)
    samples = [source.sample(0, index) for index in range(6)]
    return {sample.text: Path(sample.origin["image"]).stem for sample in samples}


def test_reviewed_texts_stay_with_their_images(reviewed: tuple[Path, Path]) -> None:
    folder, hard = reviewed
    same = {str(i): str(i) for i in range(6)}
    assert texts_and_images(hard) == same
    # Another record shifts all of them, in the file and in the random order.
    labels = folder / "labels.jsonl"
    lines = labels.read_text(encoding="utf-8").splitlines()
    more = json.dumps({"image": "0.png", "text": "a page", "task": "layout"})
    labels.write_text("\n".join([more, *lines[::-1]]), encoding="utf-8")
    assert texts_and_images(hard) == same
    lines[5] = lines[5].replace("}", ', "status": "skip"}')
    labels.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"5.png.* gives no sample any more \(mine again"):
        texts_and_images(hard)


def test_a_broken_image_takes_its_reviewed_text_along(
    reviewed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder, hard = reviewed
    (folder / "3.png").write_bytes(b"no picture")
    assert texts_and_images(hard) == {str(i): str(i) for i in range(6) if i != 3}
    assert "3.png is replaced" in caplog.text


def test_a_reviewed_drawn_sample_must_be_drawn_alike(
    engine: Engine, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(mine={**FAST, "samples": 1, "tau": 0.99})
    [found] = mine(config, engine, labelled=False)
    path = tmp_path / "hard.jsonl"
    path.write_text(replace(found, status="reviewed", text="seen").to_json(), encoding="utf-8")
    assert build_source("mined", {"path": str(path)}, SEGMENT).sample(0, 0).text == "seen"
    other = {**found.origin, "font": "another"}
    changed = replace(found, status="reviewed", text="seen", origin=other)
    path.write_text(changed.to_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match="mine again"):
        build_source("mined", {"path": str(path)}, SEGMENT).sample(0, 0)


def test_mined_files_are_read_as_people_save_them(
    reviewed: tuple[Path, Path], tmp_path: Path
) -> None:
    _, hard = reviewed
    raw = json.loads(hard.read_text(encoding="utf-8").split("\n")[0])
    line = json.dumps({**raw, "text": "a\u2028b\u0085c"}, ensure_ascii=False)
    hard.write_text(line + "\n", encoding="utf-8-sig")
    [text] = texts_and_images(hard)
    assert text == "a\u2028b\u0085c"
    for wrong, message in (
        ({**raw, "text": None}, "text = None is not what mining writes"),
        ({**raw, "source": {}}, "no kind and options"),
        ([raw], "no JSON object"),
    ):
        hard.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(ConfigError, match=f"hard.jsonl, line 1.*{message}"):
            texts_and_images(hard)
    hard.write_bytes(line.replace("b", "é").encode("cp1252", errors="replace"))
    with pytest.raises(ConfigError, match="cannot be read"):
        texts_and_images(hard)


def test_stage_two_mixes_hard_and_easy_samples_and_weighs_the_hard_ones(
    engine: Engine, make_config: MakeConfig, drawing: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "hard.jsonl"
    found = mine(make_config(mine={**FAST, "tau": 0.99}), engine)
    path.write_text("".join(record.to_json() + "\n" for record in found))
    config = make_config(
        data=[
            {"kind": "mined", "weight": 1.0, "path": str(path)},
            {"kind": "lines", "weight": 1.0, **drawing},
        ],
        objective={"beta": 1.0},
    )
    stream = build_stream(config.data, SEGMENT, seed=3)
    shapes: ModelConfig = engine.config
    codec: Codec = engine._codec
    encoder = Encoder(shapes, codec, ObjectiveConfig(beta=1.0), 3)
    weights = [encoder.encode(stream[i], i).weight for i in range(40)]
    easy = sum(weight == 1.0 for weight in weights)
    assert 10 < easy < 30
    assert all(1.0 < weight <= 2.0 for weight in weights if weight != 1.0)
