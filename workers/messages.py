"""Messages between a Locust master and its workers that are ours. Gevent-free."""

from __future__ import annotations

from typing import Any

LEVEL_BEGIN, LEVEL_END = "tokenswarm_level_begin", "tokenswarm_level_end"
LEVEL_CLOSED, PROGRESS = "tokenswarm_level_closed", "tokenswarm_progress"


def level_begin(level: int, index: int, count: int, start_unix_ns: int, arrivals: str | None = None) -> dict[str, Any]:
    """What a worker is told when a level begins: its share, the ``index``-th of ``count``, and when it starts.

    A count of 0 is for one that joins late. ``arrivals`` None leaves the worker's own setting.
    """
    return {"level": level, "index": index, "count": count, "start_unix_ns": start_unix_ns, "arrivals": arrivals}
