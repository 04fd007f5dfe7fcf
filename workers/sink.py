"""Where the rows of one worker go: a folder a level, ``<out>/requests/level=<k>/worker=<w>/``. Gevent-free."""

from __future__ import annotations

from pathlib import Path

from workers import journal
from workers.journal import Journal
from workers.records import SCHEMA, Record


class Sink:
    """Keeps a journal open for the level that runs."""

    def __init__(self, out: Path, worker: str, wall_anchor_ns: int) -> None:
        self._out = out
        self._worker = worker
        self._wall_anchor_ns = wall_anchor_ns
        self._journal: Journal | None = None

    def open_level(self, level: int) -> None:
        """Begin a journal; one that is still open is closed first."""
        self.close_level()
        folder = self._out / "requests" / f"level={level}" / f"worker={self._worker}"
        self._journal = Journal(folder, SCHEMA, self._wall_anchor_ns)

    def write(self, record: Record) -> None:
        """Acknowledge a row: when this returns, killing the process cannot lose it."""
        assert self._journal is not None
        self._journal.write(record)

    def close_level(self) -> None:
        """Turn the open journal into Parquet."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def recover(folder: Path) -> int:
    """Turn the journals of requests that dead processes left below ``folder`` into Parquet; the number of rows saved.

    May be called again at any time; a journal beside its whole Parquet is stale and goes.
    """
    return journal.recover(folder, SCHEMA)
