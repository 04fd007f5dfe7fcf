"""The load generator's own condition in a level, from its health rows: was it the service that was slow?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import InputError
from workers.records import HEALTH_SCHEMA, WALL_ANCHOR_KEY, journal_batches


@dataclass(frozen=True, slots=True)
class GeneratorCondition:
    """Of the busiest load process in a level's window. ``cpu`` is in cores."""

    cpu: float
    hub_lag_p50_ms: float
    hub_lag_max_ms: float
    schedule_lag_mean_ms: float | None
    most_in_flight: int


def read_conditions(run_dir: Path) -> list[dict[str, Any]]:
    """All health rows of a run, their times on the wall clock.

    Raises:
        InputError: a file cannot be read.
    """
    rows = []
    for path in sorted((run_dir / "health").glob("worker=*/part-*")):
        if path.suffix == ".parquet" or (path.suffix == ".jsonl" and not path.with_suffix(".parquet").exists()):
            rows += _read(path)
    return rows


def condition(rows: list[dict[str, Any]], level: int, start_ns: int, end_ns: int) -> GeneratorCondition | None:
    """The worst process's condition in a level's window (wall clock); None where nothing was written."""
    inside = [
        row
        for row in rows
        if row["level"] == level and row["time_ns"] - row["interval_ns"] >= start_ns and row["time_ns"] <= end_ns
    ]
    workers = {row["worker"] for row in inside}
    each = [_of_one([row for row in inside if row["worker"] == worker]) for worker in sorted(workers)]
    return max(each, key=lambda one: one.cpu, default=None)


def _of_one(rows: list[dict[str, Any]]) -> GeneratorCondition:
    lags = np.array([row["hub_lag_ns"] for row in rows]) / 1e6
    schedule = [row["schedule_lag_mean_ns"] / 1e6 for row in rows if row["schedule_lag_mean_ns"] is not None]
    return GeneratorCondition(
        cpu=float(np.median([row["cpu_ns"] / row["interval_ns"] for row in rows])),
        hub_lag_p50_ms=float(np.median(lags)),
        hub_lag_max_ms=float(lags.max()),
        schedule_lag_mean_ms=float(np.mean(schedule)) if schedule else None,
        most_in_flight=max(row["in_flight"] for row in rows),
    )


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".jsonl":
            tables = list(journal_batches(path, schema=HEALTH_SCHEMA))
        else:
            tables = [pq.read_table(path, partitioning=None)]
        return [row | {"time_ns": row["time_ns"] + _anchor(table)} for table in tables for row in table.to_pylist()]
    except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: not a readable file of health rows: {error}") from error


def _anchor(table: pa.Table) -> int:
    return int((table.schema.metadata or {})[WALL_ANCHOR_KEY])


def sentences(manifest: dict[str, Any], conditions: list[GeneratorCondition], clients: set[str]) -> list[str]:
    """What a report says of the generator: how it was, and how far it is to be trusted."""
    said = []
    if conditions:
        worst = max(conditions, key=lambda one: one.cpu)
        said.append(
            f"The busiest load process used {worst.cpu:.0%} of a core and had up to "
            f"{max(one.most_in_flight for one in conditions)} requests in flight; its event loop was late by "
            f"{max(one.hub_lag_p50_ms for one in conditions):.1f} ms at the median of the worst level."
        )
    said.append(_calibrated(manifest.get("calibration") or [], conditions))
    if "user" in clients:
        said.append(
            "Some token times are those of the process, not of the kernel: they hold its own delays "
            "(client openai-sdk, or a system without kernel time stamps)."
        )
    return said


def _calibrated(calibrations: list[dict[str, Any] | None], conditions: list[GeneratorCondition]) -> str:
    known = [one["trusted"] for one in calibrations if one and one.get("trusted")]
    if not known or len(known) < len(calibrations):
        return "Not every load process's machine was calibrated: run tokenswarm calibrate there to know its own error."
    streams = min(trusted["streams"] for trusted in known)
    tokens = min(trusted["tokens_per_s"] for trusted in known)
    most = max((one.most_in_flight for one in conditions), default=0)
    beyond = f" This run had up to {most}, beyond that." if most > streams else ""
    return (
        f"Calibrated: TTFT within 1 ms and TPOT within 0.05 ms at p99 up to {streams} streams or {tokens:,} tokens/s a "
        f"load process.{beyond}"
    )
