"""Characters with a token of their own, added to a checkpoint whose tokenizer writes them as bytes.

A byte-level tokenizer with few merges writes every letter outside of ASCII as two or three tokens.
Read from a picture, a letter is one thing at one place: as one token it is learned like any other,
and it is confirmed at once.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.engine import choose_dtype
from mdiff_core.errors import CheckpointError, ConfigError
from mdiff_core.models.config import ModelConfig, read_json
from mdiff_core.models.loader import load_model
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.training.build import BY_TOKEN, export_checkpoint
from mdiff_core.training.config import ModelSettings

__all__ = ["add_characters"]

ROW_MULTIPLE = 64
"""Embeddings have a multiple of this many rows: kernels like it, and it leaves room."""
HEAD_SHARE = 0.8
"""Size of a new row of the head beside that of the character it began as: as large, it would take
half of that one's probability before it has learned anything."""
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕкАВЕКМНОРСТУХІЈЅ" + "ονκυαιρΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxijskABEKMHOPCTYXIJS" + "ovkuaipABEZHIKMNOPTYX",
)
"""Cyrillic, then Greek letters that are drawn as Latin ones."""


def add_characters(base: str, characters: str, output: Path, *, dtype: str = "bf16") -> Path:
    """Write a checkpoint with one more token for each character that the base writes as several.

    The new rows of the embedding and of the head begin as those of the plain letter (``e`` for
    ``é``) or of the Latin letter that looks like it, else of the character's last byte. Nothing
    else changes: text without the characters has the same ids, and is read the same but for the
    probability that the new tokens take until they are trained.

    Args:
        base: Name or folder of a checkpoint with a byte-level BPE tokenizer.
        characters: The characters, in any order; taken as the tokenizer normalises them.
        output: Folder to write, in the released format.
        dtype: Type of the weights that are written.

    Returns:
        The folder.

    Raises:
        CheckpointError: If the base cannot be read, or has another kind of tokenizer.
        ConfigError: If every character has a token already, or one is whitespace.
    """
    folder = resolve_checkpoint(base)
    config = ModelConfig.from_folder(folder)
    raw = read_json(folder / "tokenizer.json")
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if before.normalizer is not None:
        characters = "".join(map(before.normalizer.normalize_str, characters))
    wanted = [c for c in dict.fromkeys(characters) if len(_ids(before, c)) > 1]
    if not wanted or any(c.isspace() for c in wanted):
        raise ConfigError("give characters that take several tokens in this tokenizer, no spaces")
    origins = {c: _origin(before, c) for c in wanted}
    _extend(raw, before, wanted)
    after = Tokenizer.from_str(json.dumps(raw))
    new = {c: _ids(after, c)[0] for c in wanted}
    rows = max(config.text.vocab_size, max(new.values()) + 1)
    rows = -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
    cpu = torch.device("cpu")
    small = load_model(folder, config, device=cpu, dtype=torch.float32)
    tied = small.decoder.lm_head.weight is small.decoder.embed_tokens.weight
    large = MinerUDiffusion(
        replace(config, text=replace(config.text, vocab_size=rows)), tied=tied
    ).requires_grad_(False)
    values = dict(small.named_parameters())
    for name, value in large.named_parameters():
        old = values[name]
        value[: len(old)] = old
        if name in BY_TOKEN:
            value[len(old) :] = 0
            share = HEAD_SHARE if "lm_head" in name else 1.0
            for character, index in new.items():
                # There may have been unused rows.
                value[index] = old[origins[character]] * share
    export_checkpoint(large, output, ModelSettings(base=base), choose_dtype(dtype, cpu))
    _write(output / "tokenizer.json", raw)
    shapes = read_json(output / "config.json")
    for table in (shapes, *(v for v in shapes.values() if isinstance(v, dict))):
        if "vocab_size" in table:
            table["vocab_size"] = rows
    _write(output / "config.json", shapes)
    return output


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _origin(tokenizer: Tokenizer, character: str) -> int:
    """Return the token that a character's rows begin as."""
    plain = unicodedata.normalize("NFD", character)[0].translate(_LOOK_ALIKES)
    return _ids(tokenizer, plain if plain.isascii() else character)[-1]


def _extend(raw: dict[str, Any], before: Tokenizer, characters: Sequence[str]) -> None:
    """Add a token for each character to a ``tokenizer.json``.

    Not by merges: they join two tokens at a time, so those of a character of three bytes also join
    the first two bytes of its neighbours, to a token that nobody has trained. Each character is
    split off before the tokens are looked for, and what was split off is looked up as a whole.
    """
    model, splits = raw["model"], _pre_tokenizers(raw)
    if model.get("type") != "BPE" or "ByteLevel" not in {split.get("type") for split in splits}:
        raise CheckpointError("only a byte-level BPE tokenizer takes further characters")
    vocab = model["vocab"]
    next_id = max(before.get_vocab().values()) + 1
    for token in raw["added_tokens"]:
        # Ids of added tokens are counted on from the vocabulary's size, except for those in it.
        vocab.setdefault(token["content"], token["id"])
    for character in characters:
        token = "".join(before.encode(character, add_special_tokens=False).tokens)
        if token not in vocab:
            vocab[token] = next_id
            next_id += 1
    model["ignore_merges"] = True
    # None of them means anything in a pattern: those that do are ASCII, and tokens already.
    one = {"type": "Split", "pattern": {"Regex": f"[{''.join(characters)}]"},
           "behavior": "Isolated", "invert": False}  # fmt: skip
    raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [one, *splits]}


def _pre_tokenizers(raw: dict[str, Any]) -> list[dict[str, Any]]:
    found = raw.get("pre_tokenizer") or {}
    return list(found.get("pretokenizers", [found]))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
