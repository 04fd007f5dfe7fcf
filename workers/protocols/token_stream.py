"""What the events of any streamed answer have in common: when tokens came, how it ended, how many there were.

A token is generated content: text, reasoning, a refusal or a tool call; a role, an empty delta, a ping or a usage chunk
is not. An answer is whole when it says so; an error object anywhere makes it failed. Gevent-free.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson

from workers.records import Record

#: So many chunks in so short a time were collected on their way: no model makes tokens in a microsecond.
_BURST_CHUNKS = 4
_BURST_NS = 1_000_000


class TokenStream:
    """Fills a record from the events of one answer; a protocol says what an event means."""

    #: The JSON key whose string is visible text, with its quotes.
    text_key: bytes

    def __init__(self, record: Record, answer: list[str] | None = None) -> None:
        """``answer``, if given, receives the pieces of all generated text."""
        self.is_done = False
        self.has_failed = False
        self._record = record
        self._answer = answer
        #: Arrival of each chunk that carried generated content.
        self.chunk_ns: list[int] = []
        #: The visible text of the last event, if it told nothing else.
        self.only_text: str | None = None
        self._counts: list[int] = []  # completion tokens so far, at each content chunk that tells

    def on_event(self, kind: bytes, data: bytes, stamp_ns: int) -> bool:
        """Take one event; true when it carried generated content."""
        self.only_text = None
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return self._fail("protocol", f"an event is not JSON: {data[:120]!r}")
        num_before = len(self.chunk_ns)
        try:
            self.take(kind.decode("utf-8", "replace"), chunk, stamp_ns)
        except (AttributeError, TypeError, KeyError, IndexError):
            return self._fail("protocol", f"an event has not the form of a chunk: {data[:120]!r}")
        return len(self.chunk_ns) > num_before

    def on_text(self, text: bytes, stamp_ns: int) -> None:
        """Take a chunk that tells nothing but a further piece of visible text."""
        self.chunk_ns.append(stamp_ns)
        if self._answer is not None:
            self._answer.append(text.decode())

    def take(self, kind: str, chunk: dict[str, Any], stamp_ns: int) -> None:
        """Take one decoded event."""
        raise NotImplementedError

    def finish(self) -> None:
        """The stream has ended: settle times, tokens and the outcome."""
        record = self._record
        times = list(self.chunk_ns)  # a copy: an answer that is given up may still be coming in
        record.chunk_ns = times or None
        if times:
            record.first_token_ns, record.last_token_ns = times[0], times[-1]
            record.is_burst = len(times) >= _BURST_CHUNKS and times[-1] - times[0] < _BURST_NS
        if len(self._counts) == len(times) > 0:
            record.chunk_tokens = [after - before for before, after in pairwise([0, *self._counts])]
        if record.completion_tokens is None and times:
            record.completion_tokens, record.token_source = len(times), "chunks"
        if self.has_failed:
            return
        if not (self.is_done or record.finish_reason):
            record.outcome, record.error = "truncated", "the stream ended without its end mark or a finish reason"
        elif not times and not self._is_empty_on_purpose():
            record.outcome, record.error = "protocol", "the stream ended without a token"
        else:
            record.outcome, record.error = "ok", None

    def _take_content(self, stamp_ns: int, text: str, is_visible: bool) -> None:
        if not isinstance(text, str):
            raise TypeError(text)
        self.chunk_ns.append(stamp_ns)
        if is_visible and self._record.first_visible_ns is None:
            self._record.first_visible_ns = stamp_ns
        if self._answer is not None and text:
            self._answer.append(text)

    def _take_error(self, error: Any) -> None:
        self._fail("server", f"error in the stream: {orjson.dumps(error)[:400].decode('utf-8', 'replace')}")

    def _fail(self, outcome: str, error: str) -> bool:
        if not self.has_failed:
            self._record.outcome, self._record.error = outcome, error
        self.has_failed = True
        return False

    def _is_empty_on_purpose(self) -> bool:
        """The server itself counts no visible token: a model that ended at once, not a stream that lost its text."""
        return self._record.finish_reason in ("stop", "end_turn") and (self._record.completion_tokens or 0) <= 1


def count(value: Any) -> int | None:
    """A number of tokens, or None for anything that is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def nanoseconds(milliseconds: Any) -> int | None:
    is_time = isinstance(milliseconds, (int, float)) and 0 <= milliseconds < 1e9
    return round(milliseconds * 1e6) if is_time else None
