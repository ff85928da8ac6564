"""The engine against the oracle, and its promises about forwards, memory, neighbours and errors."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont, ImageSequence
from safetensors.torch import load_file, save_file

from mdiff_core import DecodeConfig, DecodeRequest, DecodeResult, Engine, unmasking
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.config import Capabilities
from mdiff_core.errors import CapacityError, ConfigError, DecodeError, EngineError, ImageError
from mdiff_core.graphs import GraphedRunner, _StaticStep
from mdiff_core.imaging import Patches
from mdiff_core.segments import prepare_line
from mdiff_core.testing import write_random_checkpoint

from .conftest import Oracle, make_oracle

RULES = ("dynamic", "static", "sequential", "entropy-bounded", "factor")


def noise(seed: int, width: int = 84, height: int = 56) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def fixed(blocks: int, steps: int, *, seed: int = 0, **settings: object) -> DecodeRequest:
    """A request that takes ``blocks`` blocks of 32 with exactly ``steps`` steps each."""
    config = DecodeConfig(
        rule="static", denoising_steps=steps, max_tokens=32 * blocks, ignore_end=True, **settings
    )  # type: ignore[arg-type]  # plain keyword values
    return DecodeRequest(image=noise(seed), config=config)


@st.composite
def requests(draw: st.DrawFn) -> DecodeRequest:
    length = draw(st.sampled_from([4, 8, 32]))
    return DecodeRequest(
        image=noise(draw(st.integers(0, 5)), draw(st.integers(28, 160)), draw(st.integers(20, 90))),
        task=draw(st.sampled_from(["text", "table", "layout", "formula"])),
        config=DecodeConfig(
            block_length=length,
            denoising_steps=draw(st.sampled_from([1, 2, 5, 32])),
            threshold=draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.95, 1.0])),
            rule=draw(st.sampled_from(RULES)),
            max_tokens=draw(st.integers(1, 70)),
            ignore_end=draw(st.booleans()),
        ),
    )


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=st.lists(requests(), min_size=2, max_size=17), ends=st.sets(st.integers(0, 255)))
def test_every_answer_equals_the_oracle_in_any_company(
    random_engine: Engine,
    random_oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
    batch: list[DecodeRequest],
    ends: set[int],
) -> None:
    end_ids = tuple(sorted(ends))
    monkeypatch.setattr(random_engine._codec, "end_ids", end_ids)
    alone = [random_engine.generate([request])[0] for request in batch]
    together = random_engine.generate(batch)
    backwards = random_engine.generate(batch[::-1])[::-1]
    for request, *results in zip(batch, alone, together, backwards, strict=True):
        want = random_oracle(request, end_ids)
        for result in results:
            assert result.token_ids == want.token_ids
            assert result.step_map == want.step_map
            assert result.finish_reason == want.finish_reason
            assert result.confidence == pytest.approx(want.confidence, abs=1e-4)
            assert result.num_forwards <= want.num_forwards


@pytest.mark.parametrize(
    "shapes",
    [
        {"num_shards": 3, "tied": True, "projector": "pm2x"},
        {"text": {"num_key_value_heads": 4}, "old_spelling": True},
    ],
)
def test_other_checkpoint_forms(tmp_path: Path, shapes: dict[str, object]) -> None:
    folder = write_random_checkpoint(tmp_path / "other", seed=3, **shapes)  # type: ignore[arg-type]
    request = DecodeRequest(
        image=noise(1), config=DecodeConfig(threshold=0.5, max_tokens=64, ignore_end=True)
    )
    want = make_oracle(folder)(request)
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=2**22) as engine:
        [result] = engine.generate([request])
    assert (result.token_ids, result.step_map) == (want.token_ids, want.step_map)


@pytest.mark.parametrize("steps", [1, 6, 32])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_text_costs_exactly_its_denoising_steps(
    random_engine: Engine, random_oracle: Oracle, blocks: int, steps: int
) -> None:
    before = random_engine.stats.num_forwards
    [result] = random_engine.generate([fixed(blocks, steps)])
    assert result.num_forwards == blocks * steps
    assert random_engine.stats.num_forwards - before == blocks * steps
    if blocks == 2:
        assert random_oracle(fixed(blocks, steps)).num_forwards == 1 + blocks * (steps + 1)


def test_the_head_runs_on_masked_rows_only(random_engine: Engine) -> None:
    before = random_engine._runner.num_head_rows
    random_engine.generate([fixed(2, 4)])
    # 32, 24, 16 and 8 masked rows a block; no prompt and no commit row.
    assert random_engine._runner.num_head_rows - before == 2 * (32 + 24 + 16 + 8)


@pytest.mark.parametrize("position", [0, 1, 7, 31, 32, 40])
def test_stops_inside_a_block(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """Confirming from the left, an end token at ``position`` costs ``position + 1`` forwards."""
    request = DecodeRequest(
        image=noise(4),
        config=DecodeConfig(rule="sequential", max_tokens=64, ignore_end=True),
    )
    [full] = random_engine.generate([request])
    end = full.token_ids[position]
    first = full.token_ids.index(end)
    monkeypatch.setattr(random_engine._codec, "end_ids", (end,))
    stopping = DecodeRequest(
        image=request.image, config=DecodeConfig(rule="sequential", max_tokens=64)
    )
    [result] = random_engine.generate([stopping])
    assert result.token_ids == full.token_ids[:first]
    assert result.num_forwards == first + 1
    assert result.finish_reason == ("stop" if first else "empty")


def test_the_earliest_end_token_wins_whatever_its_kind(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = DecodeRequest(
        image=noise(5), config=DecodeConfig(threshold=0.0, max_tokens=32, ignore_end=True)
    )
    [full] = random_engine.generate([request])
    kinds = (full.token_ids[20], full.token_ids[9])
    monkeypatch.setattr(random_engine._codec, "end_ids", kinds)
    stopping = DecodeRequest(image=request.image, config=DecodeConfig(threshold=0.0, max_tokens=32))
    [result] = random_engine.generate([stopping])
    first = min(full.token_ids.index(kind) for kind in kinds)
    assert result.token_ids == full.token_ids[:first]


@pytest.mark.parametrize(("limit", "want"), [(1, 1), (31, 31), (32, 32), (33, 33)])
def test_the_limit_cuts_exactly(random_engine: Engine, limit: int, want: int) -> None:
    config = DecodeConfig(threshold=0.0, max_tokens=limit, ignore_end=True)
    [result] = random_engine.generate([DecodeRequest(image=noise(0), config=config)])
    assert len(result.token_ids) == want
    assert result.finish_reason == "length"


def test_the_mask_token_is_never_produced(random_engine: Engine) -> None:
    mask = random_engine.config.mask_token_id
    head = random_engine._model.decoder.lm_head
    batch = [
        DecodeRequest(
            image=noise(i),
            config=DecodeConfig(temperature=50.0, seed=i, threshold=0.0, max_tokens=512,
                                ignore_end=True),
        )
        for i in range(6)
    ]  # fmt: skip
    assert head.out_features == 640
    for result in random_engine.generate(batch):
        # Tokens at temperature 50 are nearly uniform: without the ban, 6 x 512 draws miss the mask
        # with a chance of (639/640)^3072, 0.8 %.
        assert mask not in result.token_ids


def test_sampling_is_seeded_per_request_and_independent_of_neighbours(
    random_engine: Engine,
) -> None:
    def request(seed: int | None, **settings: object) -> DecodeRequest:
        config = DecodeConfig(
            temperature=1.5, seed=seed, max_tokens=32, threshold=0.3, ignore_end=True, **settings
        )  # type: ignore[arg-type]  # plain keyword values
        return DecodeRequest(image=noise(1), config=config)

    alone = [random_engine.generate([request(seed)])[0].token_ids for seed in (1, 2, None)]
    mixed = random_engine.generate([request(1), fixed(2, 6), request(2), request(None)])
    assert [mixed[i].token_ids for i in (0, 2, 3)] == alone
    assert alone[0] != alone[1]
    [one] = random_engine.generate([request(1, top_k=1)])
    # As upstream: with a single candidate every probability is 1, so a block takes one step.
    assert one.num_forwards == 1
    [nucleus] = random_engine.generate([request(1, top_p=0.5)])
    assert len(nucleus.token_ids) == 32


def test_one_bad_image_leaves_the_other_nine_equal(random_engine: Engine) -> None:
    batch = [fixed(1, 4, seed=i) for i in range(9)]
    want = [result.token_ids for result in random_engine.generate(batch)]
    broken = DecodeRequest(image="no image")  # type: ignore[arg-type]  # what the test is about
    results = random_engine.generate([*batch[:4], broken, *batch[4:]])
    assert results[4].finish_reason == "error"
    assert isinstance(results[4].error, ImageError)
    assert [r.token_ids for r in results[:4] + results[5:]] == want


def test_a_broken_file_is_an_error_of_its_request(random_engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    noise(0, 200, 200).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image:
        [result] = random_engine.generate([DecodeRequest(image=image)])
    assert isinstance(result.error, ImageError)


def test_the_cache_budget_holds_and_large_requests_wait_or_are_refused(
    random_checkpoint: Path,
) -> None:
    batch = [fixed(2, 4, seed=i) for i in range(12)]
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**24) as roomy:
        want = [r.token_ids for r in roomy.generate(batch)]
    # 256 bytes a token and layer: room for two or three of the requests.
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**17) as engine:
        assert engine.info.cache_bytes <= 2**17
        pool = engine._scheduler.pool
        lowest = pool.num_pages
        results = []
        for _, result in engine.stream(batch):
            lowest = min(lowest, pool.num_free)
            results.append(result)
        assert sorted(r.token_ids for r in results) == sorted(want)
        assert pool.num_free == pool.num_pages
        [refused] = engine.generate([fixed(100, 1)])
        assert isinstance(refused.error, CapacityError)
        assert "3200 of answer" in str(refused.error)


def test_a_prompt_larger_than_a_forward_runs_in_chunks(random_checkpoint: Path) -> None:
    request = DecodeRequest(
        image=noise(2, 400, 300), config=DecodeConfig(max_tokens=40, threshold=0.4, ignore_end=True)
    )
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23) as engine:
        [whole] = engine.generate([request])
    with Engine.load(
        random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23, max_batch_tokens=64
    ) as engine:
        [chunked, other] = engine.generate([request, fixed(1, 4)])
    assert chunked.token_ids == whole.token_ids
    assert chunked.num_forwards > whole.num_forwards
    assert other.error is None


@pytest.mark.parametrize("room", [32, 33, 63])
def test_a_forward_without_room_for_two_blocks_gives_the_same_answers(
    random_engine: Engine, random_checkpoint: Path, room: int
) -> None:
    batch = [fixed(3, 2), fixed(2, 4, seed=1), fixed(1, 1, seed=2)]
    with Engine.load(
        random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23, max_batch_tokens=room
    ) as engine:
        narrow = engine.generate(batch)
        [refused] = engine.generate(
            [DecodeRequest(image=noise(0), config=DecodeConfig(block_length=room + 1))]
        )
        assert engine._scheduler.is_idle
    assert [r.token_ids for r in narrow] == [r.token_ids for r in random_engine.generate(batch)]
    assert isinstance(refused.error, CapacityError)
    assert f"block_length {room + 1} exceeds max_batch_tokens {room}" in str(refused.error)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize(
    "name", ["cache_bytes", "max_batch_tokens", "max_sequences", "max_batch_patches"]
)
def test_a_limit_below_one_names_field_value_and_range(
    random_engine: Engine, name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=rf"Engine\.{name} = {value!r} .*integer >= 1"):
        Engine(random_engine._model, random_engine._codec, **{name: value})  # type: ignore[arg-type]


def test_memory_is_flat_over_many_requests(random_engine: Engine) -> None:
    def live_tensors() -> int:
        gc.collect()
        return sum(type(o) is torch.Tensor for o in gc.get_objects())

    random_engine.generate([fixed(1, 1, seed=i) for i in range(20)])
    before = live_tensors()
    random_engine.generate([fixed(1, 1, seed=i % 7) for i in range(500)])
    # The rotary tables of a few image sizes may be new.
    assert live_tensors() - before <= 8
    pool = random_engine._scheduler.pool
    assert pool.num_free == pool.num_pages
    assert not random_engine._tickets


def test_an_abandoned_stream_frees_its_pages(random_engine: Engine) -> None:
    stream = random_engine.stream([fixed(3, 8, seed=i) for i in range(6)])
    next(stream)
    stream.close()
    pool = random_engine._scheduler.pool
    assert pool.num_free == pool.num_pages
    assert random_engine._scheduler.is_idle


def test_two_interleaved_streams_share_a_small_cache(random_checkpoint: Path) -> None:
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**17) as engine:
        first = engine.stream([fixed(2, 4, seed=i) for i in range(5)])
        second = engine.stream([fixed(2, 4, seed=i) for i in range(5)])
        got: list[tuple[int, list[int]]] = []
        for a, b in zip(first, second, strict=True):
            got += [(a[0], a[1].token_ids), (b[0], b[1].token_ids)]
        by_index = dict(got)
        assert len(got) == 10
        assert all(by_index[index] == tokens for index, tokens in got)


def test_threads_share_one_batch(random_checkpoint: Path) -> None:
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23) as engine:
        want = [engine.generate([fixed(4, 32, seed=i)])[0].token_ids for i in range(4)]
        before = engine.stats.num_forwards
        barrier, got = threading.Barrier(4), {}

        def work(i: int) -> None:
            barrier.wait()
            got[i] = engine.generate([fixed(4, 32, seed=i)])[0].token_ids

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got[i] for i in range(4)] == want
        # Alone each takes 128 forwards; one after the other would be 512.
        assert engine.stats.num_forwards - before < 4 * 128


def test_nan_is_an_error_of_its_request(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "nan", gain=float("nan"))
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=2**22) as engine:
        [result] = engine.generate([fixed(1, 4)])
    assert isinstance(result.error, DecodeError)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_in_one_image_leaves_the_neighbours_equal(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    batch = [fixed(1, 4, seed=i, temperature=temperature) for i in range(3)]
    want = [result.token_ids for result in random_engine.generate(batch)]
    encode = random_engine._model.encode_images
    broken = random_engine._prepare(batch[1], batch[1].image).patches.pixels

    # How many images one call gets depends on which are prepared, so it goes by what they show.
    def second_broken(images: list[Patches]) -> list[torch.Tensor]:
        return [
            features * torch.nan if np.array_equal(image.pixels, broken) else features
            for image, features in zip(images, encode(images), strict=True)
        ]

    monkeypatch.setattr(random_engine._model, "encode_images", second_broken)
    results = random_engine.generate(batch)
    assert isinstance(results[1].error, DecodeError) and "NaN" in str(results[1].error)
    assert [results[i].token_ids for i in (0, 2)] == [want[0], want[2]]


@pytest.mark.parametrize("temperature", [1e-40, 1e-5, 1e300])
def test_any_temperature_above_0_can_be_drawn_at(random_engine: Engine, temperature: float) -> None:
    cold = random_engine.generate([fixed(1, 4, temperature=1e-5, top_k=5)])[0]
    [result] = random_engine.generate([fixed(1, 4, temperature=temperature, top_k=5)])
    assert result.error is None and len(result.token_ids) == 32
    assert (result.token_ids == cold.token_ids) == (temperature < 1)


def test_a_rule_that_fails_costs_its_own_request_only(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(state: unmasking.StepState) -> torch.Tensor:
        raise ValueError("no such luck")

    monkeypatch.setitem(unmasking._RULES, "failing", (failing, False))
    good = [fixed(1, 4, seed=i) for i in range(3)]
    want = [result.token_ids for result in random_engine.generate(good)]
    bad = DecodeRequest(image=noise(9), config=DecodeConfig(rule="failing"))
    *results, broken = random_engine.generate([*good, bad])
    assert [result.token_ids for result in results] == want
    assert isinstance(broken.error, DecodeError) and "no such luck" in str(broken.error)


def test_what_cannot_be_prepared_is_an_error_of_its_request(random_engine: Engine) -> None:
    good = fixed(1, 4)
    want = random_engine.generate([good])[0].token_ids
    odd, strip = (DecodeRequest(image=image) for image in (
        Image.new("La", (84, 56)),  # a mode that Pillow does not convert
        Image.new("L", (500_000, 1), 255),  # padded to 50:1 it would be 15 GB
    ))  # fmt: skip
    first, second, third = random_engine.generate([odd, good, strip])
    assert isinstance(first.error, ImageError)
    assert second.token_ids == want
    assert third.error is None


def test_out_of_memory_halves_the_batch(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [fixed(1, 4, seed=i, temperature=i % 2) for i in range(7)]
    want = [r.token_ids for r in random_engine.generate(batch)]
    run = random_engine._runner.run
    sizes = []

    def limited(spans: list[object]) -> object:
        sizes.append(len(spans))
        outcomes = run(spans)  # type: ignore[arg-type]  # spans as the scheduler made them
        if len(spans) > 2:
            raise torch.OutOfMemoryError("scripted")  # after it has drawn tokens
        return outcomes

    monkeypatch.setattr(random_engine._runner, "run", limited)
    assert [r.token_ids for r in random_engine.generate(batch)] == want
    assert max(sizes) == 7


def test_an_unknown_rule_or_task_is_refused_with_the_nearest(random_engine: Engine) -> None:
    with pytest.raises(ConfigError, match="did you mean 'dynamic'"):
        random_engine.generate([DecodeRequest(image=noise(0), config=DecodeConfig(rule="dynamik"))])
    with pytest.raises(ConfigError, match="did you mean 'table'"):
        random_engine.generate([DecodeRequest(image=noise(0), task="tabel")])  # type: ignore[arg-type]


def test_requests_are_taken_lazily(random_engine: Engine) -> None:
    taken = []

    def many() -> object:
        for i in range(100_000):
            taken.append(i)
            yield fixed(1, 1)

    stream = random_engine.stream(many())  # type: ignore[arg-type]  # a generator of requests
    next(stream)
    stream.close()
    assert len(taken) <= 4 * random_engine._scheduler.max_sequences


def test_broken_images_are_taken_lazily_too_and_counted(random_engine: Engine) -> None:
    taken, broken = [], DecodeRequest(image=Image.new("RGB", (0, 5)))

    def many() -> object:
        for i in range(100_000):
            taken.append(i)
            yield broken

    before = random_engine.stats.num_requests
    stream = random_engine.stream(many())  # type: ignore[arg-type]  # a generator of requests
    next(stream)
    stream.close()
    assert len(taken) <= 4 * random_engine._scheduler.max_sequences
    assert random_engine.stats.num_requests - before == len(taken)


def test_pages_of_a_file_are_read_as_they_were_when_they_were_taken(
    random_engine: Engine, tmp_path: Path
) -> None:
    """Pillow shows the pages of a file one after the other in the same object."""
    pages = [noise(i) for i in range(5)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    config = fixed(1, 4).config
    want = [random_engine.generate([DecodeRequest(image=page, config=config)])[0] for page in pages]
    with Image.open(tmp_path / "pages.tif") as file:
        got = random_engine.generate(
            DecodeRequest(image=page, config=config) for page in ImageSequence.Iterator(file)
        )
    assert [result.token_ids for result in got] == [result.token_ids for result in want]


def test_a_stream_that_the_garbage_collector_ends_inside_a_forward_holds_nobody_up(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = random_engine.stream([fixed(4, 8, seed=1), fixed(4, 8, seed=2)])
    next(abandoned)
    run, left = random_engine._runner.run, [abandoned]

    def collecting(spans: list[object]) -> object:
        while left:
            left.pop().close()  # as the collector would, on the thread that holds the lock
        return run(spans)  # type: ignore[arg-type]  # spans as the scheduler made them

    monkeypatch.setattr(random_engine._runner, "run", collecting)
    got: list[DecodeResult] = []
    thread = threading.Thread(
        target=lambda: got.extend(random_engine.generate([fixed(1, 4)])), daemon=True
    )
    thread.start()
    thread.join(timeout=60)
    assert len(got) == 1 and got[0].error is None
    assert random_engine._scheduler.is_idle


def test_a_closed_engine_says_so(random_checkpoint: Path) -> None:
    engine = Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**20)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate([fixed(1, 1)])
    engine.close()
    with pytest.raises(EngineError, match="closed"), engine:
        pass


def test_an_engine_closed_while_an_image_is_decoded_says_so(
    random_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**20)
    monkeypatch.setattr("mdiff_core.engine.load_image", lambda image: engine.close())
    with pytest.raises(EngineError, match="closed"):
        engine.generate([fixed(1, 1)])


class ClosingLock:
    """The engine's lock, behind whose first holder somebody closes the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, engine._lock
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        if not self._engine._closed:
            self._engine.close()


