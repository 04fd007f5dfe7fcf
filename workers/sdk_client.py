"""The official ``openai`` SDK as the client: what an application sees of a service, the SDK's own cost included.

The bytes go over the same connections; but a token's time is when the SDK hands its chunk to the application, and
``sent`` is when the application called it. So ``clock_source`` says ``user``, while the first byte is the kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gevent
import httpx2
import openai

from workers.client import CANCELLED, Wire
from workers.http1 import HttpError, ResponseParser
from workers.records import Record, refusal_outcome
from workers.transport import Connection


class SdkClient:
    """One user's client; the interface of ``workers.client.Client``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._transport = _Transport(wire)
        self._openai = openai.OpenAI(
            api_key=wire.target.key or "none",
            base_url=wire.target.base_url,
            max_retries=0,  # a retry that nobody sees would be a row that is missing
            timeout=wire.timeout_s,
            http_client=httpx2.Client(transport=self._transport, trust_env=False),
        )
        self._is_cancelled = False

    def warm(self) -> None:
        with suppress(OSError):
            self._transport.connect()

    def run(self, record: Record, text: str, extra: dict[str, Any], answer: list[str] | None = None) -> None:
        """Send and receive; ``record`` is complete when this returns or is killed.

        Raises:
            gevent.GreenletExit: the greenlet was killed; the row says ``cancelled``.
        """
        wire = self._wire
        stream = wire.protocol.stream(record, answer)
        self._is_cancelled = False
        self._transport.begin(record)
        wire.in_flight.count += 1
        record.in_flight_at_send, record.clock_source = wire.in_flight.count, "user"
        record.sent_ns = time.monotonic_ns()
        try:
            for chunk in self._create(record, text, extra):
                stamp_ns = time.monotonic_ns()
                stream.take("", chunk.to_dict(), stamp_ns)
                if stream.has_failed:
                    break
            self._settle(record, stream, None)
        except gevent.GreenletExit:
            self._settle(record, stream, ("cancelled", CANCELLED))
            raise
        except (openai.OpenAIError, httpx2.HTTPError, OSError, HttpError, ValueError) as error:
            self._settle(record, stream, self._outcome(record, error))
        finally:
            wire.in_flight.count -= 1
            record.end_ns = time.monotonic_ns()
            record.clock_error_ns = wire.clock.uncertainty_ns if record.chunk_ns else None
            record.error = wire.masked(record.error)

    def cancel(self) -> None:
        """End the request that is on its way; its row says ``cancelled``."""
        self._is_cancelled = True
        self._transport.close_connection()

    def close(self) -> None:
        self._transport.close_connection()

    def _create(self, record: Record, text: str, extra: dict[str, Any]) -> Any:
        return self._openai.chat.completions.create(
            model=record.model,
            messages=[{"role": "user", "content": text}],
            max_tokens=record.max_tokens or 1,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
            extra_headers={"X-Request-Id": record.request_id},
        )

    def _settle(self, record: Record, stream: Any, failure: tuple[str, str] | None) -> None:
        stream.finish()
        if failure is not None:
            record.outcome, record.error = failure
        if record.outcome != "ok":
            self._transport.close_connection()

    def _outcome(self, record: Record, error: Exception) -> tuple[str, str]:
        """Exceptions of the SDK and of the transport below it, as outcomes."""
        cause = error.__cause__ or error
        if self._is_cancelled:
            return "cancelled", CANCELLED
        if isinstance(error, openai.APIStatusError):
            record.http_status = error.status_code
            return refusal_outcome(error.status_code), f"HTTP {error.status_code}: {error.message}"
        if isinstance(error, openai.APITimeoutError) or isinstance(cause, TimeoutError):
            return "timeout", f"no whole answer within {self._wire.timeout_s:g} s"
        if isinstance(error, openai.APIConnectionError | OSError):
            return ("truncated" if record.first_byte_ns else "connect"), str(cause)
        return ("server" if isinstance(error, openai.APIError) else "protocol"), str(error)


class _Transport(httpx2.BaseTransport):
    """HTTP for the SDK over one stamped connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection: Connection | None = None
        self._record: Record | None = None

    def begin(self, record: Record) -> None:
        """The request that comes next fills this record."""
        self._record = record

    def connect(self) -> Connection:
        """
        Raises:
            OSError: nobody answers there.
        """
        if self._connection is not None and not _is_idle(self._connection):
            self.close_connection()
        if self._connection is None:
            self._connection = Connection(self._wire.route, self._wire.clock, self._wire.timeout_s)
            self._wire.num_connections += 1
            if self._record is not None:
                times = self._connection.times
                self._record.dns_ns, self._record.connect_ns = times.dns_ns, times.connect_ns
                self._record.tls_ns = times.tls_ns
        return self._connection

    def close_connection(self) -> None:
        if self._connection is not None:
            self._wire.num_connections -= 1
            self._connection.close()
            self._connection = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        assert self._record is not None
        deadline_ns = time.monotonic_ns() + int(self._wire.timeout_s * 1e9)
        try:
            connection = self.connect()
            connection.send(self._wire.request(self._record.request_id, request.read()), self._wire.timeout_s)
            response, body = ResponseParser(), b""
            while response.status is None:
                body = self._receive(connection, response, deadline_ns)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error), request=request) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        self._record.http_status = response.status
        stream = _Body(self, connection, response, body, deadline_ns)
        return httpx2.Response(response.status, headers=_plain(response.headers), stream=stream)

    def _receive(self, connection: Connection, response: ResponseParser, deadline_ns: int) -> bytes:
        """The body bytes of the next read.

        Raises:
            OSError: the connection broke or ended early, or the time is over.
        """
        assert self._record is not None
        remaining_ns = deadline_ns - time.monotonic_ns()
        if remaining_ns <= 0:
            raise TimeoutError("timed out")
        data, stamp_ns = connection.receive(remaining_ns / 1e9)
        if not data:
            response.end()
            if not response.is_complete:
                raise ConnectionResetError("the server closed the connection")
            return b""
        self._record.bytes_in += len(data)
        if self._record.first_byte_ns is None:
            self._record.first_byte_ns = stamp_ns
        return response.feed(data)


class _Body(httpx2.SyncByteStream):
    """A response's body as it comes."""

    def __init__(
        self, transport: _Transport, connection: Connection, response: ResponseParser, body: bytes, deadline_ns: int
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._response = response
        self._body = body
        self._deadline_ns = deadline_ns

    def __iter__(self) -> Iterator[bytes]:
        if self._body:
            yield self._body
        while not self._response.is_complete:
            yield self._transport._receive(self._connection, self._response, self._deadline_ns)

    def close(self) -> None:
        if not self._response.keeps_alive:
            self._transport.close_connection()


def _plain(headers: dict[str, str]) -> dict[str, str]:
    """Without the headers of framing, which is undone already."""
    framing = ("content-encoding", "transfer-encoding", "content-length")
    return {name: value for name, value in headers.items() if name not in framing}


def _is_idle(connection: Connection) -> bool:
    """Whether nothing has come, which between requests could only be a good-bye."""
    try:
        return connection.read()[0] is None and not connection.is_closed_by_peer
    except OSError:
        return False
