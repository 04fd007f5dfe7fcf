"""Sends one request and fills its row. What happens to a request is data in the row, never an exception."""

from __future__ import annotations

import time
from typing import Any

import gevent

from workers.clock import Clock
from workers.http1 import HttpError, ResponseParser
from workers.protocols import openai_chat
from workers.protocols.openai_chat import ChatStream
from workers.records import Record
from workers.sse import EventParser
from workers.targets import Target
from workers.transport import Connection

_MAX_ERROR_BYTES = 4096
#: How long the end of the body may come after [DONE] before the connection is given up.
_END_OF_BODY_NS = 1_000_000_000


class InFlight:
    """Requests of this process that are on their way."""

    def __init__(self) -> None:
        self.count = 0


class ChatClient:
    """One user's client: one keep-alive connection, one request at a time, no hidden retries."""

    def __init__(self, target: Target, clock: Clock, in_flight: InFlight, timeout_s: float) -> None:
        self._target = target
        self._clock = clock
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    def run(self, record: Record, text: str, extra: dict[str, Any], answer: list[str] | None = None) -> None:
        """Send and receive; ``record`` is complete when this returns or is killed.

        ``answer``, if given, receives the pieces of visible text.

        Raises:
            gevent.GreenletExit: the greenlet was killed; the row says ``cancelled``.
        """
        deadline_ns = time.monotonic_ns() + int(self._timeout_s * 1e9)
        body = openai_chat.request_body(record.model, text, record.max_tokens or 1, extra)
        stream = ChatStream(record, answer)
        try:
            connection = self._connect(record)
            if connection is not None:
                self._exchange(connection, self._head(record, len(body)) + body, record, stream, deadline_ns)
        except gevent.GreenletExit:
            stream.finish()
            record.outcome, record.error = "cancelled", "ended with the run before its answer was whole"
            self.close()
            raise
        finally:
            record.end_ns = time.monotonic_ns()
            record.error = self._masked(record.error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, record: Record) -> Connection | None:
        if self._connection is not None and self._connection.is_stale():
            self.close()
        if self._connection is None:
            try:
                self._connection = Connection(self._target, self._clock, self._timeout_s)
            except OSError as error:
                record.outcome, record.error = "connect", f"{self._target.authority}: {error}"
                return None
            times = self._connection.times
            record.dns_ns, record.connect_ns, record.tls_ns = times.dns_ns, times.connect_ns, times.tls_ns
        record.clock_source = self._connection.clock_source
        return self._connection

    def _head(self, record: Record, length: int) -> bytes:
        key = f"Authorization: Bearer {self._target.key}\r\n" if self._target.key else ""
        return (
            f"POST {self._target.prefix}{openai_chat.PATH} HTTP/1.1\r\nHost: {self._target.authority}\r\n{key}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\nUser-Agent: tokenswarm\r\n"
            f"X-Request-Id: {record.request_id}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def _exchange(
        self, connection: Connection, request: bytes, record: Record, stream: ChatStream, deadline_ns: int
    ) -> None:
        self._in_flight.count += 1
        record.in_flight_at_send = self._in_flight.count
        response = ResponseParser()
        try:
            connection.set_timeout((deadline_ns - time.monotonic_ns()) / 1e9)
            record.sent_ns = time.monotonic_ns()
            connection.send(request)
            self._receive(connection, response, record, stream, deadline_ns)
        except TimeoutError:
            stream.finish()
            if stream.is_done and record.outcome == "ok":
                return  # everything came but the end of the body; the connection is not used again
            record.outcome, record.error = "timeout", f"no whole answer within {self._timeout_s:g} s"
        except HttpError as error:
            stream.finish()
            record.outcome, record.error = "protocol", str(error)
        except OSError as error:
            stream.finish()
            if record.first_byte_ns is None:
                record.outcome, record.error = "connect", f"connection lost before any answer: {error}"
            else:
                record.outcome, record.error = "truncated", f"connection lost: {error}"
        finally:
            self._in_flight.count -= 1
            if not response.keeps_alive:
                self.close()

    def _receive(
        self, connection: Connection, response: ResponseParser, record: Record, stream: ChatStream, deadline_ns: int
    ) -> None:
        events = EventParser()
        refusal = b""
        last_read_ns = record.sent_ns or 0
        while not (response.is_complete or stream.has_failed):  # behind an error nothing of worth comes
            now_ns = time.monotonic_ns()
            if stream.is_done:
                deadline_ns = min(deadline_ns, now_ns + _END_OF_BODY_NS)
            if now_ns >= deadline_ns:
                raise TimeoutError
            connection.set_timeout((deadline_ns - now_ns) / 1e9)
            data, stamp_ns = connection.receive()
            if not data:
                response.end()
                break
            record.bytes_in += len(data)
            if record.first_byte_ns is None:
                record.first_byte_ns = stamp_ns
            body = response.feed(data)
            record.http_status = response.status
            if response.status is None:
                continue
            if _is_stream(response):
                are_tokens = [stream.on_event(event, stamp_ns) for _, event in events.feed(body)]
                if any(are_tokens):
                    self._note_error(record, len(are_tokens), stamp_ns - last_read_ns)
            elif len(refusal) < _MAX_ERROR_BYTES:
                refusal += body
            last_read_ns = stamp_ns
        self._settle(response, record, stream, refusal)

    def _note_error(self, record: Record, num_events: int, since_last_read_ns: int) -> None:
        """A read has one stamp, its newest segment's. Of several events in it all but the last may be older."""
        error_ns = self._clock.uncertainty_ns
        if num_events > 1:
            error_ns += max(0, since_last_read_ns)
        if record.clock_error_ns is None or error_ns > record.clock_error_ns:
            record.clock_error_ns = error_ns

    def _settle(self, response: ResponseParser, record: Record, stream: ChatStream, refusal: bytes) -> None:
        if response.status is None:
            raise ConnectionResetError("the server closed the connection")
        if _is_stream(response):
            stream.finish()
            return
        text = refusal[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
        if response.status >= 500:
            record.outcome, record.error = "server", f"HTTP {response.status}: {text}"
        elif response.status >= 300:
            record.outcome, record.error = "rejected", f"HTTP {response.status}: {text}"
        else:
            kind = response.headers.get("content-type", "no content type")
            record.outcome, record.error = "protocol", f"the answer is no event stream but {kind}: {text[:400]}"

    def _masked(self, error: str | None) -> str | None:
        if error and self._target.key:
            return error.replace(self._target.key, "***")
        return error


def _is_stream(response: ResponseParser) -> bool:
    return response.status == 200 and "text/event-stream" in response.headers.get("content-type", "").lower()
