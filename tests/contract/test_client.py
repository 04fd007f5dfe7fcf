"""The client beside the conformance suite: connections, TLS, proxies, and the openai SDK as a client."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from golden import free_port, golden_server
from golden_client import KEY, run_client


def test_a_certificate_that_is_not_trusted(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with golden_server(authority.with_name("server.pem")) as url:
        [row] = run_client(url, "ok")
    assert row["outcome"] == "connect"
    assert "certificate verify failed" in row["error"].lower()
    assert row["sent_ns"] is None


def test_times_of_connecting(authority: Path, golden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the row, and before what TTFT counts from."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with golden_server(authority.with_name("server.pem")) as url:
        [encrypted] = run_client(url, "ok")
    [plain] = run_client(golden, "ok")
    assert plain["tls_ns"] is None
    assert encrypted["tls_ns"] > 0
    assert min(plain["connect_ns"], encrypted["connect_ns"]) > 0
    assert min((row["first_token_ns"] - row["sent_ns"]) / 1e6 for row in (plain, encrypted)) > 49


def test_refused_port() -> None:
    [row] = run_client(f"http://127.0.0.1:{free_port()}", "ok")
    assert row["outcome"] == "connect"
    assert row["sent_ns"] is None
    assert "refused" in row["error"]


SDK_OUTCOMES = {
    "ok": "ok",
    "role-first": "ok",
    "reasoning-content": "ok",
    "no-usage": "ok",
    "each-byte": "ok",
    "gzip": "ok",
    "until-close": "ok",
    "error-in-stream": "server",
    "truncated": "truncated",
    "cut": "truncated",
    "reset-at-once": "connect",
    "stall": "timeout",
    "unauthorized": "unauthorized",
    "rate-limited": "rejected",
    "broken": "server",
    "bad-json": "protocol",
}


def test_the_openai_sdk_as_client(golden: str) -> None:
    """The same outcomes; times are the application's, and no request is sent twice."""
    rows = {row["model"]: row for row in run_client(golden, ",".join(SDK_OUTCOMES), timeout_s=2, client="openai-sdk")}
    assert {name: row["outcome"] for name, row in rows.items()} == SDK_OUTCOMES
    assert KEY not in json.dumps(rows)
    ok = rows["ok"]
    assert (ok["text"], ok["completion_tokens"], ok["token_source"]) == ("hihihi", 3, "usage")
    assert ok["clock_source"] == "user"
    assert ok["sent_ns"] < ok["first_byte_ns"] < ok["first_token_ns"] < ok["last_token_ns"] < ok["end_ns"]
    assert rows["rate-limited"]["http_status"] == 429


def test_without_epoll(golden: str) -> None:
    """Where there is none, gevent's own watchers read, and find the same."""
    names = "ok,each-byte,split-utf8,crlf,truncated,cut,reset,error-in-stream,until-close"
    fields = ("outcome", "completion_tokens", "finish_reason", "http_status")
    found = [
        {row["model"]: [row[name] for name in fields] for row in run_client(golden, names, timeout_s=2, client=client)}
        for client in ("own", "own-without-epoll")
    ]
    assert found[0] == found[1]
    assert found[0]["ok"] == ["ok", 3, "stop", 200]


class Proxy:
    """A forward proxy: tunnels for CONNECT, forwards plain requests, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536)
        method, where, _ = data.split(b"\r\n", 1)[0].decode().split(" ")
        self.asked.append(f"{method} {where}")
        place = where if method == "CONNECT" else urlsplit(where).netloc
        host, _, port = place.partition(":")
        server = socket.create_connection((host, int(port)))
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server.sendall(data.replace(where.encode(), urlsplit(where).path.encode(), 1))
        threading.Thread(target=_pump, args=(server, client), daemon=True).start()
        _pump(client, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("trust_env", [True, False])
@pytest.mark.parametrize("is_tls", [True, False])
def test_proxies(authority: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool, trust_env: bool) -> None:
    proxy = Proxy()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("no_proxy", "")
    with golden_server(authority.with_name("server.pem") if is_tls else None) as url:
        command = [sys.executable, "-m", "workers.probe", url, *(["--trust-env"] if trust_env else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("through the proxy" in done.stdout) == trust_env
    authority_of = url.partition("://")[2]
    expected = f"CONNECT {authority_of}" if is_tls else f"POST {url}/v1/chat/completions"
    assert (expected in proxy.asked) == trust_env
    assert bool(proxy.asked) == trust_env