def test_an_engine_closed_between_two_forwards_loses_no_answer_silently(
    random_checkpoint: Path,
) -> None:
    engine = Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**20)
    engine._lock = ClosingLock(engine)  # type: ignore[assignment]  # as far as it is used
    with pytest.raises(EngineError, match="closed"):
        engine.generate([fixed(1, 4)])


def test_an_unknown_attention_is_refused_with_the_nearest(random_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"attention 'flahs' is unknown .*'flash'"):
        Engine.load(random_checkpoint, device="cpu", dtype="fp32", attention="flahs")


def test_two_engines_in_one_process(tmp_path: Path, random_engine: Engine) -> None:
    folder = write_random_checkpoint(tmp_path / "second", seed=9)
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=2**22) as second:
        ours, theirs = random_engine.stream([fixed(2, 8)]), second.stream([fixed(2, 8)])
        assert next(ours)[1].token_ids != next(theirs)[1].token_ids


LINES = ("The reader looks at a page", "Total 1,250.40 on 7 June", "parallel (x + y)")


def drawn_pieces(capabilities: Capabilities) -> list[Image.Image]:
    """Lines in Pillow's own font, as the embedded checkpoint takes them."""
    pieces = []
    for text in LINES:
        line = Image.new("L", (400, 30), 255)
        ImageDraw.Draw(line).text((6, 2), text, fill=0, font=ImageFont.load_default(24))
        [(image, _)] = prepare_line(np.asarray(line), capabilities)
        pieces.append(image)
    return pieces


