"""The run directory and its manifest, which is rewritten whole and atomically at every change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import orjson

from cluster.errors import UsageError

_PACKAGES = ("tokenswarm", "locust", "ray", "torch", "transformers")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RunDir:
    """One run's directory while the run lasts."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @classmethod
    def create(cls, out: Path, run_id: str, target: dict[str, Any], settings: dict[str, Any], seed: int) -> RunDir:
        """Make ``out/run_id`` with its manifest.

        Raises:
            UsageError: it exists, or cannot be made.
        """
        path = check_new(out, run_id)
        manifest = {
            "format": 1,
            "run_id": run_id,
            "kind": "sweep",
            "created_unix_ns": time.time_ns(),
            "load": "closed",
            "target": target,
            "settings": settings,
            "seed": seed,
            "versions": _versions(),
            "git_revision": _git_revision(),
            "nodes": [],
            "levels": [],
        }
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot make {str(path)!r} ({error.strerror}); choose another with --out") from error
        run = cls(path, manifest)
        run.write()
        return run

    def update(self, **fields: Any) -> None:
        self.manifest |= fields
        self.write()

    def begin_level(self, level: int, concurrency: int, rate_rps: float | None = None) -> None:
        entry = {
            "level": level,
            "concurrency": concurrency,
            "rate_rps": rate_rps,
            "status": "running",
            "started_unix_ns": None,
            "window_start_unix_ns": None,
            "window_end_unix_ns": None,
            "note": None,
        }
        self.manifest["levels"].append(entry)
        self.write()

    def update_level(self, level: int, **fields: Any) -> None:
        entry = next(entry for entry in self.manifest["levels"] if entry["level"] == level)
        entry.update(fields)
        self.write()

    def write(self) -> None:
        unfinished = self.path / "manifest.json.tmp"
        unfinished.write_bytes(orjson.dumps(self.manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        os.replace(unfinished, self.path / "manifest.json")

    def place(self, relative: str, content: bytes) -> None:
        """Put a file that came from another node into the run."""
        target = self.path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".tmp")
        unfinished.write_bytes(content)
        os.replace(unfinished, target)

    def requests_of(self, level: int, worker: str) -> Path:
        return self.path / "requests" / f"level={level}" / f"worker={worker}"

    @property
    def log_dir(self) -> Path:
        folder = self.path / "logs"
        folder.mkdir(exist_ok=True)
        return folder

    def discard_unless_measured(self) -> None:
        """Leave nothing half-made: a run in which no level began is removed."""
        if not self.manifest["levels"]:
            shutil.rmtree(self.path, ignore_errors=True)


def default_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def check_new(out: Path, run_id: str) -> Path:
    """The directory that ``run_id`` will have below ``out``.

    Raises:
        UsageError: the name is none, or the directory exists.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(f"run-id {run_id!r} is no plain name; use letters, digits, '.', '_' and '-'")
    path = out / run_id
    if path.exists():
        raise UsageError(f"run directory {str(path)!r} exists; choose another with --run-id or --out")
    return path


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": python_version()}
    for package in _PACKAGES:
        versions[package] = None
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return done.stdout.strip() or None
    return None
