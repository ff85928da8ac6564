"""Characters with a token of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from mdiff_adapters.cli import app
from mdiff_core import DecodeRequest, Engine
from mdiff_core.errors import CheckpointError, ConfigError
from mdiff_core.models.config import ModelConfig
from mdiff_core.prompts import Codec
from mdiff_core.testing import write_random_checkpoint
from mdiff_core.training import add_characters
from mdiff_core.training.data.texts import CHARACTERS

EMBED = "language_model.model.embed_tokens.weight"
HEAD = "language_model.lm_head.weight"
NEW = "ạ漢\U0001d53d"
"""Two, three and four bytes, none of them in the embedded tokenizer."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    # The embedded tokenizer has 640 tokens: there are unused rows.
    return write_random_checkpoint(tmp_path / "base", text={"vocab_size": 704})


def codec_of(folder: Path) -> Codec:
    config = ModelConfig.from_folder(folder)
    return Codec.from_folder(folder, image_token_id=config.image_token_id)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_each_character_gets_one_token_and_all_others_keep_theirs(
    base: Path, tmp_path: Path
) -> None:
    before, after = codec_of(base), codec_of(add_characters(str(base), NEW, tmp_path / "new"))
    for character in NEW:
        assert len(before.encode(character)) > 1
        assert len(after.encode(character)) == 1
    for text in ("plain text 0 | \\x{}", "<|im_start|>user<fcel>a<nl>", "\U0001f600 ḅ"):
        assert after.encode(text) == before.encode(text)
    text = f"x{NEW}ạ ḅ{NEW}"
    ids, spans = after.encode_with_spans(text)
    assert after.decode(ids) == text
    assert [text[a:b] for a, b in spans if text[a:b] in NEW] == [*NEW, "ạ", *NEW]
    assert after.prompt_ids("text", 3) == before.prompt_ids("text", 3)


def test_new_rows_begin_as_the_plain_letter_or_the_last_byte(base: Path, tmp_path: Path) -> None:
    folder = add_characters(str(base), "ạ漢", tmp_path / "new", dtype="fp32")
    old, new = weights(base), weights(folder)
    codec = codec_of(folder)
    [letter], [sign] = codec.encode("ạ"), codec.encode("漢")
    [plain], last = codec.encode("a"), codec_of(base).encode("漢")[-1]
    for name, share in ((EMBED, 1.0), (HEAD, 0.8)):
        used = max(Tokenizer.from_file(str(base / "tokenizer.json")).get_vocab().values()) + 1
        assert letter >= used and sign >= used
        assert torch.equal(new[name][:used], old[name][:used])
        torch.testing.assert_close(new[name][letter], old[name][plain] * share)
        torch.testing.assert_close(new[name][sign], old[name][last] * share)
    assert {len(new[name]) for name in (EMBED, HEAD)} == {len(old[EMBED])}
    others = set(old) - {EMBED, HEAD}
    assert others and all(torch.equal(new[name], old[name]) for name in others)
    with Engine.load(folder, device="cpu", dtype="fp32") as engine:
        [result] = engine.generate([DecodeRequest(image=Image.new("RGB", (112, 56)))])
    assert result.error is None and result.num_forwards > 0


def test_new_rows_of_other_scripts_begin_as_the_latin_letter_of_the_same_shape(
    base: Path, tmp_path: Path
) -> None:
    pairs = {
        "\N{CYRILLIC SMALL LETTER ES}": "c",
        "\N{CYRILLIC SMALL LETTER IO}": "e",
        "\N{GREEK CAPITAL LETTER ETA}": "H",
        "\N{GREEK SMALL LETTER ALPHA WITH TONOS}": "a",
    }
    path = base / "tokenizer.json"
    tokenizer, raw = Tokenizer.from_file(str(path)), json.loads(path.read_text(encoding="utf-8"))
    for character in pairs:
        # The embedded tokenizer has a token for each: without it, they are bytes again.
        raw["model"]["vocab"].pop("".join(tokenizer.encode(character).tokens), None)
    path.write_text(json.dumps(raw), encoding="utf-8")
    folder = add_characters(str(base), "".join(pairs), tmp_path / "new", dtype="fp32")
    old, new, codec = weights(base)[EMBED], weights(folder)[EMBED], codec_of(folder)
    for character, latin in pairs.items():
        [ours], [plain] = codec.encode(character), codec.encode(latin)
        assert torch.equal(new[ours], old[plain]), character


