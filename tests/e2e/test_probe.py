"""``tokenswarm probe``: six faults, six outcomes, no traceback and no key anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from golden import free_port, golden_server

KEY = "sk-probe-secret"
FAULTS = {
    "refused": "connect",
    "unauthorized": "unauthorized",
    "not-found": "rejected",
    "html": "protocol",
    "stall": "timeout",
    "truncated": "truncated",
    "broken": "server",
}


@pytest.fixture(scope="module")
def golden() -> Iterator[str]:
    with golden_server() as url:
        yield url


def run_probe(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cluster.cli import main; main()", "probe", "--target", url, *options]
    environment = os.environ | {"OPENAI_API_KEY": KEY}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_a_whole_answer(golden: str) -> None:
    done = run_probe(golden, "--json", "--max-tokens", "3")
    row = json.loads(done.stdout)
    assert done.returncode == 0
    assert (row["outcome"], row["text"], row["model"], row["completion_tokens"]) == ("ok", "hihihi", "ok", 3)
    told = run_probe(golden)
    assert told.returncode == 0
    assert "TTFT" in told.stdout
    assert "hihihi" in told.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(golden: str, fault: str) -> None:
    url = f"http://127.0.0.1:{free_port()}" if fault == "refused" else golden
    done = run_probe(url, "--json", "--model", fault, "--timeout", "2")
    row = json.loads(done.stdout)
    assert (done.returncode, row["outcome"]) == (1, FAULTS[fault])
    assert row["error"]
    assert "Traceback" not in done.stderr
    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--timeout", "0"], "above 0"), (["--max-tokens", "0"], "at least 1"), (["--target", "ftp://x"], "ftp://x")],
)
def test_bad_input(golden: str, options: list[str], says: str) -> None:
    done = run_probe(golden, *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
