"""The load generator against a server of known timing: its own error, its counts, its condition."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers import calibration

REPOSITORY = Path(__file__).parents[2]
LOCUST = [sys.executable, "-m", "locust", "-f", str(REPOSITORY / "locustfiles" / "chat.py"), "--headless"]


@pytest.fixture
def timing_server() -> Iterator[str]:
    command = [sys.executable, "-m", "workers.timing_server"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    server.kill()
    server.wait()


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats") as response:
        answer: dict[str, int] = json.load(response)
    return answer


@pytest.mark.slow
def test_a_thousand_users(timing_server: str, tmp_path: Path) -> None:
    """20 s: rows = requests that the server counted = requests that Locust counted; a connection a user at most."""
    out = tmp_path / "run"
    command = [*LOCUST, "-u", "1000", "-r", "1000", "-t", "20s", "--host", timing_server, "--out", str(out), "--json"]
    done = subprocess.run([*command, "--max-tokens", "64"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = pa.concat_tables([pq.read_table(p, partitioning=None) for p in sorted(out.glob("requests/*/*/*.parquet"))])
    at_server = stats(timing_server)
    assert sum(entry["num_failures"] for entry in json.loads(done.stdout)) == 0
    assert rows.num_rows == at_server["requests"] == sum(entry["num_requests"] for entry in json.loads(done.stdout))
    assert rows.num_rows > 5000
    assert set(rows["outcome"].to_pylist()) == {"ok"}
    assert at_server["most_connections"] <= 1000
    assert max(rows["in_flight_at_send"].to_pylist()) == 1000
    health = pa.concat_tables([pq.read_table(p, partitioning=None) for p in sorted(out.glob("health/*/*.parquet"))])
    assert 15 <= health.num_rows <= 30
    assert max(health["in_flight"].to_pylist()) == max(health["open_sockets"].to_pylist()) == 1000
    assert all(cpu > 0 for cpu in health["cpu_ns"].to_pylist())


@pytest.mark.slow
def test_calibrate(tmp_path: Path) -> None:
    """Two small loads; the errors are those of the kernel's clock, and what was found is stored."""
    command = [str(Path(sys.executable).with_name("tokenswarm")), "calibrate", "--streams", "2,20", "--duration", "3"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [point["streams"] for point in result["points"]] == [2, 20]
    for point in result["points"]:
        assert point["requests"] == point["requests_at_server"] > 0
        assert point["connections"] <= point["streams"] + 1, "one of them asks for the counts"
        assert point["ttft_error_ms"]["p50"] < 0.5
        assert point["tpot_error_ms"]["p50"] < 0.02
        assert point["tokens_per_s"] == pytest.approx(point["streams"] * 64 / (0.05 + 63 * 0.02), rel=0.1)
    assert result["trusted"]["streams"] == 20
    stored = json.loads((tmp_path / "tokenswarm" / "calibration.json").read_text())
    assert stored["trusted"] == result["trusted"]
    assert stored["machine"] == calibration.machine()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--streams", "0"], "'0'"),
        (["--streams", "1,x"], "'x'"),
        (["--duration", "1"], "at least 3"),
        (["--tokens", "1"], "at least 2"),
        (["--itl", "0"], "above 0"),
        (["--client", "curl"], "curl"),
    ],
)
def test_bad_input(options: list[str], says: str) -> None:
    command = [str(Path(sys.executable).with_name("tokenswarm")), "calibrate", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_refusal_that_says_when_to_come_back(golden: str, tmp_path: Path) -> None:
    """Each attempt is a row; unasked, the next request leaves at once, and asked, only when it was told to."""
    for option, least, most in (([], 20, 10**6), (["--obey-retry-after"], 2, 3)):
        out = tmp_path / f"run{len(option)}"
        command = [*LOCUST, "-u", "1", "-t", "3s", "--host", golden, "--model", "rate-limited", "--out", str(out)]
        started = time.monotonic()
        subprocess.run([*command, *option], capture_output=True, timeout=60)
        assert time.monotonic() - started < 20
        rows = pq.read_table(next(out.glob("requests/*/*/*.parquet")), partitioning=None).to_pylist()
        assert least <= len(rows) <= most
        assert {row["outcome"] for row in rows} == {"rejected"}
        assert {row["retry_after_ns"] for row in rows} == {2_000_000_000}
        assert [row["attempt"] for row in rows] == (list(range(1, len(rows) + 1)) if option else [1] * len(rows))
        assert len({row["prompt_id"] for row in rows}) == (1 if option else len(rows))
