"""Connections that servers end, mix up or stall: each request is still one honest row, and the next one works."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # together
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'
BODY = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in (EVENT, b"data: [DONE]\n\n")) + b"0\r\n\r\n"
ANSWER = HEAD + b"\r\n" + BODY
Script = Callable[[socket.socket, int], None]

RUN = """
from gevent import monkey
monkey.patch_all()
import sys, gevent, orjson
from workers.client import Client, Wire
from workers.protocols import PROTOCOLS
from workers.records import Record
from workers.targets import resolve_target
url, num, pause_s, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
wire = Wire(resolve_target(url), PROTOCOLS["openai-chat"], 2.0)
client = Client(wire)
client.warm()
for n in range(num):
    record = Record("run", 0, "w", f"r{n}", "short", "p", url, "m", "openai-chat", max_tokens=3)
    client.run(record, "x" * size, {})
    sys.stdout.buffer.write(orjson.dumps(record) + b"\\n")
    sys.stdout.flush()
    gevent.sleep(pause_s)
assert wire.in_flight.count == 0
client.close()
assert wire.num_connections == 0, wire.num_connections
"""

MIXED = """
from gevent import monkey
monkey.patch_all()
import json, os, random, sys, gevent, orjson
from workers.client import Client, Wire
from workers.protocols import PROTOCOLS
from workers.records import Record
from workers.targets import resolve_target
url, names = sys.argv[1], json.loads(sys.argv[2])
wire = Wire(resolve_target(url), PROTOCOLS["openai-chat"], 2.0)
files = len(os.listdir("/proc/self/fd"))
rows = []
def user(number):
    client, rng = Client(wire), random.Random(number)
    for n, name in enumerate(rng.sample(names, len(names))):
        record = Record("run", 0, "w", f"{number}/{n}", "short", "p", url, name, "openai-chat", max_tokens=3)
        client.run(record, "hello", {})
        rows.append(record)
    client.close()
gevent.joinall([gevent.spawn(user, number) for number in range(12)], raise_error=True)
assert (wire.in_flight.count, wire.num_connections, len(os.listdir("/proc/self/fd"))) == (0, 0, files)
for row in rows:
    sys.stdout.buffer.write(orjson.dumps(row) + b"\\n")
