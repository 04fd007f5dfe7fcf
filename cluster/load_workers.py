"""Load workers: Ray actors that each start and watch one Locust process, on any node.

Where a node does not see the run directory, the worker writes to a folder of its own and its files come over Ray's
object store after each level.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import die_with_parent, ray_cluster  # noqa: F401  sets Ray's environment before Ray is imported
from cluster.run_dir import RunDir
from workers import calibration, journal
from workers.records import HEALTH_SCHEMA
from workers.sink import recover

import ray  # isort: skip

_STOP_TIMEOUT_S = 10.0


class LoadWorker:
    """Starts and watches one Locust process; restarts are its owner's decision."""

    def __init__(self, run_path: Path, run_id: str, collect: bool) -> None:
        self.is_local = collect or not _sees(run_path, run_id)
        self._out = Path(tempfile.mkdtemp(prefix="tokenswarm-")) if self.is_local else run_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> int:
        """Start Locust under this worker name; its process id."""
        locust = [sys.executable, "-P", "-m", "locust", *arguments, "--worker-name", name, "--out", str(self._out)]
        command = [sys.executable, "-S", die_with_parent.__file__, str(os.getpid()), *locust]
        log = self._out / "logs" / f"locust-{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._out,
                env=os.environ | environment,
            )  # fmt: skip
        return self._process.pid

    def calibration(self) -> dict[str, Any] | None:
        """What is known of this node's error as a load generator."""
        return calibration.brief()

    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def recover(self, level: int, name: str) -> int:
        """Rows saved from the journals of a process that was killed."""
        journal.recover(self._out / "health" / f"worker={name}", HEALTH_SCHEMA)
        return recover(self._out / "requests" / f"level={level}" / f"worker={name}")

    def take_files(self, level: int) -> dict[str, bytes]:
        """The level's Parquet by path below the run directory, where it is not on the driver's disk already."""
        if not self.is_local:
            return {}
        folders = self._out / "requests" / f"level={level}", self._out / "health"
        files = sorted(file for folder in folders for file in folder.rglob("*.parquet"))
        taken = {str(file.relative_to(self._out)): file.read_bytes() for file in files}
        for file in files:
            file.unlink()
        return taken

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self.is_local:
            shutil.rmtree(self._out, ignore_errors=True)


def _sees(run_path: Path, run_id: str) -> bool:
    """Whether the run directory at this path is the driver's, and not one of the same name on another disk."""
    with suppress(OSError, json.JSONDecodeError):
        return bool(json.loads((run_path / "manifest.json").read_text())["run_id"] == run_id)
    return False


@dataclass(slots=True)
class _Member:
    """One load worker's place: its actor, and the name that its present Locust process goes by."""

    actor: Any
    index: int
    num_restarts: int = 0

    @property
    def name(self) -> str:
        return f"w{self.index}" + (f"r{self.num_restarts}" if self.num_restarts else "")


class LoadWorkers:
    """All load workers of a sweep."""

    def __init__(self, run: RunDir, num_workers: int, arguments: list[str], collect: bool = False) -> None:
        self._run = run
        self._arguments = arguments
        self._environment = {name: os.environ[name] for name in _KEYS if os.environ.get(name)}
        self._make_actor: Callable[[], Any] = lambda: _Actor.remote(run.path.resolve(), run.run_id, collect)
        self._members = [_Member(self._make_actor(), index) for index in range(num_workers)]

    def __len__(self) -> int:
        return len(self._members)

    def start(self) -> None:
        ray.get([self._start(member) for member in self._members])

    def mend(self) -> list[str]:
        """Start anew what has died, under new names; the names of the dead."""
        dead = [member for member in self._members if not self._is_alive(member)]
        names = [member.name for member in dead]
        for member in dead:
            member.num_restarts += 1
        ray.get([self._start(member) for member in dead])
        return names

    def calibrations(self) -> list[dict[str, Any] | None]:
        """One of each load worker, in order; None where its node was never calibrated."""
        return [ray.get(member.actor.calibration.remote()) for member in self._members]

    def num_alive(self) -> int:
        return sum(self._is_alive(member) for member in self._members)

    def finish_level(self, level: int) -> int:
        """Bring the level's rows home, those of dead processes included; the number of rows saved from journals."""
        saved = 0
        for member in self._members:
            with suppress(ray.exceptions.RayActorError):  # its node is gone, and the rows on its disk
                if ray.get(member.actor.exit_code.remote()) is not None:
                    saved += ray.get(member.actor.recover.remote(level, member.name))
                for path, content in ray.get(member.actor.take_files.remote(level)).items():
                    self._run.place(path, content)
        return saved

    def stop(self) -> None:
        for call in [member.actor.stop.remote() for member in self._members]:
            with suppress(ray.exceptions.RayError):
                ray.get(call, timeout=2 * _STOP_TIMEOUT_S)

    def _start(self, member: _Member) -> Any:
        return member.actor.start.remote(member.name, self._arguments, self._environment)

    def _is_alive(self, member: _Member) -> bool:
        try:
            return ray.get(member.actor.exit_code.remote()) is None
        except ray.exceptions.RayActorError:
            member.actor = self._make_actor()
            return False


#: The keys that a target may need; they travel in memory only.
_KEYS = ("TAOTOKEN_API_KEY", "OPENAI_API_KEY")
_Actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(LoadWorker)
