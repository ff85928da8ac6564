"""Blocking iterators off the event loop: one thread an engine, and safe to cancel.

The default pool of asyncio would run consecutive pages on different threads and let page parsing
starve everything else that uses it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mdiff_adapters.engines.base import Engine
from mdiff_adapters.engines.spec import EngineSpec

T = TypeVar("T")

_DONE: Any = object()


class _Executors:
    """The single-thread executors of one process; a forked child starts without any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        # By spec, or by the identity of an engine object: the contract asks nobody for a hash.
        self._held: dict[EngineSpec | int | type, ThreadPoolExecutor] = {}

    def get(self, engine: EngineSpec | Engine) -> ThreadPoolExecutor:
        with self._lock:
            key: EngineSpec | int | type = engine if isinstance(engine, EngineSpec) else id(engine)
            if key not in self._held and isinstance(key, int):
                try:
                    # An engine object takes its thread along when it goes, before its identity
                    # can be another's. No lock there: it may go while this thread holds the lock.
                    weakref.finalize(engine, self._held.pop, key, None)
                except TypeError:  # slots without a weak reference: one thread for all of its class
                    key = type(engine)
            if key not in self._held:
                self._held[key] = ThreadPoolExecutor(1, thread_name_prefix="mdiff-async")
            return self._held[key]


_executors = _Executors()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.forget)


async def iterate_off_loop(
    make_iterator: Callable[[], Iterator[T]], engine: EngineSpec | Engine
) -> AsyncIterator[T]:
    """Run a blocking iterator in the thread of an engine, one step at a time.

    Between two steps the thread is free for the other iterators of the engine. A step that is
    running when the consumer is cancelled is waited for before the iterator is closed, so that no
    document is closed under a thread that reads it.

    Args:
        make_iterator: Makes the iterator, called in that thread; if it is a generator, it is closed
            there too.
        engine: Whose thread it is; all that use one engine take turns.

    Yields:
        The items.
    """
    loop = asyncio.get_running_loop()
    executor = _executors.get(engine)
    iterator: Iterator[T] | None = None
    try:
        iterator = await _finish(loop.run_in_executor(executor, make_iterator))
        while True:
            item = await _finish(loop.run_in_executor(executor, next, iterator, _DONE))
            if item is _DONE:
                return
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            await _finish(loop.run_in_executor(executor, close))


async def _finish(step: asyncio.Future[T]) -> T:
    """Await a step in a thread; if cancelled, wait until it is over, then be cancelled."""
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        while not step.done():
            try:
                await asyncio.wait([step])
            except asyncio.CancelledError:  # cancelled again: the thread is still running
                continue
        if not step.cancelled():
            step.exception()  # seen: nobody is left to be told
        raise
