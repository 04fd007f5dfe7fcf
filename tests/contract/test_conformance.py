"""The conformance suite (tests/contract/sse, docs/conformance.md), played to our own client over TCP and over TLS."""

from __future__ import annotations

import json
import os
import ssl
import statistics
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from golden import golden_server
from golden_client import KEY, run_client

SUITES = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "sse").glob("*.json"))]
CASES = [(suite["protocol"], case["name"]) for suite in SUITES for case in suite["cases"]]
EXPECTED = {(suite["protocol"], case["name"]): case["expect"] for suite in SUITES for case in suite["cases"]}
#: What a case says of the row by the row's own names.
PLAIN = (
    "outcome", "http_status", "completion_tokens", "prompt_tokens", "cached_tokens", "token_source", "finish_reason",
    "chunk_tokens", "is_burst", "text",
)  # fmt: skip
_MS = 1_000_000


@dataclass
class Played:
    """The rows of all cases by protocol and name, and when the server sent the pieces of each."""

    rows: dict[tuple[str, str], dict[str, Any]]
    sent: dict[str, list[int]]


@pytest.fixture(scope="module", params=["tcp", "tls"])
def played(request: pytest.FixtureRequest, authority: Path) -> Iterator[Played]:
    with golden_server(authority.with_name("server.pem") if request.param == "tls" else None) as url:
        os.environ["SSL_CERT_FILE"] = str(authority)
        with ThreadPoolExecutor() as pool:
            runs = pool.map(lambda suite: play(url, suite), SUITES)
        rows = {(row["protocol"], row["model"]): row for run in runs for row in run}
        with urllib.request.urlopen(f"{url}/log", context=ssl.create_default_context()) as response:
            yield Played(rows, json.load(response)["log"])
        del os.environ["SSL_CERT_FILE"]


def play(url: str, suite: dict[str, Any]) -> list[dict[str, Any]]:
    names = ",".join(case["name"] for case in suite["cases"])
    return run_client(url, names, protocol=suite["protocol"], timeout_s=2)


def test_the_suite_is_whole() -> None:
    assert len(CASES) == len(set(CASES)) >= 50
    assert {protocol for protocol, _ in CASES} == {"openai-chat", "openai-completions", "anthropic-messages"}


@pytest.mark.parametrize(("protocol", "name"), CASES)
def test_case(played: Played, protocol: str, name: str) -> None:
    row, expected = played.rows[protocol, name], EXPECTED[protocol, name]
    for column in PLAIN:
        if column in expected:
            assert row[column] == expected[column], (column, row["error"])
    if "text_length" in expected:
        assert len(row["text"]) == expected["text_length"]
    if "retry_after_s" in expected:
        assert row["retry_after_ns"] == expected["retry_after_s"] * 1e9
    assert expected.get("error", "") in (row["error"] or "")
    assert (row["error"] is None) == (row["outcome"] == "ok")
    assert KEY not in json.dumps(row)
    assert row["clock_source"] == "kernel"
    check_times(row, expected, played.sent.get(row["request_id"], []))


def check_times(row: dict[str, Any], expected: dict[str, Any], sent: list[int]) -> None:
    """Each token's time is when the piece that completed it left the server, a busy machine's noise aside."""
    seen = row["chunk_ns"] or []
    assert len(seen) == len(expected["tokens_at"])
    for at, index in zip(seen, expected["tokens_at"], strict=True):
        assert -0.2 * _MS <= at - sent[index] <= 15 * _MS + row["clock_error_ns"]
    if seen:
        assert (row["first_token_ns"], row["last_token_ns"]) == (seen[0], seen[-1])
        assert row["sent_ns"] < row["first_byte_ns"] <= row["first_token_ns"] <= row["last_token_ns"] <= row["end_ns"]
    visible_at = expected.get("first_visible_at", expected["tokens_at"][0] if seen else None)
    assert row["first_visible_ns"] == (None if visible_at is None else seen[expected["tokens_at"].index(visible_at)])


def test_token_times_are_those_of_the_wire(played: Played) -> None:
    """Over all cases the median lies within a fifth of a millisecond."""
    errors = [
        at - played.sent[row["request_id"]][index]
        for key, row in played.rows.items()
        for at, index in zip(row["chunk_ns"] or [], EXPECTED[key]["tokens_at"], strict=True)
    ]
    assert len(errors) > 150
    assert statistics.median(errors) < 0.2 * _MS


def test_tokens_that_came_together_carry_their_doubt(played: Played) -> None:
    """Any but the last of a read may be as old as the last look at the empty socket; one alone is exact."""
    rows = {name: row for (protocol, name), row in played.rows.items() if protocol == "openai-chat"}
    assert len(set(rows["many-in-one"]["chunk_ns"])) == 1
    assert rows["many-in-one"]["clock_error_ns"] > rows["ok"]["clock_error_ns"]
    assert rows["ok"]["clock_error_ns"] < _MS
