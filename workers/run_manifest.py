"""The manifest of a plain Locust run: what ran, and in which window all users were there."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from workers import calibration
from workers.options import Settings
from workers.targets import resolve_target


class RunManifest:
    """Follows Locust's events in the process that steers the run, and keeps ``manifest.json`` up to date."""

    def __init__(self, environment: Any, settings: Settings) -> None:
        self._environment = environment
        self._settings = settings
        self._manifest: dict[str, Any] = {}

    def listen(self) -> None:
        events = self._environment.events
        events.test_start.add_listener(self._on_start)
        events.spawning_complete.add_listener(self._on_spawned)
        events.test_stopping.add_listener(self._on_stopping)

    def _on_start(self, **_: Any) -> None:
        self._manifest = self._manifest or self._begin()
        number = len(self._manifest["levels"])
        users = self._environment.runner.target_user_count
        level = {"level": number, "concurrency": users, "status": "running", "started_unix_ns": time.time_ns()}
        self._manifest["levels"].append(level)
        self._write()

    def _on_spawned(self, user_count: int, **_: Any) -> None:
        """The window begins when the last change of the user count is done."""
        self._update(concurrency=user_count, window_start_unix_ns=time.time_ns())

    def _on_stopping(self, **_: Any) -> None:
        self._update(status="complete", window_end_unix_ns=time.time_ns())

    def _begin(self) -> dict[str, Any]:
        settings = self._settings
        base_url = resolve_target(self._environment.host, {}).base_url  # without credentials a URL may hold
        return {
            "format": 1,
            "run_id": settings.run_id,
            "kind": "locust",
            "created_unix_ns": time.time_ns(),
            "load": "closed",
            "target": {"name": base_url, "base_url": base_url, "model": settings.model or None},
            "settings": {
                "mix": settings.mix,
                "language": settings.language,
                "protocol": settings.protocol,
                "client": settings.client,
                "trust_env": settings.trust_env,
                "obey_retry_after": settings.obey_retry_after,
            },
            "seed": settings.seed,
            "calibration": [calibration.brief()],
            "levels": [],
        }

    def _update(self, **changes: Any) -> None:
        if self._manifest and self._manifest["levels"]:
            self._manifest["levels"][-1].update(changes)
            self._write()

    def _write(self) -> None:
        out = self._settings.out
        out.mkdir(parents=True, exist_ok=True)
        unfinished = out / "manifest.tmp"
        unfinished.write_text(json.dumps(self._manifest, indent=1, ensure_ascii=False) + "\n")
        os.replace(unfinished, out / "manifest.json")
