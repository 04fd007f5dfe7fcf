"""The locust command as people run it: alone, and as workers of the level master. Real Locust, a golden server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden import free_port, golden_server

from workers.sink import recover

LOCUST = [sys.executable, "-m", "locust", "-f", str(Path(__file__).parents[2] / "locustfiles" / "chat.py")]


@pytest.fixture
def golden() -> Iterator[str]:
    with golden_server() as url:
        yield url


def requests_served(url: str) -> int:
    with urllib.request.urlopen(f"{url}/log") as response:
        return int(json.load(response)["requests"])


def read_rows(out: Path, level: int | None = None) -> pa.Table:
    files = sorted((out / "requests").rglob(f"level={'*' if level is None else level}/*/part-*.parquet"))
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])


def test_every_request_that_locust_counts_is_a_row(golden: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*LOCUST, "--headless", "-u", "8", "-r", "8", "-t", "3s", "--host", golden, "--out", str(out)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    rows = read_rows(out)
    assert rows.num_rows == sum(entry["num_requests"] for entry in counted) == requests_served(golden)
    assert rows.num_rows > 50
    assert sum(entry["num_failures"] for entry in counted) == 0
    assert set(rows["outcome"].to_pylist()) == {"ok"}
    assert set(rows["prompt_class"].to_pylist()) == {"short", "medium", "long"}
    assert rows["model"].to_pylist()[0] == "ok", "the first model that the server lists"
    assert max(rows["in_flight_at_send"].to_pylist()) == 8
    assert len(set(rows["prompt_id"].to_pylist())) == rows.num_rows
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["kind"], manifest["run_id"]) == ("locust", "run")
    [level] = manifest["levels"]
    assert (level["level"], level["concurrency"], level["status"]) == (0, 8, "complete")
    assert 1e9 < level["window_end_unix_ns"] - level["window_start_unix_ns"] < 4e9


def test_failures_are_rows_and_locust_s_failures(golden: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*LOCUST, "--headless", "-u", "2", "-r", "2", "-t", "2s", "--host", golden, "--out", str(out)]
    done = subprocess.run([*command, "--model", "rate-limited"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert set(read_rows(out)["outcome"].to_pylist()) == {"rejected"}
    assert "HTTP 429" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mix", "short=0.5"], "add up to 1"),
        (["--mix", "tiny=1"], "tiny"),
        (["--max-tokens", "0"], "'0'"),
        (["--request-timeout", "0"], "above 0"),
        (["--host", "ftp://x"], "ftp://x"),
    ],
)
def test_bad_options_end_with_one_line_and_leave_nothing(tmp_path: Path, options: list[str], says: str) -> None:
    out = tmp_path / "run"
    command = [*LOCUST, "--headless", "-t", "1s", "--host", "http://127.0.0.1:1", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_an_existing_run_directory_and_a_silent_service(tmp_path: Path) -> None:
    command = [*LOCUST, "--headless", "-t", "1s", "--host", f"http://127.0.0.1:{free_port()}"]
    existing = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert existing.returncode == 2
    assert "exists" in existing.stderr
    silent = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=60)
    assert silent.returncode == 2
    assert "--model" in silent.stderr
    assert not (tmp_path / "run").exists()


class Master:
    """A level master and its workers."""

    def __init__(self, url: str, out: Path, num_workers: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers.master"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        port = self.await_event("ready")["port"]
        common = ["--worker", "--master-host", "127.0.0.1", "--master-port", str(port), "--host", url]
        self.workers = [
            subprocess.Popen([*LOCUST, *common, "--worker-name", f"w{i}", "--out", str(out), "--run-id", "run"])
            for i in range(num_workers)
        ]
        while self.await_event("workers")["count"] < num_workers:
            pass

    def command(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()

    def level(self, level: int, users: int, measure_s: float) -> None:
        self.command(cmd="level", level=level, users=users, warmup_s=0.3, measure_s=measure_s, grace_s=5)

    def await_event(self, name: str, timeout_s: float = 40) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = threading.Timer(timeout_s, self.process.kill)
        deadline.start()
        try:
            for line in self.process.stdout:
                event: dict[str, Any] = json.loads(line)
                if event["event"] == name:
                    return event
        finally:
            deadline.cancel()
        raise AssertionError(f"the master ended, or {timeout_s} s passed, without {name}")

    def quit(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        for process in [self.process, *self.workers]:
            process.kill()
            process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.slow
def test_levels_follow_each_other_and_a_killed_worker_loses_nothing_acknowledged(golden: str, tmp_path: Path) -> None:
    master = Master(golden, tmp_path, num_workers=2)
    try:
        for level, users in enumerate((2, 7)):
            master.level(level, users, measure_s=1.5)
            ended = master.await_event("level_ended")
            rows = read_rows(tmp_path, level)
            assert rows.num_rows == ended["rows"] > 10
            assert ended["outcomes"] == Counter(rows["outcome"].to_pylist())
            assert ended["lost_workers"] == []
            assert set(rows["worker"].to_pylist()) == {"w0", "w1"}
        assert requests_served(golden) == read_rows(tmp_path).num_rows, "nothing was sent outside a level"

        master.level(2, 4, measure_s=6)
        master.await_event("progress")
        time.sleep(1)
        master.workers[1].kill()
        assert master.await_event("level_ended")["lost_workers"] == ["w1"]
        [journal] = (tmp_path / "requests" / "level=2" / "worker=w1").iterdir()
        acknowledged = journal.read_bytes().count(b"\n") - 1
        assert acknowledged > 5
        assert recover(tmp_path / "requests") == acknowledged

        master.level(3, 2, measure_s=1)
        assert master.await_event("level_ended")["lost_workers"] == []
        assert set(read_rows(tmp_path, 3)["worker"].to_pylist()) == {"w0"}
        master.quit()
        assert master.workers[0].wait(20) == 0
    finally:
        master.kill()


@pytest.mark.slow
def test_a_level_is_stopped_early_and_stragglers_are_cancelled(golden: str, tmp_path: Path) -> None:
    master = Master(golden, tmp_path, num_workers=1)
    try:
        master.command(cmd="level", level=0, users=3, warmup_s=0, measure_s=60, grace_s=0)
        master.await_event("progress")
        master.command(cmd="stop")
        ended = master.await_event("level_ended")
        assert ended["outcomes"]["cancelled"] >= 1
        assert ended["rows"] == read_rows(tmp_path).num_rows
        assert (ended["window_end_unix_ns"] - ended["window_start_unix_ns"]) < 30e9
        master.command(cmd="level", level=1, users=0)
        assert "message" in master.await_event("error")
    finally:
        master.kill()
