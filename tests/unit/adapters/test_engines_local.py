"""The engine in this process, on the embedded checkpoint."""

from __future__ import annotations

import itertools
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mdiff_adapters.engines import DecodeConfig, EngineSpec, Request, open_engine
from mdiff_adapters.engines.local import LocalEngine
from mdiff_adapters.errors import ConfigError, EngineError, ImageError, MDiffError
from mdiff_core import Engine as CoreEngine
from mdiff_core.checkpoint import resolve_checkpoint
from mdiff_core.models.config import ModelConfig
from mdiff_core.segments import prepare_line

TINY = ModelConfig.from_folder(resolve_checkpoint("tiny")).capabilities
WORDS = ("hello", "world", "paper", "green")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_spec(EngineSpec.parse("tiny", dtype="fp32")) as engine:
        yield engine


def piece(text: str) -> Image.Image:
    line = Image.new("L", (120, 28), 255)
    ImageDraw.Draw(line).text((4, 2), text, fill=0, font=ImageFont.load_default(20))
    [(image, _)] = prepare_line(np.asarray(line), TINY)
    return image


def ask(words: tuple[str, ...] = WORDS, prefix: str = "") -> list[Request]:
    return [Request(id=prefix + word, image=piece(word)) for word in words]


def test_every_request_gets_its_own_answer(engine: LocalEngine) -> None:
    answers = {answer.id: answer for answer in engine.answer(ask())}
    assert {key: answer.text for key, answer in answers.items()} == {w: w for w in WORDS}
    assert all(a.num_tokens == 5 and a.num_forwards >= 1 for a in answers.values())
    assert all(a.confidence and a.confidence > 0.5 for a in answers.values())


def test_callers_in_several_threads_share_the_batch(engine: LocalEngine) -> None:
    before = engine.core.stats.num_forwards
    alone = {answer.id: answer for answer in engine.answer(ask())}
    forwards_alone = engine.core.stats.num_forwards - before
    start = threading.Barrier(4)

    def call(k: int) -> dict[str, str]:
        requests = ask(prefix=f"{k}-")
        start.wait(10)
        return {answer.id: answer.text for answer in engine.answer(requests)}

    before = engine.core.stats.num_forwards
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, range(4)))
    for k, result in enumerate(results):
        assert result == {f"{k}-{word}": alone[word].text for word in WORDS}
    # Never more than one after the other would take.
    assert engine.core.stats.num_forwards - before <= 4 * forwards_alone


def test_requests_are_pulled_lazily_in_the_callers_thread(engine: LocalEngine) -> None:
    pulled = []
    image = piece("hello")

    def endless() -> Any:
        for i in itertools.count():
            pulled.append(threading.current_thread())
            yield Request(id=str(i), image=image)

    answers = engine.answer(endless())
    assert pulled == []
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert 1 <= len(pulled) <= 1024
    assert set(pulled) == {threading.current_thread()}
    assert next(iter(engine.answer(ask(("world",))))).text == "world"


def test_one_bad_request_is_an_answer_and_its_neighbours_go_on(engine: LocalEngine) -> None:
    requests = [
        Request(id="table", image=piece("hello"), task="table"),
        Request(id="rule", image=piece("hello"), decode=DecodeConfig(rule="nonsense")),
        Request(id="image", image=b"not an image"),  # type: ignore[arg-type]
        *ask(("world",)),
    ]
    answers = {answer.id: answer for answer in engine.answer(requests)}
    assert answers["world"].text == "world"
    assert "not among its tasks (text)" in str(answers["table"].error)
    assert isinstance(answers["rule"].error, ConfigError)
    assert isinstance(answers["image"].error, ImageError)
    assert {a.finish_reason for a in answers.values()} == {"error", "stop"}


def test_an_error_in_the_callers_iterable_reaches_the_caller_only(engine: LocalEngine) -> None:
    def broken() -> Any:
        yield from ask(("hello",))
        raise OSError("page cannot be rendered")

    with pytest.raises(OSError, match="rendered"):
        list(engine.answer(broken()))
    assert len(list(engine.answer(ask()))) == len(WORDS)


def test_a_core_that_fails_as_a_whole_is_an_answer_to_what_was_running() -> None:
    class LostDevice:
        """The part of the core's interface that is used, on a device that goes away."""

        def __init__(self, core: CoreEngine) -> None:
            self.capabilities = core.capabilities
            self.core = core

        def stream(self, requests: Any) -> Any:
            yield from itertools.islice(self.core.stream(requests), 1)
            raise RuntimeError("device lost")

        def close(self) -> None:
            self.core.close()

    with LocalEngine(LostDevice(CoreEngine.load("tiny", dtype="fp32"))) as engine:  # type: ignore[arg-type]
        answers = list(engine.answer(ask()))
    assert len(answers) == len(WORDS)
    assert sum(answer.error is None for answer in answers) == 1
    assert sum("device lost" in str(answer.error) for answer in answers) == len(WORDS) - 1


def test_a_core_that_ends_early_leaves_no_request_without_an_answer(engine: LocalEngine) -> None:
    class Short:
        """A core that takes requests and answers the first only."""

        capabilities = engine.capabilities

        def stream(self, requests: Any) -> Any:
            return itertools.islice(engine.core.stream(requests), 1)

    answers = list(LocalEngine(Short()).answer(ask()))  # type: ignore[arg-type]
    assert sorted(answer.id for answer in answers) == sorted(WORDS)
    lost = [answer for answer in answers if answer.error is not None]
    assert len(lost) == len(WORDS) - 1
    assert all("ended without an answer" in str(answer.error) for answer in lost)


def test_closing_answers_who_waits_and_refuses_new_calls() -> None:
    engine = LocalEngine.from_spec(EngineSpec.parse("tiny", dtype="fp32"))
    image = piece("hello")
    answers = engine.answer(Request(id=str(i), image=image) for i in range(300))
    assert next(answers).text == "hello"
    engine.close()
    rest = list(answers)
    assert any("closed" in str(answer.error) for answer in rest)
    assert engine.closed
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.answer([])


def test_it_pickles_as_its_spec(engine: LocalEngine) -> None:
    stand_in = LocalEngine(engine.core, EngineSpec("scripted:"))
    assert pickle.loads(pickle.dumps(stand_in)) is open_engine("scripted:")


def test_options_reach_the_core_and_unknown_ones_name_the_nearest() -> None:
    with open_engine("tiny", dtype="fp32", max_sequences=2) as engine:
        assert engine.core.info.dtype == "float32"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"no option 'devise'.*'device'"):
        open_engine("tiny", devise="cpu")


@pytest.mark.parametrize("spec", ["/no/such/folder", "modelscope:org/name", "tinny"])
def test_a_checkpoint_that_is_not_there_is_named(spec: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(MDiffError, match=r"org/name|/no/such/folder|tinny|modelscope"):
        open_engine(spec)
