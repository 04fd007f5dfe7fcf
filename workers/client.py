"""Sends one request and fills its row. What happens to a request is data in the row, never an exception."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any

import gevent

from workers.clock import Clock
from workers.exchange import Exchange
from workers.protocols import WireProtocol
from workers.reader import HAS_EPOLL, Reader
from workers.records import Record
from workers.route import Route, find_route
from workers.targets import Target
from workers.transport import Connection
from workers.watcher_reader import WatcherReader

#: How long the end of the body may come after the end mark before the connection is given up.
_END_OF_BODY_S = 1.0
CANCELLED = "ended with the run before its answer was whole"


class Wire:
    """What all clients of a process share: the way to the target and what is spoken there."""

    def __init__(self, target: Target, protocol: WireProtocol, timeout_s: float, trust_env: bool = False) -> None:
        """
        Raises:
            SettingsError: the environment names a proxy that cannot be used.
        """
        self.target = target
        self.protocol = protocol
        self.timeout_s = timeout_s
        self.route: Route = find_route(target, trust_env)
        self.clock = Clock()
        self.reader: Reader | WatcherReader = Reader() if HAS_EPOLL else WatcherReader()
        self.in_flight = self.reader.in_flight
        self.num_connections = 0
        self._head = (
            f"POST {self.route.path_prefix}{target.prefix}{protocol.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
            f"{'' if self.route.tunnel_request else self.route.headers}{protocol.headers(target.key)}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\nAccept-Encoding: identity\r\n"
            "User-Agent: tokenswarm\r\n"
        )

    def request(self, request_id: str, body: bytes) -> bytes:
        return f"{self._head}X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def masked(self, error: str | None) -> str | None:
        """The same words without the key, should a server have repeated it."""
        return error.replace(self.target.key, "***") if error and self.target.key else error


class Client:
    """One user's client: one keep-alive connection, one request at a time, no hidden retries."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection: Connection | None = None
        self._fd = -1
        self._idle: deque[tuple[bytes, int, int]] = deque()
        self._exchange: Exchange | None = None
        self._connecting: gevent.Greenlet | None = None
        self._is_cancelled = False

    def warm(self) -> None:
        """Connect now, so that no request has to wait for it; a failure shows when the first one is sent."""
        if self._connection is None:
            self._open()

    def run(self, record: Record, text: str, extra: dict[str, Any], answer: list[str] | None = None) -> None:
        """Send and receive; ``record`` is complete when this returns or is killed.

        ``answer``, if given, receives the pieces of generated text.

        Raises:
            gevent.GreenletExit: the greenlet was killed; the row says ``cancelled``.
        """
        wire = self._wire
        deadline_ns = time.monotonic_ns() + int(wire.timeout_s * 1e9)
        self._is_cancelled = False
        body = wire.protocol.body(record.model, text, record.max_tokens or 1, extra)
        stream = wire.protocol.stream(record, answer)
        try:
            if self._connect(record):
                self._send(wire.request(record.request_id, body), record, stream, deadline_ns)
        except gevent.GreenletExit:
            if record.outcome != "ok":  # else it had just come whole
                record.outcome, record.error = "cancelled", CANCELLED
            raise
        finally:
            record.end_ns = time.monotonic_ns()
            record.error = wire.masked(record.error)

    def cancel(self) -> None:
        """End the request that is on its way; its row says ``cancelled``."""
        self._is_cancelled = True
        if self._exchange is not None:
            self._exchange.abandon("cancelled", CANCELLED)
        elif self._connecting is not None:
            self._connecting.kill(block=False)

    def close(self) -> None:
        if self._connection is not None:
            self._wire.reader.remove(self._fd)
            self._wire.num_connections -= 1
            self._connection.close()
            self._connection = None
            self._idle.clear()

    def _connect(self, record: Record) -> bool:
        self._take_idle()
        if self._connection is None:
            self._connecting = gevent.spawn(self._open)
            try:
                failure = self._connecting.get()
            finally:
                self._connecting.kill(block=False)
                self._connecting = None
            if self._is_cancelled:
                record.outcome, record.error = "cancelled", CANCELLED
            elif self._connection is None:
                record.outcome, record.error = "connect", f"{self._wire.target.authority}: {failure}"
            if self._connection is None:
                return False
            times = self._connection.times
            record.dns_ns, record.connect_ns, record.tls_ns = times.dns_ns, times.connect_ns, times.tls_ns
        record.clock_source = self._connection.clock_source
        return not self._is_cancelled

    def _open(self) -> OSError | None:
        """Connect; what is in the way, if anything."""
        try:
            self._connection = Connection(self._wire.route, self._wire.clock, self._wire.timeout_s)
        except OSError as error:
            return error
        self._wire.num_connections += 1
        self._fd = self._connection.fileno()
        self._wire.reader.add(self._fd, self._on_idle_readable)
        return None

    def _send(self, request: bytes, record: Record, stream: Any, deadline_ns: int) -> None:
        assert self._connection is not None
        wire = self._wire
        exchange = Exchange(self._connection, wire.reader, record, stream, wire.clock, wire.timeout_s)
        self._exchange = exchange
        wire.reader.set_handler(self._fd, exchange.on_readable)
        self._hand_over(exchange)
        wire.in_flight.count += 1
        record.in_flight_at_send = wire.in_flight.count
        try:
            record.sent_ns = time.monotonic_ns()
            self._connection.send(request, (deadline_ns - record.sent_ns) / 1e9)
            self._await_end(exchange, deadline_ns)
        except TimeoutError:
            exchange.on_deadline()
        except OSError as error:
            exchange.abandon("connect", f"connection lost before any answer: {error}")
        except gevent.GreenletExit:
            exchange.abandon("cancelled", CANCELLED)
            raise
        finally:
            wire.in_flight.count -= 1
            exchange.work()  # a good-bye may have come with the end
            self._exchange = None  # before the handler changes: an alarm may come between
            if exchange.is_over and exchange.keeps_alive:
                wire.reader.set_handler(self._fd, self._on_idle_readable)
            else:
                self.close()

    def _await_end(self, exchange: Exchange, deadline_ns: int) -> None:
        exchange.changed.wait(max(0.001, (deadline_ns - time.monotonic_ns()) / 1e9))
        if not exchange.is_over and exchange.stream.is_done:
            exchange.changed.clear()
            exchange.changed.wait(_END_OF_BODY_S)
        if not exchange.is_over:
            exchange.on_deadline()

    def _on_idle_readable(self, empty_ns: int) -> bool:
        """Between requests nothing should come but a good-bye, or the small talk of TLS."""
        assert self._connection is not None
        try:
            data, stamp_ns = self._connection.read()
        except OSError:
            data, stamp_ns = b"", 0
        if data is None:
            return False
        self._idle.append((data, stamp_ns, empty_ns))
        if self._exchange is not None:  # a request has begun meanwhile
            self._hand_over(self._exchange)
        else:
            self._wire.reader.put_off(self._take_idle)
        return bool(data)

    def _hand_over(self, exchange: Exchange) -> None:
        """What came too early for a request, or too late for the one before it, is its affair now."""
        with suppress(IndexError):  # an alarm may be at it too
            while True:
                exchange.put_off(*self._idle.popleft())

    def _take_idle(self) -> None:
        """A connection on which anything was said between requests is not used again."""
        if self._exchange is not None:
            self._hand_over(self._exchange)
        while self._idle and self._connection is not None:
            if self._connection.decrypt(self._idle.popleft()[0]) is not None:
                self.close()
