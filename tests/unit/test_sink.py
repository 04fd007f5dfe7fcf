"""Rows survive: journal first, Parquet by rename, and what a killed process left is recovered once."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from workers.records import SCHEMA, WALL_ANCHOR_KEY, Record, journal_header, journal_line, read_journal
from workers.sink import Sink, recover


def record(number: int, level: int = 0) -> Record:
    return Record(
        "run", level, "w0", f"id-{number}", "short", f"w0-{number}", "http://h", "m", "openai-chat",
        sent_ns=number, chunk_ns=[1, 2, number], outcome="ok", error="世界\n",
    )  # fmt: skip


def folder(out: Path, level: int = 0) -> Path:
    return out / "requests" / f"level={level}" / "worker=w0"


def test_rows_become_parquet_at_the_level_s_end(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "w0", 123)
    for level in (0, 1):
        sink.open_level(level)
        for number in range(3):
            sink.write(record(number, level))
    sink.close_level()
    assert [p.name for p in sorted(tmp_path.rglob("*.*"))] == ["part-00000.parquet"] * 2
    table = pq.read_table(folder(tmp_path, 1) / "part-00000.parquet", partitioning=None)
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata[WALL_ANCHOR_KEY] == b"123"
    assert table["request_id"].to_pylist() == ["id-0", "id-1", "id-2"]
    assert table["chunk_ns"].to_pylist()[2] == [1, 2, 2]
    assert table["error"].to_pylist()[0] == "世界\n"
    assert table["first_token_ns"].to_pylist() == [None] * 3


def test_a_level_opened_again_makes_another_part(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "w0", 0)
    for _ in range(2):
        sink.open_level(0)
        sink.write(record(0))
    sink.close_level()
    assert sorted(p.name for p in folder(tmp_path).iterdir()) == ["part-00000.parquet", "part-00001.parquet"]


def test_a_level_without_rows_leaves_no_file(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "w0", 0)
    sink.open_level(0)
    sink.close_level()
    assert list(folder(tmp_path).iterdir()) == []


def test_recover_keeps_every_acknowledged_row_and_drops_the_half_written(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "w0", 5)
    sink.open_level(0)
    for number in range(4):
        sink.write(record(number))
    journal = folder(tmp_path) / "part-00000.jsonl"
    with journal.open("ab") as file:
        file.write(journal_line(record(9))[:40])
    assert read_journal(journal).num_rows == 4
    assert recover(tmp_path) == 4
    assert recover(tmp_path) == 0
    assert [p.name for p in folder(tmp_path).iterdir()] == ["part-00000.parquet"]
    assert pq.read_table(folder(tmp_path) / "part-00000.parquet", partitioning=None).num_rows == 4


def test_a_journal_beside_whole_parquet_is_stale(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "w0", 5)
    sink.open_level(0)
    sink.write(record(0))
    sink.close_level()
    (folder(tmp_path) / "part-00000.jsonl").write_bytes(journal_header(5) + journal_line(record(0)))
    assert recover(tmp_path) == 0
    assert [p.name for p in folder(tmp_path).iterdir()] == ["part-00000.parquet"]


@pytest.mark.parametrize("content", [b"", b'{"wall_an'])
def test_a_journal_killed_before_its_header_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "part-00000.jsonl").write_bytes(content)
    assert recover(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_journal_without_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-00000.jsonl").write_bytes(b"[]\n")
    with pytest.raises(ValueError, match="no journal header"):
        read_journal(tmp_path / "part-00000.jsonl")
