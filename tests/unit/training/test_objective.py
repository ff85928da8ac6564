"""The objective: both forms agree, and training computes what decoding computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from mdiff_core import DecodeConfig, DecodeRequest, Engine
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.loader import load_model
from mdiff_core.prompts import Codec
from mdiff_core.reference import block_causal_mask, forward_dense
from mdiff_core.training.batch import (
    CONTEXT,
    IGNORE,
    NOISY,
    Batch,
    Draw,
    Encoder,
    Example,
    draw_masks,
)
from mdiff_core.training.config import ObjectiveConfig
from mdiff_core.training.data.sample import Sample, generator
from mdiff_core.training.objective import forward, losses, training_mask

from .conftest import Loaded

TEXT = "Block diffusion reads a line of text in a few steps, several tokens at a time: 3.14, x_2."


def picture(width: int = 140, height: int = 56, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def sample(text: str = TEXT, seed: int = 0, **options: object) -> Sample:
    return Sample(image=picture(seed=seed), text=text, **options)  # type: ignore[arg-type]


def with_block(example: Example, block: int) -> Example:
    return replace(example, draw=Draw(example.draw.masked, block))


@pytest.mark.parametrize("length", [32, 8, 5, 1])
def test_both_forms_give_the_same_loss_on_the_same_draw(random_model: Loaded, length: int) -> None:
    model, codec, config = random_model
    settings = ObjectiveConfig(form="all", block_length=length, full_mask=0.0)
    drawn = ObjectiveConfig(form="drawn", block_length=length, full_mask=0.0)
    # One token a block makes many blocks, each a forward of its own in the drawn form.
    texts = [TEXT, TEXT[:20], TEXT[10:75]] if length > 1 else [TEXT[:12], TEXT[:5]]
    encoder = Encoder(config, codec, settings, seed=3)
    examples = [encoder.encode(sample(text, i), i) for i, text in enumerate(texts)]
    single = Encoder(config, codec, drawn, seed=3)
    with torch.no_grad():
        whole = losses(model, encoder.batch(examples))
        by_block = [
            losses(model, single.batch([with_block(example, block)]))
            for example in examples
            for block in range(len(example.draw.masked))
        ]
    total = sum(float(found.masked) for found in by_block)
    assert total > 0
    assert float(whole.masked) == pytest.approx(total, rel=1e-5)
    assert int(whole.correct) == sum(int(found.correct) for found in by_block)


@pytest.mark.parametrize("form", ["drawn", "all"])
@torch.no_grad()
def test_noisy_copies_are_samples_of_their_own(random_model: Loaded, form: str) -> None:
    model, codec, config = random_model
    settings = ObjectiveConfig(form=form, block_length=16, full_mask=0.3, copies=3)  # type: ignore[arg-type]
    encoder = Encoder(config, codec, settings, seed=3)
    examples = [encoder.encode(sample(TEXT[: 20 + 30 * i], i), i) for i in range(3)]
    assert all(len(example.draw.more) == 2 for example in examples)
    together = losses(model, encoder.batch(examples))
    apart = [
        losses(model, encoder.batch([replace(example, draw=Draw(masked, example.draw.block))]))
        for example in examples
        for masked in (example.draw.masked, *example.draw.more)
    ]
    total = sum(float(found.masked) for found in apart)
    assert float(together.masked) == pytest.approx(total, rel=1e-5)
    assert int(together.correct) == sum(int(found.correct) for found in apart)


def oracle_logits(model: object, example: Example, block: int, length: int) -> Tensor:
    """Logits of one noisy block by the plain decoder's forward."""
    ids = [*example.prompt.tolist(), *example.answer[: block * length].tolist()]
    truth = example.answer[block * length : (block + 1) * length]
    noisy = np.where(example.draw.masked[block], model.config.mask_token_id, truth)  # type: ignore[attr-defined]
    features = model.encode_images([example.patches])[0]  # type: ignore[attr-defined]
    embeds = model.embed(torch.tensor([*ids, *noisy.tolist()]), features)  # type: ignore[attr-defined]
    mask = block_causal_mask(len(ids) + length, len(example.prompt), length)
    return forward_dense(model, embeds, mask)[len(ids) :]  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["drawn", "all"])