def test_reduced_precision_reads_the_same_text(tiny_engine: Engine) -> None:
    from mdiff_core.engine import choose_dtype

    assert choose_dtype("auto", torch.device("cpu")) in (torch.float32, torch.bfloat16)
    with pytest.raises(ConfigError, match="did you mean"):
        choose_dtype("floaty16", torch.device("cpu"))
    requests = [DecodeRequest(image=image) for image in drawn_pieces(tiny_engine.capabilities)]
    with Engine.load("tiny", device="cpu", dtype="bf16", cache_bytes=2**24) as engine:
        assert engine.info.dtype == "bfloat16"
        narrow = [result.text for result in engine.generate(requests)]
    assert tuple(narrow) == LINES
    assert [result.text for result in tiny_engine.generate(requests)] == narrow


@pytest.mark.parametrize("threshold", [0.95, 0.5])
def test_the_embedded_checkpoint_is_decoded_as_by_the_oracle(
    tiny_engine: Engine, threshold: float
) -> None:
    oracle = make_oracle(resolve_checkpoint("tiny"))
    requests = [
        DecodeRequest(image=image, config=DecodeConfig(threshold=threshold))
        for image in drawn_pieces(tiny_engine.capabilities)
    ]
    for request, ours in zip(requests, tiny_engine.generate(requests), strict=True):
        expected = oracle(request)
        assert (ours.token_ids, ours.step_map) == (expected.token_ids, expected.step_map)


