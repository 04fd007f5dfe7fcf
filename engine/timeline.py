"""The engine's timeline as Parquet: a row a step, a row a request, written behind the loop and in whole files only."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.step_output import RequestTiming, StepRow

#: Schema metadata key: wall clock minus monotonic clock, in ns.
WALL_ANCHOR_KEY = b"tokenswarm.wall_anchor_ns"

_STEPS = pa.schema([(field.name, pa.int64()) for field in fields(StepRow)])
_REQUESTS = pa.schema(
    [(field.name, pa.string() if field.name == "request_id" else pa.int64()) for field in fields(RequestTiming)]
    + [("queue_ns", pa.int64()), ("prefill_ns", pa.int64()), ("decode_ns", pa.int64()), ("finish_reason", pa.string())]
)


class TimelineWriter:
    """Collects rows; ``flush`` writes what has come since the last flush to ``<folder>/replica=<replica>/``.

    At most what came after the last flush is lost when the process is killed.
    """

    def __init__(self, folder: Path, replica: str) -> None:
        self._folder = folder / f"replica={replica}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._steps: list[StepRow] = []
        self._requests: list[dict[str, object]] = []
        self._num_parts = len(list(self._folder.glob("*.parquet")))

    def add_step(self, row: StepRow) -> None:
        self._steps.append(row)

    def add_request(self, request_id: str, timing: RequestTiming, finish_reason: str) -> None:
        """``request_id`` is the caller's."""
        self._requests.append(
            asdict(timing)
            | {
                "request_id": request_id,
                "queue_ns": timing.queue_ns,
                "prefill_ns": timing.prefill_ns,
                "decode_ns": timing.decode_ns,
                "finish_reason": finish_reason,
            }
        )

    def flush(self) -> None:
        steps, self._steps = self._steps, []
        requests, self._requests = self._requests, []
        self._write("steps", [asdict(row) for row in steps], _STEPS)
        self._write("requests", requests, _REQUESTS)

    def _write(self, name: str, rows: list[dict[str, object]], schema: pa.Schema) -> None:
        if not rows:
            return
        anchor = time.time_ns() - time.monotonic_ns()
        table = pa.Table.from_pylist(rows, schema.with_metadata({WALL_ANCHOR_KEY: str(anchor)}))
        path = self._folder / f"{name}-{self._num_parts:05d}.parquet"
        self._num_parts += 1
        unfinished = path.with_suffix(".tmp")
        pq.write_table(table, unfinished)
        os.replace(unfinished, path)
