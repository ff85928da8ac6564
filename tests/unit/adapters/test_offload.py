"""Blocking iterators off the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mdiff_adapters.engines import EngineSpec
from mdiff_adapters.offload import _executors, iterate_off_loop
from mdiff_adapters.testing import ScriptedEngine

SPEC = EngineSpec("scripted:")


async def collect(iterator, engine=SPEC) -> list:
    return [item async for item in iterate_off_loop(lambda: iterator, engine)]


def test_items_arrive_in_order_from_one_thread_that_is_not_the_loops() -> None:
    threads = set()

    def count(n: int) -> Iterator[int]:
        for i in range(n):
            threads.add(threading.current_thread())
            yield i

    async def run() -> list:
        return await asyncio.gather(*(collect(count(5)) for _ in range(4)))

    assert asyncio.run(run()) == [list(range(5))] * 4
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_engines_have_threads_of_their_own_which_go_with_them() -> None:
    names: dict[str, set[int]] = {"a": set(), "b": set()}

    def note(which: str) -> Iterator[None]:
        for _ in range(3):
            names[which].add(threading.get_ident())
            yield

    engine = ScriptedEngine()

    async def run(own: ScriptedEngine) -> None:
        await asyncio.gather(collect(note("a"), own), collect(note("b"), SPEC))

    asyncio.run(run(engine))
    assert len(names["a"]) == len(names["b"]) == 1
    assert names["a"] != names["b"]
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


@dataclass
class Unhashable:
    """An engine that compares by value, which takes its hash away."""

    inner: Any


class Slotted:
    """An engine that no weak reference can point to."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


@pytest.mark.parametrize("kind", [Unhashable, Slotted])
def test_engines_need_neither_a_hash_nor_a_weak_reference(kind: Any) -> None:
    threads: set[threading.Thread] = set()

    def note() -> Iterator[int]:
        for i in range(3):
            threads.add(threading.current_thread())
            yield i

    async def run(own: Any) -> list:
        return await asyncio.gather(*(collect(note(), own) for _ in range(2)))

    gc.collect()
    before = len(_executors._held)
    engine = kind(ScriptedEngine())
    assert asyncio.run(run(engine)) == [[0, 1, 2]] * 2
    assert len(threads) == 1
    del engine
    gc.collect()
    assert len(_executors._held) == before + (kind is Slotted)  # one for all of that class


def test_an_error_reaches_the_consumer_and_closes_the_iterator() -> None:
    closed = threading.Event()

    def broken() -> Iterator[int]:
        try:
            yield 1
            raise LookupError("page lost")
        finally:
            closed.set()

    with pytest.raises(LookupError, match="page lost"):
        asyncio.run(collect(broken()))
    assert closed.is_set()


def test_plain_iterators_need_no_close() -> None:
    assert asyncio.run(collect(iter([1, 2]))) == [1, 2]


def test_cancelling_twice_still_waits_for_the_running_step() -> None:
    events, running, release = [], threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        try:
            events.append("step begins")
            running.set()
            assert release.wait(60)
            events.append("step ends")
            yield 1
        finally:
            events.append("closed")

    async def run() -> None:
        task = asyncio.ensure_future(collect(slow()))
        while not running.is_set():
            await asyncio.sleep(0.001)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)  # the cancellation arrives, and is held back
            assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert events == ["step begins", "step ends", "closed"]


def test_a_step_that_fails_after_the_cancellation_is_not_reported_as_lost(caplog) -> None:
    running, release = threading.Event(), threading.Event()

    def failing() -> Iterator[int]:
        running.set()
        assert release.wait(60)
        raise RuntimeError("too late")
        yield 1

    async def run() -> None:
        task = asyncio.ensure_future(collect(failing()))
        while not running.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text
