"""The client beside the conformance suite: connections, TLS, proxies, and the openai SDK as a client."""

from __future__ import annotations

import json
from pathlib import Path

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
    "unauthorized": "rejected",
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
