"""Rows on disk: a line of journal the moment a request ends, Parquet when its level is over. Gevent-free.

A line is written by one ``write`` on an appending descriptor, so rows survive the process being killed. Nothing is
converted while a level is measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from workers.records import Record, journal_batches, journal_header, journal_line


class Sink:
    """The rows of one worker, a folder a level: ``<out>/requests/level=<k>/worker=<w>/``."""

    def __init__(self, out: Path, worker: str, wall_anchor_ns: int) -> None:
        self._out = out
        self._worker = worker
        self._wall_anchor_ns = wall_anchor_ns
        self._journal: Path | None = None
        self._fd = -1

    def open_level(self, level: int) -> None:
        """Begin a journal; one that is still open is closed first."""
        self.close_level()
        folder = self._out / "requests" / f"level={level}" / f"worker={self._worker}"
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = folder / f"part-{_next_part(folder):05d}.jsonl"
        self._fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        os.write(self._fd, journal_header(self._wall_anchor_ns))

    def write(self, record: Record) -> None:
        """Acknowledge a row: when this returns, killing the process cannot lose it."""
        os.write(self._fd, journal_line(record))

    def close_level(self) -> None:
        """Turn the open journal into Parquet."""
        if self._journal is None:
            return
        os.close(self._fd)
        journal, self._journal, self._fd = self._journal, None, -1
        _convert(journal)


def recover(folder: Path) -> int:
    """Turn the journals that dead processes left below ``folder`` into Parquet; the number of rows saved.

    May be called again at any time; a journal beside its whole Parquet is stale and goes.
    """
    return sum(_convert(journal) for journal in sorted(folder.rglob("part-*.jsonl")))


def _next_part(folder: Path) -> int:
    parts = [int(path.stem.removeprefix("part-")) for path in folder.glob("part-*.*") if path.suffix != ".tmp"]
    return max(parts, default=-1) + 1


def _convert(journal: Path) -> int:
    """One journal to Parquet, by way of a temporary name, so that a file with the final name is whole."""
    target = journal.with_suffix(".parquet")
    num_rows = 0
    if not target.exists():
        unfinished = journal.with_suffix(".tmp")
        num_rows = _write_parquet(journal, unfinished)
        if num_rows:
            os.replace(unfinished, target)
    journal.unlink()
    return num_rows


def _write_parquet(journal: Path, target: Path) -> int:
    writer: pq.ParquetWriter | None = None
    num_rows = 0
    for table in journal_batches(journal):
        writer = writer or pq.ParquetWriter(target, table.schema)
        writer.write_table(table)
        num_rows += table.num_rows
    if writer is not None:
        writer.close()
    return num_rows