@torch.no_grad()
def test_training_and_oracle_give_the_same_logits(random_model: Loaded, form: str) -> None:
    model, codec, config = random_model
    encoder = Encoder(config, codec, ObjectiveConfig(form=form, block_length=16), seed=3)  # type: ignore[arg-type]
    examples = [encoder.encode(sample(TEXT[: 30 + 20 * i], i), i) for i in range(3)]
    batch = encoder.batch(examples)
    hidden, _, attend = forward(model, batch)
    assert hidden.shape[0] == int((batch.kinds != 0).sum()) < batch.ids.numel()
    flat = torch.zeros(batch.ids.numel(), config.text.vocab_size)
    flat[attend.tokens] = model.decoder.lm_head(hidden)
    logits = flat.view(*batch.ids.shape, -1)
    rows = (batch.targets != IGNORE).flatten().nonzero()[:, 0]
    alone, _, _ = forward(model, batch, rows=rows)
    torch.testing.assert_close(model.decoder.lm_head(alone), flat[rows], atol=2e-5, rtol=1e-4)
    for row, example in enumerate(examples):
        noisy = (batch.kinds[row] == NOISY).nonzero()[:, 0]
        blocks = [example.draw.block] if form == "drawn" else range(len(example.draw.masked))
        expected = torch.cat([oracle_logits(model, example, block, 16) for block in blocks])
        torch.testing.assert_close(logits[row, noisy], expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_training_and_engine_give_the_same_logits(
    random_folder: Path, random_model: Loaded
) -> None:
    model, codec, config = random_model
    seen: list[Tensor] = []
    with Engine.load(random_folder, device="cpu", dtype="fp32", cache_bytes=2**24) as engine:
        head = engine._model.decoder.lm_head
        head.register_forward_hook(lambda _, __, out: seen.append(out.clone()))
        # Threshold 0 confirms a block in one forward, so each forward starts fully masked.
        decode = DecodeConfig(threshold=0.0, max_tokens=64, ignore_end=True)
        result = engine.generate([DecodeRequest(image=picture(), config=decode)])[0]
    encoder = Encoder(config, codec, ObjectiveConfig(form="all", full_mask=1.0), seed=0)
    example = encoder.encode(sample("x" * 40), 0)
    answer = np.array(result.token_ids, np.int64)
    assert len(answer) == 64 and len(seen) == 2
    decoded = Example(
        patches=example.patches,
        prompt=example.prompt,
        answer=answer,
        draw=example.draw,
        weight=1.0,
        image_targets=example.image_targets,
        guide=example.guide,
    )
    batch = encoder.batch([decoded])
    hidden, _, _ = forward(model, batch)
    logits = model.decoder.lm_head(hidden)[batch.kinds[0] == NOISY]
    expected = torch.cat(seen)
    # The engine bans the mask token in place.
    kept = torch.arange(logits.shape[1]) != config.mask_token_id
    torch.testing.assert_close(logits[:, kept], expected[:, kept], atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_training_gives_the_logits_that_upstream_computed(shared_dir: Path) -> None:
    folder = shared_dir / "golden" / "checkpoint"
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, device=torch.device("cpu"), dtype=torch.float32)
    codec = Codec.from_folder(folder, image_token_id=config.image_token_id)
    encoder = Encoder(config, codec, ObjectiveConfig(form="all"), seed=0)
    with safe_open(shared_dir / "golden" / "tensors.safetensors", "pt") as tensors:
        ids = tensors.get_tensor("line.block_ids").flatten().numpy().astype(np.int64)
        expected = tensors.get_tensor("line.block_logits").squeeze(0)
        prompt = tensors.get_tensor("line.input_ids").flatten().numpy().astype(np.int64)
    image = Image.open(shared_dir / "golden" / "line.png").convert("RGB")
    example = encoder.encode(Sample(image=image, text="x"), 0)
    np.testing.assert_array_equal(example.prompt, prompt)
    masked = (ids == config.mask_token_id).reshape(-1, 32)
    # Clean blocks in front of a noisy one: what upstream ran in one causal pass.
    replayed = Example(
        patches=example.patches,
        prompt=example.prompt,
        answer=ids,
        draw=Draw(masked, 0),
        weight=1.0,
        image_targets=example.image_targets,
        guide=np.full(len(ids), -1, np.int64),
    )
    batch = encoder.batch([replayed])
    hidden, _, _ = forward(model, batch)
    logits = model.decoder.lm_head(hidden)[batch.kinds[0] == NOISY]
    # The logits reach 18, and the recorded fp32 values are themselves 3e-4 from an fp64 run.
    torch.testing.assert_close(logits, expected.view(-1, logits.shape[1]), atol=3e-4, rtol=1e-4)


def test_mask_shows_context_behind_and_the_own_noisy_block() -> None:
    # Prompt of 3, blocks of 2: two clean blocks, three noisy ones, one place of padding.
    blocks = torch.tensor([[-2, -1, -1, 0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 0]])
    kinds = torch.tensor([[CONTEXT] * 7 + [NOISY] * 6 + [0]])
    mask = training_mask(blocks, kinds)[0]
    assert mask[1].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert mask[3].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert mask[7].nonzero()[:, 0].tolist() == [0, 1, 2, 7, 8]
    assert mask[11].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 11, 12]
    assert mask[13].nonzero()[:, 0].tolist() == [13]
    assert not mask[:13, 13].any()


