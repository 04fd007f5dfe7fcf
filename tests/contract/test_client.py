"""What the client makes of a server whose bytes and times are known."""

from __future__ import annotations

import json
import os
import ssl
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from golden import free_port, golden_server

KEY = "golden-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate authority that the client trusts, and beside it the server's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return folder / "authority.pem"


@pytest.fixture(scope="module", params=["tcp", "tls"])
def server(request: pytest.FixtureRequest, authority: Path) -> Iterator[str]:
    """A golden server on plain TCP, then one on TLS."""
    with golden_server(authority.with_name("server.pem") if request.param == "tls" else None) as url:
        os.environ["SSL_CERT_FILE"] = str(authority)
        yield url
        del os.environ["SSL_CERT_FILE"]


def run_client(url: str, models: str, count: int = 1, timeout_s: float = 10) -> list[dict[str, Any]]:
    command = [sys.executable, str(Path(__file__).with_name("client_run.py")), url, models, str(count), str(timeout_s)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"OPENAI_API_KEY": KEY}, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == count * len(models.split(","))
    return rows


def sent_log(url: str) -> dict[str, list[int]]:
    with urllib.request.urlopen(f"{url}/log", context=ssl.create_default_context()) as response:
        log: dict[str, list[int]] = json.load(response)["log"]
    return log


def test_token_times_are_those_of_the_wire(server: str) -> None:
    """Each token's time is within a millisecond of when the server handed it to the kernel, at the median."""
    rows = run_client(server, "ok", count=30)
    log = sent_log(server)
    errors_ms = [
        abs(seen - sent) / 1e6
        for row in rows
        for seen, sent in zip(row["chunk_ns"], log[row["request_id"]][:3], strict=True)
    ]
    assert statistics.median(errors_ms) < 1
    for row in rows:
        assert row["outcome"] == "ok"
        assert row["clock_source"] == "kernel"
        assert (row["first_token_ns"] - row["sent_ns"]) / 1e6 > 49
        assert row["first_token_ns"] == row["first_visible_ns"] == row["chunk_ns"][0]
        assert row["last_token_ns"] == row["chunk_ns"][2], "the usage chunk does not extend the answer"
        assert (row["prompt_tokens"], row["completion_tokens"], row["token_source"]) == (7, 3, "usage")
        assert (row["cached_tokens"], row["finish_reason"], row["http_status"]) == (2, "stop", 200)
        assert row["connect_ns"] > 0
        assert (row["tls_ns"] is not None) == server.startswith("https")
        assert row["end_ns"] >= row["last_token_ns"]


OUTCOMES: dict[str, tuple[str, int | None, int, str | None]] = {
    "role-first": ("ok", 200, 2, None),
    "reasoning": ("ok", 200, 2, None),
    "ping-first": ("ok", 200, 2, None),
    "no-usage": ("ok", 200, 3, None),
    "split-utf8": ("ok", 200, 2, None),
    "crlf": ("ok", 200, 2, None),
    "many-in-one": ("ok", 200, 3, None),
    "error-in-stream": ("server", 200, 1, "kaputt"),
    "error-left-open": ("server", 200, 0, "kaputt"),
    "truncated": ("truncated", 200, 2, "without [DONE]"),
    "cut": ("truncated", 200, 2, ""),
    "no-token": ("protocol", 200, 0, "without a token"),
    "odd-usage": ("ok", 200, 2, None),
    "odd-delta": ("protocol", 200, 1, "form of a chunk"),
    "odd-choices": ("protocol", 200, 1, "form of a chunk"),
    "late-with-usage": ("ok", 200, 2, None),
    "open-end": ("ok", 200, 2, None),
    "bad-json": ("protocol", 200, 1, "not JSON"),
    "html": ("protocol", 200, 0, "text/html"),
    "json": ("protocol", 200, 0, "application/json"),
    "unauthorized": ("rejected", 401, 0, "HTTP 401"),
    "not-found": ("rejected", 404, 0, "no such model"),
    "rate-limited": ("rejected", 429, 0, "slow down"),
    "broken": ("server", 500, 0, "oops"),
    "stall": ("timeout", 200, 1, "2 s"),
    "reset": ("connect", None, 0, "connection lost"),
}


@pytest.fixture(scope="module")
def rows(server: str) -> dict[str, dict[str, Any]]:
    """One row of each scripted answer."""
    return {row["model"]: row for row in run_client(server, ",".join(["ok", *OUTCOMES]), timeout_s=2)}


@pytest.mark.parametrize("model", OUTCOMES)
def test_outcomes(rows: dict[str, dict[str, Any]], model: str) -> None:
    outcome, status, num_chunks, error = OUTCOMES[model]
    row = rows[model]
    assert (row["outcome"], row["http_status"]) == (outcome, status), row["error"]
    assert len(row["chunk_ns"] or []) == num_chunks
    assert (row["error"] is None) if error is None else (error in row["error"])
    assert KEY not in json.dumps(row)


@pytest.mark.parametrize("model", ["role-first", "ping-first"])
def test_first_token_is_no_role_and_no_ping(rows: dict[str, dict[str, Any]], model: str) -> None:
    assert (rows[model]["first_token_ns"] - rows[model]["first_byte_ns"]) / 1e6 > 95


def test_reasoning_is_a_token_but_not_visible(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["reasoning"]["first_visible_ns"] - rows["reasoning"]["first_token_ns"] > 45e6


def test_tokens_without_usage_are_counted_as_chunks(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["no-usage"]
    assert (row["completion_tokens"], row["token_source"], row["prompt_tokens"]) == (3, "chunks", None)


def test_tokens_that_came_together_carry_their_doubt(rows: dict[str, dict[str, Any]]) -> None:
    """Three tokens in one read: any but the last may have come up to 30 ms earlier for all the client can know."""
    assert len(set(rows["many-in-one"]["chunk_ns"])) == 1
    assert rows["many-in-one"]["clock_error_ns"] > 25e6
    assert rows["late-with-usage"]["clock_error_ns"] > 25e6, "a usage chunk behind the token makes it as doubtful"
    assert rows["ok"]["clock_error_ns"] < 1e6


def test_what_is_no_number_is_not_written(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["odd-usage"]
    assert row["prompt_tokens"] is None
    assert (row["completion_tokens"], row["token_source"]) == (2, "chunks")


def test_a_certificate_that_is_not_trusted(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with golden_server(authority.with_name("server.pem")) as url:
        [row] = run_client(url, "ok")
    assert row["outcome"] == "connect"
    assert "certificate verify failed" in row["error"].lower()
    assert row["sent_ns"] is None


def test_refused_port() -> None:
    [row] = run_client(f"http://127.0.0.1:{free_port()}", "ok")
    assert row["outcome"] == "connect"
    assert row["sent_ns"] is None
    assert "refused" in row["error"]
