"""One TCP or TLS connection whose received bytes carry the kernel's time of arrival.

With TLS the records are read from the raw socket and handed to OpenSSL in memory, so their stamps stay. Where the
kernel gives no stamps the time of reading is taken, and ``clock_source`` says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gevent import socket

from workers.clock import Clock
from workers.kernel_time import CONTROL_BYTES, enable_stamps, stamp_of, unpack_stamp
from workers.route import Route
from workers.tls import Tls

#: A read of this size costs half of one that makes room for a large answer; a full one is followed by a large one.
_SMALL_READ = 4096
_LARGE_READ = 256 * 1024
_MAX_PROXY_HEAD = 16 * 1024


@dataclass(frozen=True, slots=True)
class ConnectTimes:
    """What it took to connect; ``tls_ns`` is None on plain TCP."""

    dns_ns: int
    connect_ns: int
    tls_ns: int | None


class Connection:
    """A connected stream socket. Times are monotonic ns."""

    def __init__(self, route: Route, clock: Clock, timeout_s: float) -> None:
        """Resolve, connect, ask a proxy for a tunnel where there is one, and shake hands for https.

        Raises:
            OSError: no address answered, the proxy refused, or the certificate is not trusted (ssl.SSLError).
        """
        started = time.monotonic_ns()
        addresses = socket.getaddrinfo(route.host, route.port, type=socket.SOCK_STREAM)
        resolved = time.monotonic_ns()
        self._clock = clock
        self._socket = _connect_any(addresses, timeout_s)
        self._tls: Tls | None = None
        try:
            self._prepare(route)
            connected = time.monotonic_ns()
            if route.is_tls:
                self._tls = Tls(route.server_name)
                self._shake_hands(self._tls)
        except BaseException:
            self._socket.close()
            raise
        done = time.monotonic_ns()
        self.times = ConnectTimes(resolved - started, connected - resolved, done - connected if self._tls else None)
        self._raw = self._socket._sock
        self._recvmsg = self._raw.recvmsg

    def _prepare(self, route: Route) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if route.tunnel_request:
            self._open_tunnel(route.tunnel_request)
        self.clock_source = "kernel" if enable_stamps(self._socket) else "user"

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def send(self, data: bytes, timeout_s: float) -> None:
        """Hand everything to the kernel, waiting for room where it must.

        Raises:
            TimeoutError: there was no room in time.
            OSError: the connection broke.
        """
        data = self._tls.encrypt(data) if self._tls else data
        try:
            num_sent = self._raw.send(data)
        except BlockingIOError:
            num_sent = 0
        if num_sent < len(data):
            self._socket.settimeout(max(timeout_s, 0.001))
            self._socket.sendall(data[num_sent:])

    def read(self) -> tuple[bytes | None, int]:
        """The raw bytes that are there, and when the newest of them arrived; never waits.

        ``b""`` at the end of the stream; None if there is nothing. ``decrypt`` makes plain bytes of them.

        Raises:
            OSError: the connection broke.
        """
        try:
            data, ancillary, _, _ = self._recvmsg(_SMALL_READ, CONTROL_BYTES)
        except BlockingIOError:
            return None, 0
        if ancillary:
            seconds, nanoseconds = unpack_stamp(ancillary[0][2])  # no other control message is asked for
            stamp = seconds * 1_000_000_000 + nanoseconds - self._clock.anchor_ns
        else:  # the end of the stream has none
            stamp = time.monotonic_ns()
        if len(data) == _SMALL_READ:
            return self._read_rest(data, stamp)
        return data, stamp

    def decrypt(self, data: bytes) -> bytes | None:
        """The plain bytes of raw ones; ``b""`` at the end of the stream.

        None where they hold nothing for us: a part of a record, or one without application data.
        """
        if self._tls is None or not data:
            return data
        plain = self._tls.decrypt(data)
        return plain or (b"" if self._tls.is_closed else None)

    def receive(self, timeout_s: float) -> tuple[bytes, int]:
        """Plain bytes, waited for, and when the newest of them arrived.

        Raises:
            TimeoutError: nothing came in time.
            OSError: the connection broke.
        """
        while True:
            if self.is_closed_by_peer:
                return b"", time.monotonic_ns()
            data, stamp = self.read()
            plain = None if data is None else self.decrypt(data)
            if plain is not None:
                return plain, stamp
            if data is None:
                error = TimeoutError("timed out")
                socket.wait_read(self.fileno(), timeout=max(timeout_s, 0.001), timeout_exc=error)

    @property
    def is_encrypted(self) -> bool:
        return self._tls is not None

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether TLS has said good-bye; the socket may stay open for long after that."""
        return self._tls is not None and self._tls.is_closed

    def close(self) -> None:
        self._socket.close()

    def _read_rest(self, data: bytes, stamp: int) -> tuple[bytes, int]:
        """There was more than a small read holds: take it all, in large ones."""
        pieces = [data]
        while True:  # until there is nothing: who reads in part is not told again of the rest
            try:
                data, ancillary, _, _ = self._recvmsg(_LARGE_READ, CONTROL_BYTES)
            except BlockingIOError:
                break
            if not data:
                break  # the next read says so again
            pieces.append(data)
            if ancillary:
                stamp = stamp_of(ancillary) - self._clock.anchor_ns
        return b"".join(pieces), stamp

    def _shake_hands(self, tls: Tls) -> None:
        while True:
            is_done = tls.try_handshake()
            if outgoing := tls.outgoing():
                self._socket.sendall(outgoing)
            if is_done:
                return
            data = self._socket.recv(_LARGE_READ)
            if not data:
                raise ConnectionResetError("the server closed the connection during the TLS handshake")
            tls.feed(data)

    def _open_tunnel(self, request: bytes) -> None:
        self._socket.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            data = self._socket.recv(_SMALL_READ)
            if not data or len(head) > _MAX_PROXY_HEAD:
                raise ConnectionResetError("the proxy opened no tunnel: it closed the connection")
            head += data
        status = head.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise ConnectionRefusedError(f"the proxy opened no tunnel: {status}")


def _connect_any(addresses: list[tuple[int, int, int, str, tuple[str, int]]], timeout_s: float) -> socket.socket:
    error: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        candidate = socket.socket(family, kind, protocol)
        candidate.settimeout(timeout_s)
        try:
            candidate.connect(address)
        except OSError as failure:
            error = failure
            candidate.close()
        except BaseException:
            candidate.close()
            raise
        else:
            return candidate
    raise error or OSError("the name resolves to no address")
