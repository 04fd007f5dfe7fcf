"""A run directory as columns: the manifest and, for each level, its rows on one time axis.

Times become seconds of wall clock since the level's window began, so rows of several machines can be laid side by
side; the subtraction happens in integer nanoseconds. NaN stands for null.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.errors import InputError
from analysis.generator import GeneratorCondition, condition, read_conditions
from workers.records import OUTCOMES, PROMPT_CLASSES, SCHEMA, WALL_ANCHOR_KEY, read_journal

Floats = npt.NDArray[np.float64]

_TIMES = ("intended_ns", "sent_ns", "first_token_ns", "last_token_ns", "end_ns")
_COUNTS = ("prompt_tokens", "completion_tokens")
_COLUMNS = (*_TIMES, *_COUNTS, "outcome", "prompt_class", "chunk_ns", "chunk_tokens")
#: Columns that rows of older runs lack.
_LATER_COLUMNS = ("is_burst", "clock_source")


@dataclass(frozen=True, slots=True)
class Level:
    """One load level. Shape: arrays are (rows,), those named ``chunk_*`` (chunks,). Units: seconds since the window."""

    level: int
    concurrency: int
    status: str
    note: str | None
    window_s: float
    intended: Floats
    sent: Floats
    first_token: Floats
    last_token: Floats
    end: Floats
    prompt_tokens: Floats
    completion_tokens: Floats
    #: Index into OUTCOMES and PROMPT_CLASSES; -1 for a value that neither knows.
    outcome: npt.NDArray[np.int64]
    prompt_class: npt.NDArray[np.int64]
    chunk_row: npt.NDArray[np.int64]
    chunk_at: Floats
    #: Tokens that each chunk brought.
    chunk_tokens: Floats
    #: Requests a second that an open loop planned.
    rate_rps: float | None = None
    #: Rows whose stream came in one burst.
    num_bursts: int = 0
    #: Where token times come from: "kernel", "user".
    clock_sources: frozenset[str] = frozenset()
    #: The load generator's own condition, where it wrote it down.
    generator: GeneratorCondition | None = None

    @property
    def load(self) -> float:
        """Where the level stands on the axis of load: the rate offered, or the requests held in flight."""
        return float(self.concurrency if self.rate_rps is None else self.rate_rps)

    @property
    def num_rows(self) -> int:
        """Rows of the level, warm-up and grace included."""
        return len(self.sent)


@dataclass(frozen=True, slots=True)
class Run:
    """A manifest and its levels in order."""

    path: Path
    manifest: dict[str, Any]
    levels: tuple[Level, ...]
    warnings: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        """ "closed" or "open"."""
        return str(self.manifest.get("load", "closed"))


def load_run(run_dir: Path) -> Run:
    """Reads a run directory, journals of killed processes included.

    Raises:
        InputError: there is no readable manifest, or a file of rows cannot be read.
    """
    manifest = _read_manifest(run_dir)
    entries = sorted(manifest["levels"], key=lambda entry: entry["level"])
    health = read_conditions(run_dir)
    return Run(run_dir, manifest, tuple(_read_level(run_dir, entry, health) for entry in entries))


def _read_manifest(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "manifest.json"
    try:
        manifest = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{run_dir}: not a run directory, it has no manifest.json") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path}: not a readable manifest: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1 or not isinstance(manifest.get("levels"), list):
        raise InputError(f"{path}: not a manifest of format 1 with a list of levels")
    return manifest


def _read_level(run_dir: Path, entry: dict[str, Any], health: list[dict[str, Any]]) -> Level:
    directory = run_dir / "requests" / f"level={entry['level']}"
    files = [path for path in sorted(directory.glob("worker=*/part-*")) if _is_current(path)]
    table = pa.concat_tables(
        [_on_wall_clock(path) for path in files] or [SCHEMA.empty_table().select([*_COLUMNS, *_LATER_COLUMNS])]
    )
    start, end, whole = _window(entry, table)
    times = {name.removesuffix("_ns"): _seconds(table[name], start) for name in _TIMES}
    counts = {name: _floats(table[name]) for name in _COUNTS}
    chunk_row, chunk_at, chunk_tokens = _chunks(table, start, counts["completion_tokens"])
    return Level(
        level=entry["level"], concurrency=entry["concurrency"], note=entry.get("note"),
        status=entry["status"] if whole else "interrupted", window_s=(end - start) / 1e9,
        outcome=_codes(table["outcome"], OUTCOMES), prompt_class=_codes(table["prompt_class"], PROMPT_CLASSES),
        chunk_row=chunk_row, chunk_at=chunk_at, chunk_tokens=chunk_tokens,
        rate_rps=entry.get("rate_rps"), num_bursts=pc.sum(table["is_burst"]).as_py() or 0,
        clock_sources=frozenset(name for name in pc.unique(table["clock_source"]).to_pylist() if name),
        generator=condition(health, entry["level"], start, end), **times, **counts,
    )  # fmt: skip


def _is_current(path: Path) -> bool:
    """Parquet always; a journal only while no Parquet stands beside it."""
    return path.suffix == ".parquet" or (path.suffix == ".jsonl" and not path.with_suffix(".parquet").exists())


def _on_wall_clock(path: Path) -> pa.Table:
    try:
        # Without partitioning=None the folder names level=, worker= would become columns that clash with the rows' own.
        table = read_journal(path) if path.suffix == ".jsonl" else pq.read_table(path, partitioning=None)
        anchor = int((table.schema.metadata or {})[WALL_ANCHOR_KEY])
        for name in set(_LATER_COLUMNS) - set(table.column_names):
            table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
        table = table.select([*_COLUMNS, *_LATER_COLUMNS])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a readable file of request rows: {error}") from error
    for name in _TIMES:
        table = table.set_column(table.schema.get_field_index(name), name, pc.add(table[name], anchor))
    lists = table["chunk_ns"].combine_chunks()
    values = pc.add(lists.flatten(), anchor)
    # flatten() skips null rows, so offsets are rebuilt from lengths rather than taken over.
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    index = table.schema.get_field_index("chunk_ns")
    return table.set_column(index, "chunk_ns", pa.ListArray.from_arrays(offsets, values)).replace_schema_metadata(None)


def _window(entry: dict[str, Any], table: pa.Table) -> tuple[int, int, bool]:
    """Start and end of the level's window on the wall clock, and whether the manifest has them."""
    start, end = entry.get("window_start_unix_ns"), entry.get("window_end_unix_ns")
    if start and end and end > start:
        return int(start), int(end), True
    first, last = pc.min(table["sent_ns"]).as_py(), pc.max(table["end_ns"]).as_py()
    if first is None or last is None or last <= first:
        return 0, 0, False
    return int(first), int(last), False


def _seconds(column: pa.ChunkedArray | pa.Array, origin_ns: int) -> Floats:
    return _floats(pc.subtract(column, origin_ns)) / 1e9


def _floats(column: pa.ChunkedArray | pa.Array) -> Floats:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")), dtype=np.float64)


def _codes(column: pa.ChunkedArray, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.index_in(column, value_set=pa.array(names)), -1), dtype=np.int64)


def _chunks(table: pa.Table, origin_ns: int, completion: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Row, arrival and tokens of every chunk.

    Where the server does not tell a chunk's tokens, the request's are spread evenly over its chunks; where it does not
    tell those either, a chunk counts as one token.
    """
    counts = np.asarray(pc.fill_null(pc.list_value_length(table["chunk_ns"]), 0), dtype=np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(np.isfinite(completion), completion / counts, 1.0)
    tokens = share[rows]
    told = np.asarray(pc.fill_null(pc.list_value_length(table["chunk_tokens"]), -1), dtype=np.int64)
    known = (told == counts)[rows]
    if known.any():
        flat = pc.list_flatten(table["chunk_tokens"].filter(pa.array(told == counts)))
        tokens[known] = _floats(flat)
    return rows, _seconds(pc.list_flatten(table["chunk_ns"]), origin_ns), tokens
