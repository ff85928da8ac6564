"""What must survive a fork: programs render in threads and start workers beside them."""

from __future__ import annotations

import os
import threading

__all__ = ["ForkSafeLock"]


class ForkSafeLock:
    """A reentrant lock of the process that a forked child finds free.

    A fork while another thread holds an ordinary lock leaves it locked in the child for good: the
    thread that would release it is not there.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