@pytest.mark.parametrize("capture", [False, True])
def test_the_static_step_of_cuda_graphs_gives_the_same_answers(
    random_checkpoint: Path,
    random_oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
    capture: bool,
) -> None:
    """What is captured on a GPU, run here without a graph: same tokens, padding included.

    With ``capture`` the warm-ups run that precede a graph; they must change nobody's cache.
    """
    monkeypatch.setattr(_StaticStep, "capture", lambda step, pool: step.warm_up())
    batch = [
        DecodeRequest(
            image=noise(i, 84 + 28 * i),
            config=DecodeConfig(
                threshold=(0.2, 0.5, 0.95)[i % 3],
                rule=("dynamic", "static")[i % 2],
                denoising_steps=(6, 32)[i % 2],
                max_tokens=70,
                ignore_end=True,
            ),
        )
        for i in range(7)
    ]
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23) as engine:
        graphed = GraphedRunner(
            engine._runner,  # type: ignore[arg-type]  # on a CPU it is the eager runner
            trash_slot=engine.info.cache_tokens,
            capture=capture,
        )
        engine._runner = graphed
        results = engine.generate(batch)
        assert graphed.num_replays > 0.9 * (engine.stats.num_forwards - len(batch))
    for request, result in zip(batch, results, strict=True):
        want = random_oracle(request)
        assert (result.token_ids, result.step_map) == (want.token_ids, want.step_map)


