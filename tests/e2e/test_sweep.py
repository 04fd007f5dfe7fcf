"""Sweeps with everything real: Ray, the engine, Locust, and the ways in which a run is cut short."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, kill, locust_worker, manifest, parquet_rows, rows, run

pytestmark = pytest.mark.slow
SHORT = ("--prompt-tokens", "short=16,medium=32,long=64", "--max-tokens", "8", "--grace", "10", "--run-id", "r")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.end()


def test_every_planned_request_is_a_row(tmp_path: Path, started: list[Command]) -> None:
    command = Command(
        tmp_path, "sweep", "--concurrency", "1,3,6", "--warmup", "0.5", "--duration", "2.5", "--json", *SHORT
    )
    started.append(command)
    path = tmp_path / "runs" / "r"
    command.wait_until(lambda: (path / "requests" / "level=2").exists())
    command.note_family()
    assert command.process.wait(60) == 0, command.stderr
    levels = manifest(path)["levels"]
    assert [(level["concurrency"], level["status"]) for level in levels] == [
        (1, "complete"), (3, "complete"), (6, "complete"),
    ]  # fmt: skip
    assert all(level["window_end_unix_ns"] - level["window_start_unix_ns"] == 2_500_000_000 for level in levels)
    written = rows(path)
    assert Counter(row["outcome"] for row in written) == {"ok": len(written)}
    assert {row["level"] for row in written} == {0, 1, 2}
    assert {row["prompt_class"] for row in written} == {"short", "medium", "long"}
    assert max(row["in_flight_at_send"] for row in written) == 3  # six users on two workers
    assert not list(path.rglob("*.jsonl"))
    # the warm-up question of each worker aside, the engine served these requests and no others
    assert parquet_rows(path / "steps" / "replica=0", "requests-*.parquet") == len(written)
    assert parquet_rows(path / "steps" / "replica=0", "steps-*.parquet") > len(written)
    assert json.loads(command.stdout) == json.loads((path / "summary.json").read_text())
    assert command.survivors() == []


def test_sweep_goes_on_without_a_killed_worker(tmp_path: Path, started: list[Command]) -> None:
    command = Command(tmp_path, "sweep", "--concurrency", "4,4", "--warmup", "0.5", "--duration", "4", *SHORT)
    started.append(command)
    path = tmp_path / "runs" / "r"
    journal = path / "requests" / "level=0" / "worker=w1" / "part-00000.jsonl"
    command.wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 3)
    kill(command.wait_until(lambda: locust_worker(command, "w1")))
    acknowledged = {json.loads(line)["request_id"] for line in journal.read_bytes().split(b"\n")[1:-1]}
    assert command.process.wait(90) == 0, command.stderr
    first, second = manifest(path)["levels"]
    assert (first["status"], second["status"]) == ("degraded", "complete")
    assert "w1" in first["note"]
    written = rows(path)
    assert len(acknowledged) >= 3
    assert acknowledged <= {row["request_id"] for row in written}
    assert {row["worker"] for row in written if row["level"] == 1} == {"w0", "w1r1"}
    assert run(tmp_path, "analyze", "runs/r").returncode == 0
    assert command.survivors() == []


def test_interrupted_sweep_keeps_what_it_measured(tmp_path: Path, started: list[Command]) -> None:
    """The workers write to disks of their own here, as they do on nodes that do not see the run directory."""
    command = Command(
        tmp_path, "sweep", "--concurrency", "2,2", "--warmup", "0.5", "--duration", "30", "--collect-rows", *SHORT
    )
    started.append(command)
    path = tmp_path / "runs" / "r"
    command.wait_until(lambda: (path / "manifest.json").exists() and manifest(path)["levels"])
    command.wait_until(lambda: manifest(path)["levels"][0]["window_end_unix_ns"])
    with pytest.raises(TimeoutError):
        _wait(command, 3)
    assert command.signal_and_wait(signal.SIGINT) == 130
    (level,) = manifest(path)["levels"]
    assert level["status"] == "interrupted"
    assert level["window_end_unix_ns"] - level["window_start_unix_ns"] < 10_000_000_000
    written = rows(path)
    assert len(written) > 4
    assert {row["worker"] for row in written} == {"w0", "w1"}
    assert (path / "report.html").exists()
    assert command.survivors() == []


def test_killed_sweep_leaves_no_process(tmp_path: Path, started: list[Command]) -> None:
    command = Command(tmp_path, "sweep", "--concurrency", "2", "--duration", "30", *SHORT)
    started.append(command)
    path = tmp_path / "runs" / "r"
    journal = path / "requests" / "level=0" / "worker=w0" / "part-00000.jsonl"
    command.wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2)
    assert command.signal_and_wait(signal.SIGKILL) == -signal.SIGKILL
    assert command.survivors(within_s=90) == []  # Ray's own agents wait out a call to the head that is gone
    assert run(tmp_path, "analyze", "runs/r").returncode == 0


def _wait(command: Command, timeout_s: float) -> None:
    import subprocess

    try:
        command.process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
