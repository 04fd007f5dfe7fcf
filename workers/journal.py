"""Rows that survive their process: a line of JSON each, at once; Parquet when the file is closed. Gevent-free.

A line is written by one ``write`` on an appending descriptor, so it survives the process being killed. Nothing is
converted while a level is measured. If both files stand, the Parquet is whole and the journal is stale.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workers.records import journal_batches, journal_header, journal_line


class Journal:
    """One open file of rows in a folder, ``part-<n>.jsonl``, which becomes ``part-<n>.parquet``."""

    def __init__(self, folder: Path, schema: pa.Schema, wall_anchor_ns: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._path = folder / f"part-{_next_part(folder):05d}.jsonl"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        os.write(self._fd, journal_header(wall_anchor_ns))

    def write(self, row: Any) -> None:
        """Acknowledge a row (a dataclass): when this returns, killing the process cannot lose it."""
        os.write(self._fd, journal_line(row))

    def close(self) -> None:
        """Turn it into Parquet."""
        os.close(self._fd)
        convert(self._path, self._schema)


def recover(folder: Path, schema: pa.Schema) -> int:
    """Turn the journals that dead processes left below ``folder`` into Parquet; the number of rows saved.

    May be called again at any time.
    """
    return sum(convert(journal, schema) for journal in sorted(folder.rglob("part-*.jsonl")))


def convert(journal: Path, schema: pa.Schema) -> int:
    """One journal to Parquet, by way of a temporary name, so that a file with the final name is whole."""
    target = journal.with_suffix(".parquet")
    num_rows = 0
    if not target.exists():
        unfinished = journal.with_suffix(".tmp")
        num_rows = _write_parquet(journal, unfinished, schema)
        if num_rows:
            os.replace(unfinished, target)
    journal.unlink()
    return num_rows


def _next_part(folder: Path) -> int:
    parts = [int(path.stem.removeprefix("part-")) for path in folder.glob("part-*.*") if path.suffix != ".tmp"]
    return max(parts, default=-1) + 1


def _write_parquet(journal: Path, target: Path, schema: pa.Schema) -> int:
    writer: pq.ParquetWriter | None = None
    num_rows = 0
    for table in journal_batches(journal, schema=schema):
        writer = writer or pq.ParquetWriter(target, table.schema)
        writer.write_table(table)
        num_rows += table.num_rows
    if writer is not None:
        writer.close()
    return num_rows
