"""Open loop with real Locust: one schedule whoever runs it, a cap that shows, times that are kept."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden import free_port

from workers.arrivals import parse_arrivals

LOCUST = [sys.executable, "-m", "locust", "-f", str(Path(__file__).parents[2] / "locustfiles" / "chat.py")]
COLUMNS = [
    "intended_ns",
    "sent_ns",
    "prompt_id",
    "prompt_class",
    "asked_tokens",
    "max_tokens",
    "outcome",
    "prompt_tokens",
]


@pytest.fixture
def timing_server() -> Iterator[str]:
    command = [sys.executable, "-m", "workers.timing_server", "--itl", "0.005"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    server.kill()
    server.wait()


def run_locust(url: str, out: Path, num_workers: int, *options: str) -> list[dict[str, Any]]:
    """The rows of a plain run, alone or as a master with workers, in the order of their intended times."""
    command = [*LOCUST, "--host", url, "--out", str(out), "--seed", "7", *options]
    if not num_workers:
        subprocess.run([*command, "--headless"], capture_output=True, timeout=90, check=True)
        return read_rows(out)
    port = str(free_port())
    master = [*command, "--headless", "--master", "--master-bind-port", port, "--expect-workers", str(num_workers)]
    worker = [*LOCUST, "--worker", "--master-port", port, "--host", url]
    workers = [
        subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(num_workers)
    ]
    try:
        subprocess.run(master, capture_output=True, timeout=90, check=True)
    finally:
        for process in workers:
            process.terminate()
            process.wait(20)
    return read_rows(out)


def read_rows(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("requests/*/*/part-*.parquet"))
    rows = pa.concat_tables([pq.read_table(file, columns=COLUMNS, partitioning=None) for file in files]).to_pylist()
    return sorted(rows, key=lambda row: row["intended_ns"])


@pytest.mark.slow
def test_one_schedule_for_any_number_of_workers(timing_server: str, tmp_path: Path) -> None:
    """One process, a master with two workers, one with five: the same prompts at the same times."""
    runs = [
        run_locust(
            timing_server, tmp_path / f"run{n}", n, "-u", "40", "-r", "40", "-t", "6s",
            "--arrivals", "poisson:30", "--max-tokens", "uniform:2:9",
        )
        for n in (0, 2, 5)
    ]  # fmt: skip
    shortest = min(map(len, runs))
    assert shortest > 100
    schedule = parse_arrivals("poisson:30").times(7, 0)
    times = [next(schedule) for _ in range(shortest)]
    for rows in runs:
        assert {row["outcome"] for row in rows[:-20]} == {"ok"}, "the last may fall due while Locust is stopping"
        assert [row["prompt_id"] for row in rows[:shortest]] == [f"0-{n}" for n in range(shortest)]
        start = rows[0]["intended_ns"] - times[0] * 1e9
        due = np.array([row["intended_ns"] for row in rows[:shortest]]) - start
        assert np.abs(due - np.array(times) * 1e9).max() < 2e6, "clocks of several processes"
        asked = [(row["prompt_class"], row["asked_tokens"], row["max_tokens"]) for row in rows[:shortest]]
        assert asked == [(row["prompt_class"], row["asked_tokens"], row["max_tokens"]) for row in runs[0][:shortest]]


def test_arrivals_past_the_cap_are_rows(timing_server: str, tmp_path: Path) -> None:
    """Two users, answers of half a second, twenty arrivals a second: most are not sent, and none is put off."""
    rows = run_locust(
        timing_server, tmp_path / "run", 0, "-u", "2", "-r", "2", "-t", "4s", "--arrivals", "constant:20",
        "--max-tokens", "90",
    )  # fmt: skip
    unsent = [row for row in rows if row["outcome"] == "unsent"]
    sent = [row for row in rows if row["sent_ns"] is not None]
    assert len(unsent) + len(sent) == len(rows) >= 60
    assert 0.6 < len(unsent) / len(rows) < 0.95
    assert all(row["sent_ns"] is None for row in unsent)
    gaps = np.diff([row["intended_ns"] for row in rows]) / 1e6
    assert gaps == pytest.approx(50, abs=0.01)
    assert np.median([row["sent_ns"] - row["intended_ns"] for row in sent]) < 5e6
    with urllib.request.urlopen(f"{timing_server}/stats") as response:
        assert json.load(response)["requests"] == len(sent)


def test_a_trace_is_replayed_at_its_times_and_lengths(timing_server: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{n * 0.7},{40 + 3 * n},{2 + n % 5}" for n in range(60)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
    rows = run_locust(
        timing_server, tmp_path / "run", 0, "-u", "20", "-r", "20", "-t", "6s", "--arrivals", f"trace:{trace}:10"
    )
    assert [row["asked_tokens"] for row in rows] == [40 + 3 * n for n in range(60)]
    assert [row["prompt_tokens"] for row in rows] == [40 + 3 * n for n in range(60)], "as the server counts"
    assert [row["max_tokens"] for row in rows] == [2 + n % 5 for n in range(60)]
    assert np.diff([row["intended_ns"] for row in rows]) / 1e6 == pytest.approx(70, abs=0.01)
    assert {row["outcome"] for row in rows} == {"ok"}


def test_a_schedule_that_ends_before_the_test(timing_server: str, tmp_path: Path) -> None:
    """The test goes on to its time, idle, and ends in order."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,40,2\n0.2,40,2\n")
    started = time.monotonic()
    rows = run_locust(
        timing_server, tmp_path / "run", 0, "-u", "2", "-r", "2", "-t", "3s", "--arrivals", f"trace:{trace}"
    )
    assert len(rows) == 2
    assert 3 < time.monotonic() - started < 12


@pytest.mark.parametrize(("arrivals", "says"), [("poisson:0", "above 0"), ("trace:/nowhere.csv", "/nowhere.csv")])
def test_bad_arrivals(tmp_path: Path, arrivals: str, says: str) -> None:
    command = [*LOCUST, "--headless", "-t", "1s", "--host", "http://127.0.0.1:1", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, "--arrivals", arrivals], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_of_rates(timing_server: str, tmp_path: Path) -> None:
    """Two load workers on Ray share one schedule; what a rate plans is what arrives, and the report has both TTFTs."""
    command = [
        str(Path(sys.executable).with_name("tokenswarm")), "sweep", "--target", timing_server, "--rate", "20,40",
        "--duration", "5", "--warmup", "1", "--max-tokens", "10", "--max-in-flight", "60", "--seed", "5",
        "--out", str(tmp_path), "--run-id", "rates", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [level["load"] for level in summary["levels"]] == [20, 40]
    for number, level in enumerate(summary["levels"]):
        assert set(level["outcomes"]) == {"ok"}
        assert level["ttft_from_intended_ms"]["mean"] >= level["ttft_ms"]["mean"] > 49
        assert level["schedule_lag_ms"]["p50"] < 5
        files = (tmp_path / "rates" / "requests" / f"level={number}").glob("*/part-*.parquet")
        ids = [name for file in files for name in pq.read_table(file, partitioning=None)["prompt_id"].to_pylist()]
        assert sorted(ids, key=lambda name: int(name.split("-")[1])) == [f"{number}-{n}" for n in range(len(ids))]
        due = parse_arrivals(f"poisson:{level['load']:g}").times(5, number)
        planned = sum(1 <= at < 6 for at in itertools.takewhile(lambda at: at < 6, due))
        assert level["requests"] == pytest.approx(planned, abs=2)
    report = (tmp_path / "rates" / "report.html").read_text()
    assert "TTFT from intended" in report
    assert "requests/s<br>offered" in report
