"""Runs the real command, and finds and ends the processes that belong to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pyarrow.parquet as pq

TOKENSWARM = str(Path(sys.executable).with_name("tokenswarm"))


class Command:
    """A tokenswarm command that runs."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self._stdout, self._stderr = cwd / "stdout", cwd / "stderr"
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen([TOKENSWARM, *arguments], cwd=cwd, stdout=out, stderr=err)
        self._family: set[psutil.Process] = set()

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def wait_until(self, is_so: Callable[[], Any], timeout_s: float = 90) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (answer := is_so()):
            assert self.process.poll() is None, f"ended early with {self.process.returncode}: {self.stderr}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {self.stderr}"
            time.sleep(0.05)
        return answer

    def note_family(self) -> list[psutil.Process]:
        """All processes below it now; ``survivors`` looks for these."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self._family.update(family)
        return family

    def signal_and_wait(self, number: int, timeout_s: float = 60) -> int:
        self.note_family()
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def survivors(self, within_s: float = 30) -> list[str]:
        """What is left of the family after a while."""
        deadline = time.monotonic() + within_s
        while (alive := [p for p in self._family if _is_alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [" ".join(_cmdline(process)) or str(process) for process in alive]

    def end(self) -> None:
        if self.process.poll() is None:
            self.note_family()
            self.process.terminate()
            self.process.wait(60)


def run(cwd: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOKENSWARM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def manifest(run_path: Path) -> dict[str, Any]:
    return json.loads((run_path / "manifest.json").read_text())


def rows(run_path: Path) -> list[dict[str, Any]]:
    """Every row in Parquet, with the level and worker its folder says."""
    return ds.dataset(run_path / "requests", partitioning=None).to_table().to_pylist()


def parquet_rows(folder: Path, pattern: str) -> int:
    return sum(pq.read_metadata(file).num_rows for file in folder.glob(pattern))


def locust_worker(command: Command, name: str) -> psutil.Process | None:
    """The Locust process of that worker name, below the command."""
    for process in command.note_family():
        line = _cmdline(process)
        if "locust" in line and name in line:
            return process
    return None


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
