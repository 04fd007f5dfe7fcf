"""How far off a load generator is: its rows against what the timing server knows (workers/timing_server.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.dataset import Floats
from analysis.errors import InputError
from workers.records import WALL_ANCHOR_KEY

#: Greatest error (ms, at p99) up to which a load is trusted.
MAX_TTFT_ERROR_MS, MAX_TPOT_ERROR_MS = 1.0, 0.05
#: A process that takes so much of a core has no room left for what comes next.
MAX_CPU = 0.95
_TIMES = ("sent_ns", "first_token_ns", "last_token_ns")
_COLUMNS = ["request_id", "outcome", "chunk_ns", *_TIMES]
#: The server's own lateness, at the median and as a share of the time between two tokens, beyond which it, and not the
#: client, is what a level shows. Being late is in its log, so it makes no error.
MAX_SERVER_LATE = 0.5


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """One load. Errors are absolute differences from the truth, in ms; ``cpu`` is cores of the load process."""

    streams: int
    requests: int
    requests_at_server: int
    connections: int
    tokens_per_s: float
    cpu: float
    cpu_us_per_token: float
    ttft_error_ms: dict[str, float]
    tpot_error_ms: dict[str, float]
    server_late_ms: float
    verdict: str

    @property
    def is_trusted(self) -> bool:
        return self.verdict == "ok"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the server knows of a level: a log line a request, its counts, and the timing that it was asked for."""

    log: Mapping[str, Mapping[str, Any]]
    requests: int
    connections: int
    ttft_s: float
    itl_s: float


def measure_point(run_dir: Path, level: int, streams: int, window: tuple[int, int], truth: Truth) -> CalibrationPoint:
    """Judge one level of a run directory. ``window`` is in wall-clock ns.

    Raises:
        InputError: no request began and ended inside the window.
    """
    start, end = window
    level_dir = run_dir / "requests" / f"level={level}"
    rows = list(_rows(level_dir))
    inside = [row for row in rows if row["outcome"] == "ok" and row["sent_ns"] >= start and row["last_token_ns"] < end]
    pairs = [(row, truth.log[row["request_id"]]) for row in inside if row["request_id"] in truth.log]
    if not pairs:
        raise InputError(f"{level_dir}: no request began and ended inside the window; measure longer")
    ttft = np.array([_ttft_error(row, known) for row, known in pairs]) / 1e6
    tpot = np.array([_tpot_error(row, known) for row, known in pairs]) / 1e6
    late = float(np.median(np.concatenate([_lateness(known, truth) for _, known in pairs])))
    cpu_ns, span_ns, first, last = _cpu(run_dir / "health", level, start, end)
    tokens = sum(int(((times >= first) & (times < last)).sum()) for times in map(_chunk_times, rows))
    cpu = cpu_ns / span_ns
    errors = _percentiles(ttft), _percentiles(tpot)
    is_server_late = late > MAX_SERVER_LATE * truth.itl_s * 1e3
    return CalibrationPoint(
        streams, len(rows), truth.requests, truth.connections, tokens / span_ns * 1e9, cpu,
        cpu_ns / 1e3 / max(tokens, 1), *errors, late, _verdict(*errors, cpu, is_server_late),
    )  # fmt: skip


def trusted_load(points: Iterable[CalibrationPoint]) -> CalibrationPoint | None:
    """The greatest load up to which every one is trusted."""
    best = None
    for point in sorted(points, key=lambda point: point.streams):
        if not point.is_trusted:
            break
        best = point
    return best


def _verdict(ttft: dict[str, float], tpot: dict[str, float], cpu: float, is_server_late: bool) -> str:
    if ttft["p99"] > MAX_TTFT_ERROR_MS:
        return "TTFT off"
    if tpot["p99"] > MAX_TPOT_ERROR_MS:
        return "TPOT off"
    if cpu > MAX_CPU:
        return "CPU spent"
    return "server late" if is_server_late else "ok"


def _ttft_error(row: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    true_ns = known["sent_ns"][0] - known["received_ns"]
    return float(abs((row["first_token_ns"] - row["sent_ns"]) - true_ns))


def _tpot_error(row: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    gaps = max(1, len(known["sent_ns"]) - 1)
    true_ns = known["sent_ns"][-1] - known["sent_ns"][0]
    return float(abs((row["last_token_ns"] - row["first_token_ns"]) - true_ns)) / gaps


def _lateness(known: Mapping[str, Any], truth: Truth) -> Floats:
    """How much later than due each token left the server, in ms."""
    sent = np.asarray(known["sent_ns"], dtype=np.int64)
    due = known["received_ns"] + (truth.ttft_s + truth.itl_s * np.arange(len(sent))) * 1e9
    return np.asarray((sent - due) / 1e6, dtype=np.float64)


def _percentiles(values: Floats) -> dict[str, float]:
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99))}


def _rows(level_dir: Path) -> Iterable[dict[str, Any]]:
    for path in sorted(level_dir.glob("worker=*/part-*.parquet")):
        table = pq.read_table(path, partitioning=None)
        anchor = _anchor(table)
        for row in table.select(_COLUMNS).to_pylist():
            times = {name: row[name] + anchor for name in _TIMES if row[name] is not None}
            yield row | times | {"chunk_ns": [at + anchor for at in row["chunk_ns"] or ()]}


def _anchor(table: pa.Table) -> int:
    return int((table.schema.metadata or {})[WALL_ANCHOR_KEY])


def _chunk_times(row: Mapping[str, Any]) -> Floats:
    return np.asarray(row["chunk_ns"], dtype=np.float64)


def _cpu(health_dir: Path, level: int, start: int, end: int) -> tuple[int, int, int, int]:
    """CPU time, its span, and that span's ends on the wall clock, from the seconds that lie inside the window."""
    seconds = []
    for path in sorted(health_dir.glob("worker=*/part-*.parquet")):
        table = pq.read_table(path, partitioning=None)
        anchor = _anchor(table)
        for row in table.to_pylist():
            last = row["time_ns"] + anchor
            if row["level"] == level and last - row["interval_ns"] >= start and last <= end:
                seconds.append((last - row["interval_ns"], last, row["cpu_ns"]))
    if not seconds:
        raise InputError(f"{health_dir}: no whole second lies inside the window; measure longer")
    return sum(s[2] for s in seconds), sum(s[1] - s[0] for s in seconds), seconds[0][0], seconds[-1][1]
