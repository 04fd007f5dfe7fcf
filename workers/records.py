"""The row that every planned request becomes, that of a process's condition, and the journal that holds them first.

Times end in ``_ns`` and are integers on one machine's monotonic clock; the wall-clock anchor of the process that wrote
them is in the file's metadata. ``None`` means not applicable or not seen; 0 never stands for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
import pyarrow as pa

Outcome = Literal[
    "ok", "timeout", "connect", "unauthorized", "rejected", "server", "truncated", "protocol", "cancelled", "unsent"
]  # fmt: skip
OUTCOMES: tuple[str, ...] = get_args(Outcome)
PROMPT_CLASSES = ("short", "medium", "long")

#: Schema metadata key: wall clock minus monotonic clock of the writing process, in ns.
WALL_ANCHOR_KEY = b"tokenswarm.wall_anchor_ns"


@dataclass(slots=True)
class Record:
    """One planned request, from its intended time to its end."""

    run_id: str
    level: int
    worker: str
    request_id: str
    prompt_class: str
    prompt_id: str
    target: str
    model: str
    protocol: str
    attempt: int = 1
    #: When the schedule wanted the request to leave; in a closed loop, when its user became free.
    intended_ns: int = 0
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_visible_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    #: Arrival of each chunk that carried generated content.
    chunk_ns: list[int] | None = None
    #: Tokens in each of those chunks, where the server tells.
    chunk_tokens: list[int] | None = None
    #: Tokens that the prompt was made to have, the template's included, as the service counts.
    asked_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    #: Where completion_tokens comes from: "usage", "tokenizer" or "chunks".
    token_source: str | None = None
    cached_tokens: int | None = None
    max_tokens: int | None = None
    finish_reason: str | None = None
    outcome: str = "unsent"
    http_status: int | None = None
    error: str | None = None
    bytes_in: int = 0
    #: "kernel": times of reception are the kernel's; "user": the process's own.
    clock_source: str | None = None
    #: Greatest error of a token time in this row.
    clock_error_ns: int | None = None
    #: Requests of this process in flight when this one was sent, itself included.
    in_flight_at_send: int | None = None
    dns_ns: int | None = None
    connect_ns: int | None = None
    tls_ns: int | None = None
    #: Whether at least four chunks came within a millisecond: something on the way collected the stream.
    is_burst: bool | None = None
    #: What a refusal asked for with Retry-After.
    retry_after_ns: int | None = None
    server_queue_ns: int | None = None
    server_prefill_ns: int | None = None


_INT64_LIST = pa.list_(pa.int64())
_TYPES: dict[str, pa.DataType] = {
    "level": pa.int32(),
    "attempt": pa.int32(),
    "http_status": pa.int32(),
    "chunk_ns": _INT64_LIST,
    "chunk_tokens": pa.list_(pa.int32()),
    "is_burst": pa.bool_(),
}
_STRINGS = {
    "run_id", "worker", "request_id", "prompt_class", "prompt_id", "target", "model", "protocol", "token_source",
    "finish_reason", "outcome", "error", "clock_source",
}  # fmt: skip

SCHEMA = pa.schema(
    [(f.name, _TYPES.get(f.name, pa.string() if f.name in _STRINGS else pa.int64())) for f in fields(Record)]
)


@dataclass(slots=True)
class HealthRow:
    """One second of one process. Times are monotonic ns."""

    time_ns: int
    level: int | None
    worker: str
    #: Length of the interval that ends at ``time_ns``.
    interval_ns: int
    #: CPU time of the process in it, all threads.
    cpu_ns: int
    #: Greatest lateness of a timer: how long whatever became due may have waited for its turn.
    hub_lag_ns: int
    #: Greatest and mean time from when a request was to leave to when it left; None if none did.
    schedule_lag_max_ns: int | None
    schedule_lag_mean_ns: int | None
    open_sockets: int
    in_flight: int


HEALTH_SCHEMA = pa.schema(
    [(f.name, {"level": pa.int32(), "worker": pa.string()}.get(f.name, pa.int64())) for f in fields(HealthRow)]
)


def refusal_outcome(status: int) -> Outcome:
    """How a request ends that was refused with this HTTP status, from 300 up."""
    if status >= 500:
        return "server"
    return "unauthorized" if status in (401, 403) else "rejected"


def journal_line(row: Any) -> bytes:
    """A row (a dataclass) as one line of JSON; complete exactly when it ends in a newline."""
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def journal_header(wall_anchor_ns: int) -> bytes:
    """The first line of a journal: the anchor that its rows' times need."""
    return orjson.dumps({"wall_anchor_ns": wall_anchor_ns}, option=orjson.OPT_APPEND_NEWLINE)


def to_table(rows: Iterable[Record | dict[str, Any]], wall_anchor_ns: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows as one Arrow table, the anchor in its metadata."""
    dicts = [asdict(row) if isinstance(row, Record) else row for row in rows]
    return pa.Table.from_pylist(dicts, schema=schema.with_metadata({WALL_ANCHOR_KEY: str(wall_anchor_ns)}))


def journal_batches(path: Path, rows_per_batch: int = 20_000, schema: pa.Schema = SCHEMA) -> Iterator[pa.Table]:
    """What a journal holds, in tables of bounded size.

    A last line that a killed process left incomplete was never acknowledged and is dropped.

    Raises:
        ValueError: the first line is no header, so the rows' times cannot be placed.
    """
    with path.open("rb") as file:
        lines = (line for line in file if line.endswith(b"\n"))
        header = next(lines, None)
        if header is None:
            return
        try:
            anchor = orjson.loads(header)["wall_anchor_ns"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: no journal header in its first line") from error
        while batch := [orjson.loads(line) for line in islice(lines, rows_per_batch)]:
            yield to_table(batch, anchor, schema)


def read_journal(path: Path) -> pa.Table:
    """A whole journal as one table."""
    return pa.concat_tables([*journal_batches(path)] or [to_table([], 0)])