def test_what_an_unwritten_slot_holds_changes_no_answer_of_the_static_step(
    random_checkpoint: Path, random_oracle: Oracle
) -> None:
    """The cache is allocated and not filled: on a GPU it may hold anything, NaN too."""
    # One row a step: no padding row writes the slot that padding goes to.
    request = fixed(1, 4)
    with Engine.load(random_checkpoint, device="cpu", dtype="fp32", cache_bytes=2**23) as engine:
        for tensor in (*engine._cache.keys, *engine._cache.values):
            tensor.fill_(float("nan"))
        graphed = GraphedRunner(
            engine._runner,  # type: ignore[arg-type]  # on a CPU it is the eager runner
            trash_slot=engine.info.cache_tokens,
            capture=False,
        )
        engine._runner = graphed
        [result] = engine.generate([request])
        assert graphed.num_replays > 0
    assert result.token_ids == random_oracle(request).token_ids


def test_an_answer_with_the_placeholder_of_an_image_is_an_answer_like_any_other(
    tmp_path: Path,
) -> None:
    """It must not take the place of an image's features, its own or a neighbour's."""
    folder = write_random_checkpoint(tmp_path / "checkpoint")
    image_id, file = 261, folder / "model.safetensors"
    tensors = load_file(file)
    tensors["language_model.lm_head.weight"][image_id] *= -8
    save_file(tensors, file)
    requests = [
        DecodeRequest(
            image=noise(i),
            config=DecodeConfig(
                threshold=0.3, block_length=8, max_tokens=8 * (1 + i % 4), ignore_end=True
            ),
        )
        for i in range(8)
    ]
    # Room for three at once: new prompts meet blocks of others that are under way.
    with Engine.load(folder, device="cpu", dtype="fp32", cache_bytes=150_000) as engine:
        assert engine.config.image_token_id == image_id
        found = [result.token_ids for result in engine.generate(requests)]
    assert sum(image_id in tokens for tokens in found) >= 4
    oracle = make_oracle(folder)
    assert found == [oracle(request).token_ids for request in requests]
