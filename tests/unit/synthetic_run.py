"""Run directories in the real layout, from a closed loop whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workers.records import Record, to_table

#: Wall clock minus monotonic clock of the process that is made up.
ANCHOR_NS = 1_700_000_000_000_000_000
TOKENS, WARMUP_S, WINDOW_S = 20, 1.0, 10.0
KNEE, STEP_S = 8, 0.02


def write_run(out: Path, concurrency: list[int], **manifest: Any) -> None:
    """A service that makes a token a step for up to KNEE requests at once; more of them share."""
    entries = [write_level(out, level, users) for level, users in enumerate(concurrency)]
    document = {
        "format": 1, "run_id": "synthetic", "kind": "sweep", "created_unix_ns": ANCHOR_NS, "load": "closed",
        "target": {"name": "<made up>", "base_url": "http://h/v1", "model": "m"}, "settings": {"mix": "short=1"},
        "seed": 0, "versions": {"python": "3"}, "git_revision": None, "nodes": [], "levels": entries,
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(document | manifest))


def write_level(out: Path, level: int, users: int) -> dict[str, Any]:
    rows = [row for user in range(users) for row in user_rows(level, user, users)]
    folder = out / "requests" / f"level={level}" / "worker=w0"
    folder.mkdir(parents=True)
    pq.write_table(to_table(rows, ANCHOR_NS), folder / "part-00000.parquet")
    origin = ANCHOR_NS + level_start_ns(level)
    return {
        "level": level, "concurrency": users, "status": "complete", "note": None, "started_unix_ns": origin,
        "window_start_unix_ns": origin + int(WARMUP_S * 1e9),
        "window_end_unix_ns": origin + int((WARMUP_S + WINDOW_S) * 1e9),
    }  # fmt: skip


def level_start_ns(level: int) -> int:
    return (level + 1) * 100_000_000_000


def step_ns(users: int) -> int:
    return int(STEP_S * max(1, users / KNEE) * 1e9)


def user_rows(level: int, user: int, users: int) -> list[Record]:
    """Back to back from the level's start, the users out of step with each other."""
    step = step_ns(users)
    start = level_start_ns(level)
    end = start + int((WARMUP_S + WINDOW_S) * 1e9)
    rows = []
    while start < end:
        first = 1 + user % TOKENS if not rows else 1  # the first answer of each user is shorter by its place
        chunks = [start + step * (i + 1) for i in range(TOKENS - first + 1)]
        rows.append(
            Record(
                "synthetic", level, "w0", f"{level}-{user}-{len(rows)}", "short", f"w0-{user}-{len(rows)}",
                "http://h/v1", "m", "openai-chat", intended_ns=start, sent_ns=start, first_byte_ns=chunks[0],
                first_token_ns=chunks[0], first_visible_ns=chunks[0], last_token_ns=chunks[-1], end_ns=chunks[-1],
                chunk_ns=chunks, prompt_tokens=30, completion_tokens=len(chunks), token_source="usage",
                max_tokens=TOKENS, finish_reason="length", outcome="ok", http_status=200, clock_source="kernel",
            )
        )  # fmt: skip
        start = chunks[-1]
    return rows
