"""One request on its way: what a connection brings becomes a record. Never waits; the reader calls it.

The next token of a running stream is taken at once; heads, ends and whatever is not plain are put off.
"""

from __future__ import annotations

import time
from collections import deque

import orjson
from gevent.event import Event

from workers.clock import Clock
from workers.fast_lane import FastLane, learn
from workers.http1 import HttpError, ResponseParser
from workers.protocols.token_stream import TokenStream
from workers.reader import Reader
from workers.records import Record, refusal_outcome
from workers.retry_after import retry_after_ns
from workers.sse import EventParser
from workers.transport import Connection
from workers.watcher_reader import WatcherReader

_MAX_ERROR_BYTES = 4096


class Exchange:
    """Ends when the response is whole, the stream told an error, or the connection broke; ``changed`` is set then, and
    when the stream said that it is done."""

    def __init__(
        self,
        connection: Connection,
        reader: Reader | WatcherReader,
        record: Record,
        stream: TokenStream,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self.stream = stream
        self.changed = Event()
        self.is_over = False
        self._connection, self._read = connection, connection.read
        self._reader = reader
        self._record = record
        self._clock = clock
        self._timeout_s = timeout_s
        self._response = ResponseParser()
        self._events = EventParser()
        self._lane: FastLane | None = None
        self._pending: deque[tuple[bytes | OSError, int, int]] = deque()
        self._is_stream = False
        self._is_spoilt = False
        self._refusal = b""
        self._bytes_in = 0
        self._doubt_ns = 0

    @property
    def keeps_alive(self) -> bool:
        return self._response.keeps_alive and not self._is_spoilt

    def on_readable(self, empty_ns: int) -> bool:
        """Take what is there; true if there was any. ``empty_ns``: when the socket was last known to be empty.

        It may run in the middle of any other code: what is not put off here touches nothing that other code touches
        while the stream runs.
        """
        try:
            data, stamp_ns = self._read()
        except OSError as error:
            self.put_off(error, 0, empty_ns)
            return False
        lane = self._lane
        if data and lane is not None and not self._pending and (text := lane.text_of(data)) is not None:
            self._bytes_in += len(data)
            self.stream.on_text(text, stamp_ns)
            return True
        if data is not None:
            self.put_off(data, stamp_ns, empty_ns)
        return bool(data)

    def put_off(self, data: bytes | OSError, stamp_ns: int, empty_ns: int) -> None:
        """Have it done in the hub."""
        self._pending.append((data, stamp_ns, empty_ns))
        if len(self._pending) == 1:
            self._reader.put_off(self.work)

    def work(self) -> None:
        """Do what was put off."""
        while self._pending:
            data, stamp_ns, empty_ns = self._pending[0]
            try:
                if self.is_over:
                    self._is_spoilt = True  # a good-bye, or bytes that belong to no request
                elif isinstance(data, OSError):
                    self._on_lost(data)
                else:
                    self._take(data, stamp_ns, empty_ns)
            except HttpError as error:
                self._end("protocol", str(error))
            except OSError as error:  # of TLS
                self._on_lost(error)
            except Exception as error:  # whatever a server sends: a row, not a request that never ends
                self._end("protocol", f"the answer cannot be read: {error!r}")
            self._pending.popleft()  # only now: until then the fast lane is shut

    def abandon(self, outcome: str, error: str) -> None:
        """Give up on it: what has come is kept."""
        self.work()
        self._end(outcome, error)

    def on_deadline(self) -> None:
        """No time is left. An answer that has said its end mark lacks only the end of the body, which is nothing."""
        self.work()
        if self.stream.is_done and not self.stream.has_failed:
            self._end(None, None)
        else:
            self._end("timeout", f"no whole answer within {self._timeout_s:g} s")

    def _take(self, raw: bytes, stamp_ns: int, empty_ns: int) -> None:
        data = self._connection.decrypt(raw)
        if data:
            self._take_plain(data, stamp_ns, empty_ns)
        if not raw or self._connection.is_closed_by_peer:
            self._on_close()

    def _take_plain(self, data: bytes, stamp_ns: int, empty_ns: int) -> None:
        if self._record.first_byte_ns is None:
            self._record.first_byte_ns = stamp_ns
        self._bytes_in += len(data)
        body = self._response.feed(data)
        if not self._is_stream and self._response.status is not None:
            self._is_stream = _is_stream(self._response)
        if self._is_stream:
            events = self._events.feed(body)
            self._take_events(events, stamp_ns, empty_ns)
            self._choose_lane(data, len(events))
        elif len(self._refusal) < _MAX_ERROR_BYTES:
            self._refusal += body
        if self._response.is_complete or self.stream.has_failed:  # behind an error nothing of worth comes
            self._end(None, None)
        elif self.stream.is_done:
            self.changed.set()

    def _take_events(self, events: list[tuple[bytes, bytes]], stamp_ns: int, empty_ns: int) -> None:
        """One read has one stamp, its newest segment's. A token that something follows may be older than that, but came
        after the socket was last empty."""
        tokens = [i for i, (kind, data) in enumerate(events) if self.stream.on_event(kind, data, stamp_ns)]
        is_exact = tokens == [len(events) - 1] and self._events.is_between_events
        if tokens and not is_exact:
            self._doubt_ns = max(self._doubt_ns, stamp_ns - max(empty_ns, self._record.sent_ns or 0))

    def _choose_lane(self, data: bytes, num_events: int) -> None:
        """The fast lane is open only where both parsers stand at a beginning."""
        if self._connection.is_encrypted or not (self._response.is_between_chunks and self._events.is_between_events):
            self._lane = None
        elif num_events == 1 and (text := self.stream.only_text):
            self._lane = learn(data, self.stream.text_key, text.encode("utf-8", "replace"))

    def _on_close(self) -> None:
        self._response.end()
        if self._response.status is None:
            self._on_lost(ConnectionResetError("the server closed the connection"))
        else:
            self._end(None, None)

    def _on_lost(self, error: OSError) -> None:
        if self.stream.is_done and not self.stream.has_failed:
            self._end(None, None)
        elif self._record.first_byte_ns is None:
            self._end("connect", f"connection lost before any answer: {error}")
        else:
            self._end("truncated", f"connection lost: {error}")

    def _end(self, outcome: str | None, error: str | None) -> None:
        """Settle the record; without an outcome given, by what the response said."""
        if self.is_over:
            return
        self.is_over = True
        record, response = self._record, self._response
        record.bytes_in, record.http_status = self._bytes_in, response.status
        self.stream.finish()
        if record.chunk_ns:
            record.clock_error_ns = self._clock.uncertainty_ns + self._doubt_ns
        if outcome is not None:
            record.outcome, record.error = outcome, error
        elif not self._is_stream:
            self._refused(response)
        self.changed.set()

    def _refused(self, response: ResponseParser) -> None:
        record = self._record
        text = self._refusal[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
        status = response.status or 0
        record.error = f"HTTP {status}: {text}"
        record.retry_after_ns = retry_after_ns(response.headers.get("retry-after"), time.time())
        if status >= 300:
            record.outcome = refusal_outcome(status)
        elif _is_error(self._refusal):
            record.outcome = "server"
        else:
            kind = response.headers.get("content-type", "no content type")
            record.outcome, record.error = "protocol", f"the answer is no event stream but {kind}: {text[:400]}"


def _is_stream(response: ResponseParser) -> bool:
    return response.status == 200 and "text/event-stream" in response.headers.get("content-type", "").lower()


def _is_error(body: bytes) -> bool:
    """Whether a body with a good status is an error object all the same."""
    try:
        return bool(orjson.loads(body).get("error"))
    except (orjson.JSONDecodeError, AttributeError):
        return False
