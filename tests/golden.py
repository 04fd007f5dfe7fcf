"""Starts the golden server (tests/contract/sse/server.py) as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVER = Path(__file__).parent / "contract" / "sse" / "server.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def golden_server(certificate: Path | None = None) -> Iterator[str]:
    """Base URL of a golden server that runs while the context is open; with a certificate it speaks TLS."""
    port = free_port()
    options = [] if certificate is None else [str(certificate)]
    process = subprocess.Popen([sys.executable, str(_SERVER), str(port), *options])
    try:
        _await_port(port, process)
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _await_port(port: int, process: subprocess.Popen[bytes], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {port}")
