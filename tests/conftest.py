"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes is the machine's affair, and a run must not depend on the last one.
hypothesis.settings.register_profile(
    "project",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("project")

# Before anything imports torch: on a busy machine threads that spin at barriers cost 20 times what
# they give to models this small. Subprocesses of tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = ("127.0.0.1", "::1")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse every connection that leaves this machine, for the whole run."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != getattr(socket, "AF_UNIX", None) and address[0] not in LOOPBACK:
            raise AssertionError(f"a test tried to reach {address}")
        connect(self, address)

    def guarded_resolve(host: Any, *args: Any, **options: Any) -> Any:
        if host not in (*LOOPBACK, "localhost", None):
            raise AssertionError(f"a test tried to look up {host}")
        return resolve(host, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket, "getaddrinfo", guarded_resolve)
        yield


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference material beside the checkout (``MDIFF_SHARED`` overrides)."""
    path = Path(os.environ.get("MDIFF_SHARED", ROOT.parent / "shared"))
    if not (path / "golden").is_dir():
        pytest.skip("reference material is not here: set MDIFF_SHARED to its folder")
    return path


@pytest.fixture
def open_pipe(tmp_path: Path) -> Callable[[bytes], Path]:
    """Return a function that makes a named pipe through which somebody writes the given bytes."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")

    def make(content: bytes) -> Path:
        path = tmp_path / "pipe.pdf"
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
        return path

    return make


@pytest.fixture
def quiet_heap() -> Iterator[None]:
    """Take what is alive out of the garbage collector's sight for a test that collects often.

    With torch and three frameworks loaded, one collection looks at a million objects for a second.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no CUDA device."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
