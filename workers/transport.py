"""One TCP or TLS connection whose received bytes carry the kernel's time of arrival.

Linux stamps each segment when it arrives (``SO_TIMESTAMPNS``); a busy process that reads it late still learns when the
token came. With TLS the records are read from the raw socket and handed to OpenSSL in memory, so their stamps stay.
Elsewhere the time of reading is taken, and ``clock_source`` says so.

Source: socket(7), ``SO_TIMESTAMPNS``: a ``timespec`` of the wall clock as a control message, that of the newest segment
in what was read.
"""

from __future__ import annotations

import socket as std_socket
import ssl
import struct
import sys
import time
from dataclasses import dataclass

from gevent import socket

from workers.clock import Clock
from workers.targets import Target

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_CONTROL_BYTES = std_socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(std_socket, "CMSG_SPACE") else 0
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ConnectTimes:
    """What it took to connect; ``tls_ns`` is None on plain TCP."""

    dns_ns: int
    connect_ns: int
    tls_ns: int | None


class Connection:
    """A connected stream socket. Times are monotonic ns."""

    def __init__(self, target: Target, clock: Clock, timeout_s: float) -> None:
        """Resolve, connect and, for https, shake hands.

        Raises:
            OSError: no address answered, or the certificate is not trusted (ssl.SSLError).
        """
        started = time.monotonic_ns()
        addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        resolved = time.monotonic_ns()
        self._clock = clock
        self._socket = _connect_any(addresses, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected = time.monotonic_ns()
        self.clock_source = "kernel" if _enable_stamps(self._socket) else "user"
        self._tls = _Tls(target.host) if target.scheme == "https" else None
        if self._tls is not None:
            self._shake_hands(self._tls)
        done = time.monotonic_ns()
        self.times = ConnectTimes(resolved - started, connected - resolved, done - connected if self._tls else None)

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(max(seconds, 0.001))

    def send(self, data: bytes) -> None:
        self._socket.sendall(self._tls.encrypt(data) if self._tls else data)

    def receive(self) -> tuple[bytes, int]:
        """Bytes, and when the newest of them arrived; ``b""`` at the end of the stream.

        Raises:
            TimeoutError: nothing came in time.
            OSError: the connection broke.
        """
        if self._tls is not None and self._tls.is_closed:  # said good-bye, though the socket may stay open for long
            return b"", time.monotonic_ns()
        data, stamp = self._receive_raw()
        if self._tls is None or not data:
            return data, stamp
        plain = self._tls.decrypt(data)
        while not plain and not self._tls.is_closed:  # an incomplete record, or one without application data
            data, stamp = self._receive_raw()
            if not data:
                break
            plain = self._tls.decrypt(data)
        return plain, stamp

    def is_stale(self) -> bool:
        """Whether the server closed the idle connection, or sent what nobody asked for."""
        if self._tls is not None and self._tls.is_closed:
            return True
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, std_socket.MSG_PEEK)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._socket.close()

    def _receive_raw(self) -> tuple[bytes, int]:
        if self.clock_source == "user":
            return self._socket.recv(_READ_BYTES), time.monotonic_ns()
        data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _CONTROL_BYTES)
        for _level, kind, value in ancillary:
            if kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                return data, self._clock.to_monotonic(seconds * 1_000_000_000 + nanoseconds)
        return data, time.monotonic_ns()  # the end of the stream has no stamp

    def _shake_hands(self, tls: _Tls) -> None:
        while True:
            is_done = tls.try_handshake()
            if outgoing := tls.outgoing():
                self._socket.sendall(outgoing)
            if is_done:
                return
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection during the TLS handshake")
            tls.feed(data)


class _Tls:
    """OpenSSL over memory: encrypted bytes in, plain bytes out, no descriptor in between."""

    _context: ssl.SSLContext | None = None  # loading the trusted certificates takes tens of milliseconds: once

    def __init__(self, host: str) -> None:
        if _Tls._context is None:
            _Tls._context = ssl.create_default_context()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = _Tls._context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.is_closed = False

    def try_handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        self._incoming.write(data)
        pieces = []
        while True:
            try:
                piece = self._object.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.is_closed = True
                break
            pieces.append(piece)
        return b"".join(pieces)


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
        else:
            return candidate
    raise error or OSError("the name resolves to no address")


def _enable_stamps(connected: socket.socket) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
