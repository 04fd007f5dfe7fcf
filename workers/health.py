"""The generator's own condition, a row a second: was it the service that was slow, or this process?"""

from __future__ import annotations

import time
from pathlib import Path

import gevent

from workers.client import Wire
from workers.journal import Journal
from workers.records import HEALTH_SCHEMA, HealthRow

_INTERVAL_NS = 1_000_000_000
_PULSE_S = 0.02


class Health:
    """Writes ``<out>/health/worker=<w>/`` while the process lives."""

    def __init__(self, out: Path, worker: str, wire: Wire) -> None:
        self.level: int | None = None
        self._worker = worker
        self._wire = wire
        self._folder = out / "health" / f"worker={worker}"
        self._journal: Journal | None = None
        self._hub_lag_ns = 0
        self._lag_max_ns = self._lag_sum_ns = self._num_sent = 0
        self._last_ns, self._last_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._greenlet = gevent.spawn(self._run)

    def note_sent(self, lag_ns: int) -> None:
        """A request left so long after it was to."""
        self._lag_max_ns = max(self._lag_max_ns, lag_ns)
        self._lag_sum_ns += lag_ns
        self._num_sent += 1

    def open_level(self, level: int) -> None:
        """Seconds from now on belong to ``level``."""
        self.level = level
        self._journal = self._journal or Journal(self._folder, HEALTH_SCHEMA, self._wire.clock.anchor_ns)
        self._begin()

    def close_level(self) -> None:
        """The second that has begun is written too; the rows become Parquet."""
        if self._journal is not None:
            self._write()
            self._journal.close()
            self._journal = None
        self.level = None

    def _run(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + int(_PULSE_S * 1e9)
            gevent.sleep(_PULSE_S)
            now_ns = time.monotonic_ns()
            self._hub_lag_ns = max(self._hub_lag_ns, now_ns - due_ns)
            if now_ns - self._last_ns >= _INTERVAL_NS:
                self._wire.clock.refresh()
                self._write()

    def _write(self) -> None:
        now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        if self._journal is not None:
            row = HealthRow(
                now_ns, self.level, self._worker, now_ns - self._last_ns, cpu_ns - self._last_cpu_ns, self._hub_lag_ns,
                self._lag_max_ns if self._num_sent else None,
                self._lag_sum_ns // self._num_sent if self._num_sent else None,
                self._wire.num_connections, self._wire.in_flight.count,
            )  # fmt: skip
            self._journal.write(row)
        self._begin()

    def _begin(self) -> None:
        self._last_ns, self._last_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._hub_lag_ns = self._lag_max_ns = self._lag_sum_ns = self._num_sent = 0
