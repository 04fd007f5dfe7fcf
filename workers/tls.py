"""OpenSSL over memory: encrypted bytes in, plain bytes out, no descriptor in between. Gevent-free.

So whoever reads the socket keeps what the kernel told of each piece.
"""

from __future__ import annotations

import ssl
from functools import cache

_READ_BYTES = 256 * 1024


@cache
def _context() -> ssl.SSLContext:
    """Loading the trusted certificates takes tens of milliseconds: once."""
    return ssl.create_default_context()


class Tls:
    """A client's side of one connection."""

    def __init__(self, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = _context().wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_closed = False

    def try_handshake(self) -> bool:
        """Go on with what was fed; true when it is done.

        Raises:
            ssl.SSLError: the certificate is not trusted, or the peer does not speak TLS.
        """
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
        """The application's bytes among these; ``is_closed`` turns true with the peer's good-bye."""
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
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