@given(
    seed=st.integers(0, 10**6),
    length=st.sampled_from([1, 2, 5, 8, 32]),
    num_blocks=st.integers(1, 3),
    full=st.sampled_from([0.0, 0.5, 1.0]),
    runs=st.sampled_from([0.0, 1.0]),
)
def test_every_block_has_the_same_number_of_masked_positions(
    seed: int, length: int, num_blocks: int, full: float, runs: float
) -> None:
    config = ObjectiveConfig(block_length=length, full_mask=full, mask_runs=runs)
    draw = draw_masks(generator(seed), num_blocks, config)
    counts = draw.masked.sum(1)
    assert draw.masked.shape == (num_blocks, length)
    assert 0 <= draw.block < num_blocks
    assert counts.min() == counts.max() >= 1
    if full == 1.0:
        assert draw.masked.all()
    if runs:
        starts = np.diff(np.pad(draw.masked.astype(int), ((0, 0), (1, 0))), axis=1) == 1
        assert starts.sum(1).max() <= 3


def test_mask_shares_are_spread_evenly() -> None:
    config = ObjectiveConfig(full_mask=0.3)
    shares = np.array([draw_masks(generator(i), 1, config).masked.mean() for i in range(2000)])
    # 30 % fully masked, the rest uniform: a tenth of them in each tenth.
    assert np.mean(shares == 1.0) == pytest.approx(0.3 + 0.7 / 32, abs=0.03)
    partial = shares[shares < 1]
    histogram = np.histogram(partial, bins=5, range=(0, 1))[0] / len(partial)
    assert histogram.max() < 0.26 and histogram.min() > 0.14


def test_hard_samples_weigh_more(random_model: Loaded) -> None:
    model, codec, config = random_model
    encoder = Encoder(config, codec, ObjectiveConfig(beta=2.0), seed=0)
    plain = encoder.encode(sample(), 0)
    hard = encoder.encode(sample(consistency=0.25), 0)
    assert (plain.weight, hard.weight) == (1.0, 2.5)
    with torch.no_grad():
        ratio = (
            losses(model, encoder.batch([hard])).masked
            / losses(model, encoder.batch([plain])).masked
        )
    assert float(ratio) == pytest.approx(2.5, rel=1e-5)


def test_answer_ends_with_the_end_token_and_is_filled(random_model: Loaded) -> None:
    _, codec, config = random_model
    encoder = Encoder(config, codec, ObjectiveConfig(block_length=8), seed=0)
    for length, blocks in ((0, 1), (7, 1), (8, 2)):
        answer = encoder.encode(sample("a" * length), 0).answer.tolist()
        assert len(answer) == 8 * blocks
        assert answer[length] == codec.token_id("<|im_end|>")
        assert set(answer[length + 1 :]) <= {codec.token_id("<|endoftext|>")}


def test_image_tokens_name_the_characters_drawn_on_them(random_model: Loaded) -> None:
    _, codec, config = random_model
    encoder = Encoder(config, codec, ObjectiveConfig(), seed=0)
    # Two lines of three characters on 56 x 140 px: tokens of 28 px, 5 by 2.
    boxes = np.array(
        [[0, 0, 30, 28], [30, 0, 60, 28], [60, 0, 112, 28],
         [0, 28, 20, 56], [20, 28, 26, 56], [26, 28, 84, 56]],
        np.float32,
    )  # fmt: skip
    example = encoder.encode(sample("aạ cde", boxes=boxes), 0)
    ids, spans = codec.encode_with_spans("aạ cde")
    named = example.image_targets.reshape(2, 5)
    token = {start: id for (start, _), id in zip(spans, ids, strict=True)}
    # A letter of three tokens; the first of them says little about it.
    assert token[1] == ids[3]
    assert named[0].tolist() == [token[0], token[1], token[2], token[2], IGNORE]
    # "d" is too narrow to lie under the middle of a token.
    assert named[1].tolist() == [token[3], token[5], token[5], IGNORE, IGNORE]
    guide = example.guide[: len(ids)].tolist()
    assert [guide[i] for i, (start, _) in enumerate(spans) if start == 1] == [1, 1, 1]
    assert guide[0] == 0 and guide[-1] == 5 + 1
    assert set(example.guide[len(ids) :].tolist()) == {-1}


def test_guiding_pulls_the_heads_to_their_image_tokens(random_model: Loaded) -> None:
    model, codec, config = random_model
    boxes = np.array([[28 * i, 0, 28 * i + 28, 56] for i in range(5)], np.float32)
    encoder = Encoder(config, codec, ObjectiveConfig(full_mask=1.0), seed=0)
    batch = encoder.batch([encoder.encode(sample("abcde", boxes=boxes), 0)])
    model.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    history = []
    for _ in range(30):
        found = losses(model, batch, guide_heads=((1, 1),)).guided / batch.num_guided
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        history.append(float(found.detach()))
    assert batch.num_guided == 5
    assert history[-1] < 0.3 * history[0]


def test_padding_of_a_batch_changes_nothing(random_model: Loaded) -> None:
    model, codec, config = random_model
    encoder = Encoder(config, codec, ObjectiveConfig(form="all", block_length=8), seed=1)
    examples = [encoder.encode(sample(text, i), i) for i, text in enumerate(["ab", TEXT])]
    with torch.no_grad():
        together = losses(model, encoder.batch(examples)).masked
        apart = sum(losses(model, encoder.batch([example])).masked for example in examples)
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-4)
    assert isinstance(encoder.batch(examples), Batch)
