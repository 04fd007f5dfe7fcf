"""Starts ``python -m engine`` as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import URLError

from golden import free_port


@dataclass
class EngineServer:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def engine_server(*options: str, timeout_s: float = 60) -> Iterator[EngineServer]:
    """A server that answers /health while the context is open."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "engine", "--port", str(port), "--threads", "1", *options])
    server = EngineServer(f"http://127.0.0.1:{port}", process)
    try:
        _await_health(server, timeout_s)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
            raise


def _await_health(server: EngineServer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert server.process.poll() is None, f"the server ended with {server.process.returncode}"
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("the engine did not become healthy")
