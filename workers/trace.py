"""A trace of real requests: when each came, how long it was, how long its answer. Gevent-free.

CSV with a header. Columns, by the names that are in use: TIMESTAMP (date and time, or seconds), ContextTokens,
GeneratedTokens (Azure's LLM inference traces); or arrival_s / timestamp, prompt_tokens / input_tokens,
output_tokens / completion_tokens.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from workers.errors import SettingsError

_TIME = ("timestamp", "arrival_s", "time", "arrival")
_PROMPT = ("contexttokens", "prompt_tokens", "input_tokens")
_OUTPUT = ("generatedtokens", "output_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One line. ``at_s`` counts from the first arrival."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@lru_cache(maxsize=4)
def read_trace(path: str) -> tuple[TracedRequest, ...]:
    """A whole trace.

    Raises:
        SettingsError: it cannot be read, lacks a column, or a line is wrong; the message names the line.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            requests = tuple(_parse(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"trace {path!r} cannot be read: {error}") from error
    if not requests:
        raise SettingsError(f"trace {path!r} holds no requests")
    return requests


def _parse(path: str, reader: csv.DictReader[str]) -> Iterator[TracedRequest]:
    names = {name.strip().lower(): name for name in reader.fieldnames or []}
    time, prompt, output = (_column(path, names, wanted) for wanted in (_TIME, _PROMPT, _OUTPUT))
    first = previous = None
    for row in reader:
        where = f"trace {path!r}, line {reader.line_num}"
        at = _seconds(where, row[time])
        first = at if first is None else first
        if previous is not None and at < previous:
            raise SettingsError(f"{where}: {row[time]!r} lies before the line above it; sort the trace by time")
        previous = at
        yield TracedRequest(at - first, _count(where, prompt, row[prompt]), _count(where, output, row[output]))


def _column(path: str, names: dict[str, str], wanted: tuple[str, ...]) -> str:
    for name in wanted:
        if name in names:
            return names[name]
    raise SettingsError(f"trace {path!r} has no column {' or '.join(wanted)}; it has {', '.join(names) or 'none'}")


def _seconds(where: str, text: str | None) -> float:
    text = (text or "").strip()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text[:26])  # the traces have seven digits after the point, Python reads six
    except ValueError:
        raise SettingsError(f"{where}: {text!r} is no time; give seconds or 2023-11-16 18:15:46.68") from None
    digits = text[26:] if text[26:].isdigit() else ""
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() + (float(f"0.000000{digits}") if digits else 0.0)


def _count(where: str, column: str, text: str | None) -> int:
    text = (text or "").strip()
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(f"{where}: {column} is {text!r}, no whole number")
    return int(text)