"""


class Server:
    """Runs a script on each connection, with the connection's number."""

    def __init__(self, script: Script) -> None:
        self.num_connections = 0
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connected, _ = self._listener.accept()
            self.num_connections += 1
            threading.Thread(target=self._play, args=(connected, self.num_connections - 1), daemon=True).start()

    def _play(self, connected: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connected:
            self._script(connected, number)


def read_request(connected: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connected)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += received(connected)


def received(connected: socket.socket) -> bytes:
    data = connected.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def run(script: Script, num: int = 3, pause_s: float = 0.1, size: int = 5) -> tuple[list[dict[str, Any]], Server]:
    server = Server(script)
    command = [sys.executable, "-c", RUN, server.url, str(num), str(pause_s), str(size)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], server


def test_one_connection_serves_many_requests() -> None:
    def script(connected: socket.socket, _: int) -> None:
        while True:
            read_request(connected)
            connected.sendall(ANSWER)

    rows, server = run(script, num=5, pause_s=0)
    assert [row["outcome"] for row in rows] == ["ok"] * 5
    assert server.num_connections == 1
    assert [row["connect_ns"] for row in rows] == [None] * 5, "warmed before the first request"


@pytest.mark.parametrize("says_so", [True, False])
def test_a_server_that_closes_after_each_answer(says_so: bool) -> None:
    def script(connected: socket.socket, _: int) -> None:
        read_request(connected)
        connected.sendall(HEAD + (b"Connection: close\r\n" if says_so else b"") + b"\r\n" + BODY)

    rows, server = run(script)
    assert [row["outcome"] for row in rows] == ["ok"] * 3
    assert server.num_connections == 3


def test_an_idle_connection_that_the_server_closes() -> None:
    def script(connected: socket.socket, _: int) -> None:
        read_request(connected)
        connected.sendall(ANSWER)
        time.sleep(0.1)

    rows, server = run(script, pause_s=0.3)
    assert [row["outcome"] for row in rows] == ["ok"] * 3
    assert server.num_connections == 3


def test_bytes_behind_an_answer_do_not_become_the_next_one() -> None:
    def script(connected: socket.socket, _: int) -> None:
        read_request(connected)
        connected.sendall(ANSWER + ANSWER.replace(b"hi", b"no"))
        read_request(connected)
        connected.sendall(ANSWER)

    rows, _ = run(script)
    assert [row["outcome"] for row in rows] == ["ok"] * 3
    assert all(len(row["chunk_ns"]) == 1 for row in rows)


def test_an_answer_that_nobody_asked_for() -> None:
    """Sent on connecting, before any request: that connection is not used."""

    def script(connected: socket.socket, number: int) -> None:
        if number == 0:
            connected.sendall(ANSWER)
            time.sleep(1)
        while True:
            read_request(connected)
            connected.sendall(ANSWER)

    rows, _ = run(script)
    for row in rows:
        assert row["outcome"] in ("ok", "connect")
        if row["outcome"] == "ok":
            assert row["first_token_ns"] >= row["sent_ns"]


def test_a_head_that_drips() -> None:
    """200 bytes, one every 2 ms: the head is not the token."""

    def script(connected: socket.socket, _: int) -> None:
        read_request(connected)
        for byte in HEAD + b"\r\n":
            connected.sendall(bytes([byte]))
            time.sleep(0.002)
        connected.sendall(BODY)

    rows, _ = run(script, num=1)
    assert rows[0]["outcome"] == "ok"
    assert rows[0]["first_token_ns"] - rows[0]["first_byte_ns"] > 150e6


def test_a_head_without_end() -> None:
    def script(connected: socket.socket, _: int) -> None:
        read_request(connected)
        while True:
            connected.sendall(b"HTTP/1.1 200 OK\r\n" + b"X-Filler: " + b"x" * 60_000 + b"\r\n")

    rows, _ = run(script, num=1)
    assert rows[0]["outcome"] == "protocol"
    assert "head" in rows[0]["error"]


def test_a_server_that_reads_slowly() -> None:
    """Thirty megabytes into a server that takes them by the drop: the request is given up in time, not stuck."""

    def script(connected: socket.socket, _: int) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while True:
            received(connected)
            time.sleep(0.5)

    started = time.monotonic()
    rows, _ = run(script, num=1, size=30_000_000)
    assert rows[0]["outcome"] == "timeout"
    assert 1.8 < (rows[0]["end_ns"] - rows[0]["sent_ns"]) / 1e9 < 4
    assert time.monotonic() - started < 20


def test_a_server_that_accepts_and_says_nothing_then_works() -> None:
    def script(connected: socket.socket, number: int) -> None:
        while True:
            read_request(connected)
            if number == 0:
                time.sleep(5)
            connected.sendall(ANSWER)

    rows, server = run(script, num=2)
    assert [row["outcome"] for row in rows] == ["timeout", "ok"]
    assert server.num_connections == 2


def test_every_kind_of_answer_in_any_order_over_the_same_connections(golden: str) -> None:
    """Twelve users go through the conformance suite, each in its own order: none spoils the next, nothing leaks."""
    suite = json.loads((Path(__file__).parent / "sse" / "openai_chat.json").read_text())
    expected = {case["name"]: case["expect"] for case in suite["cases"] if case.get("end") != "hold"}
    command = [sys.executable, "-c", MIXED, golden, json.dumps(list(expected))]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 12 * len(expected)
    for row in rows:
        name = row["model"]
        assert row["outcome"] == expected[name]["outcome"], (name, row["error"])
        assert len(row["chunk_ns"] or []) == len(expected[name]["tokens_at"]), name