def test_neighbours_of_the_characters_keep_their_tokens(base: Path, tmp_path: Path) -> None:
    """Characters of one block share their first bytes, those of one column their last ones."""
    before = codec_of(base)
    after = codec_of(add_characters(str(base), "⇒い😀é", tmp_path / "new"))
    neighbours = "⇐あ😁è" + "".join(
        bytes([*lead, *"い".encode()[1:]]).decode() for lead in (b"\xe1", b"\xe4", b"\xe7")
    )
    for text in (*neighbours, neighbours, f"a {neighbours} b", "⇐ あ"):
        assert after.encode(text) == before.encode(text), text
    # Several times over, in words, and between spaces.
    more = codec_of(add_characters(str(tmp_path / "new"), "⇐あ", tmp_path / "more"))
    for codec, known in ((after, "⇒い😀é"), (more, "⇒い😀é⇐あ")):
        assert [len(codec.encode(character)) for character in known] == [1] * len(known)
        text = f"  x{known}  {known[::-1]} y é\n {neighbours} "
        ids, spans = codec.encode_with_spans(text)
        assert codec.decode(ids) == text
        assert [text[a:b] for a, b in spans if text[a:b] in known].count("é") == 3
    assert [after.encode(c) for c in "⇒い😀é"] == [more.encode(c) for c in "⇒い😀é"]


def test_characters_are_taken_as_the_tokenizer_normalises_them(base: Path, tmp_path: Path) -> None:
    path = base / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**raw, "normalizer": {"type": "NFC"}}), encoding="utf-8")
    # The sign for ohm is a capital omega, and a Bengali letter is two characters.
    codec = codec_of(add_characters(str(base), "\u2126\u09dc", tmp_path / "new"))
    assert [len(codec.encode(c)) for c in ("\u2126", "Ω", "\u09dc")] == [1, 1, 2]


def test_more_rows_are_made_where_the_unused_ones_do_not_do(base: Path, tmp_path: Path) -> None:
    characters = "".join(chr(code) for code in range(0x4E00, 0x4E50))
    folder = add_characters(str(base), characters, tmp_path / "new")
    codec, rows = codec_of(folder), len(weights(folder)[EMBED])
    assert rows == len(weights(folder)[HEAD]) == ModelConfig.from_folder(folder).text.vocab_size
    assert rows % 64 == 0 and rows > len(weights(base)[EMBED])
    assert max(codec.encode(characters)) < rows


def test_a_tied_head_stays_tied(tmp_path: Path) -> None:
    base = write_random_checkpoint(tmp_path / "base", tied=True)
    assert HEAD not in weights(add_characters(str(base), "ạ", tmp_path / "new"))


def test_the_embedded_checkpoint_has_a_token_for_each_character_that_is_drawn() -> None:
    from mdiff_core.checkpoint import resolve_checkpoint

    codec = codec_of(resolve_checkpoint("tiny"))
    assert len(set(CHARACTERS)) > 300
    assert {c: len(codec.encode(c)) for c in CHARACTERS if len(codec.encode(c)) > 1} == {}
    assert codec.decode(codec.encode(CHARACTERS)) == CHARACTERS


def test_the_command(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    arguments = ["add-characters", str(base), "-o", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--characters", "ạ"])
    assert result.exit_code == 0, result.output
    assert len(codec_of(out).encode("ạ")) == 1
    result = CliRunner().invoke(app, [*arguments, "--characters", "abc"])
    assert result.exit_code == 2
    assert "several tokens" in result.stderr


def test_what_cannot_be_added_is_refused(base: Path, tmp_path: Path) -> None:
    for characters in ("", "abc", "ạ\u2003"):
        with pytest.raises(ConfigError, match="several tokens"):
            add_characters(str(base), characters, tmp_path / "new")
    own = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer(models.BPE(own["model"]["vocab"], [], unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([token["content"] for token in own["added_tokens"]])
    tokenizer.save(str(base / "tokenizer.json"))
    with pytest.raises((CheckpointError, ConfigError)):
        add_characters(str(base), "ạ", tmp_path / "new")
    assert not (tmp_path / "new").exists()
