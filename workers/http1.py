"""The client's side of HTTP/1.1 framing, as a pure function of bytes: a response's head, then its body's bytes.

Bodies come by length, in chunks, or until the connection closes; gzip and deflate are undone, though never asked for.
"""

from __future__ import annotations

import re
import zlib

_MAX_HEAD_BYTES = 64 * 1024
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]+)[ \t]*(;.*)?", re.DOTALL)
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class HttpError(Exception):
    """The server does not speak HTTP/1.1."""


class ResponseParser:
    """Parses one response fed in any pieces. ``is_complete`` turns true with its last byte."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._buffer = b""
        self._remaining: int | None = None  # of the body or chunk; None in chunked mode: a size line comes next
        self._chunked = False
        self._in_trailer = False
        self._until_close = False
        self._has_excess = False
        self._inflate: zlib._Decompress | None = None

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may carry another response: this one is whole, and nothing came behind it."""
        says_close = self.headers.get("connection", "").lower() == "close"
        return self.is_complete and not (self._until_close or self._has_excess or says_close)

    @property
    def is_between_chunks(self) -> bool:
        """Whether the next byte begins a chunk, of a body that is no further coded."""
        is_clean = self._chunked and self._remaining is None and not self._in_trailer
        return is_clean and not (self._buffer or self._inflate)

    def feed(self, data: bytes) -> bytes:
        """The body bytes that ``data`` brings.

        Raises:
            HttpError: these bytes are no HTTP/1.1 response.
        """
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        if self.status is None:
            data = self._parse_head(data)
            if self.status is None:
                return b""
        body = self._parse_chunks(data) if self._chunked else self._parse_plain(data)
        return self._decompress(body) if self._inflate else body

    def end(self) -> None:
        """The connection was closed; only a body without a stated length ends whole that way."""
        if self._until_close and self.status is not None:
            self.is_complete = True

    def _parse_head(self, data: bytes) -> bytes:
        while True:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                if len(data) > _MAX_HEAD_BYTES or (len(data) >= 5 and not data.startswith(b"HTTP/")):
                    raise HttpError(f"no HTTP/1.1 response head: {data[:60]!r}")
                self._buffer = data
                return b""
            status = self._parse_lines(head.decode("latin-1").split("\r\n"))
            if status >= 200:
                self.status = status
                self._choose_framing()
                self._choose_coding()
                return rest
            data = rest  # an interim response; the real one follows

    def _parse_lines(self, lines: list[str]) -> int:
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise HttpError(f"no HTTP/1.1 status line: {lines[0][:60]!r}")
        pairs = (line.partition(":") for line in lines[1:])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return int(parts[1])

    def _choose_framing(self) -> None:
        length = self.headers.get("content-length")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif length is not None:
            if not length.isdigit():
                raise HttpError(f"content-length {length!r} is no number")
            self._remaining = int(length)
        elif self.status in (204, 304):
            self._remaining = 0
        else:
            self._until_close = True

    def _choose_coding(self) -> None:
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif coding not in ("identity", ""):
            raise HttpError(f"content-encoding {coding!r} was not asked for and cannot be read")

    def _decompress(self, body: bytes) -> bytes:
        assert self._inflate is not None
        try:
            return self._inflate.decompress(body)
        except zlib.error as error:
            raise HttpError(f"the body is not in its stated coding: {error}") from error

    def _parse_plain(self, data: bytes) -> bytes:
        if self._remaining is None:
            return data
        body = data[: self._remaining]
        self._has_excess |= len(data) > self._remaining
        self._remaining -= len(body)
        self.is_complete = self._remaining == 0
        return body

    def _parse_chunks(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._remaining:
                piece = data[at : at + self._remaining]
                pieces.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            self._take_line(data[at:line_end])
            at = line_end + 2
        if self.is_complete:
            self._has_excess |= at < len(data)
        else:
            self._buffer = data[at:]
        if len(self._buffer) > _MAX_HEAD_BYTES:
            raise HttpError(f"a chunk without a size: {self._buffer[:60]!r}")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_complete = not line
        elif self._remaining == 0:  # the line end behind a chunk's data
            if line:
                raise HttpError(f"a chunk is longer than its stated size: {line[:60]!r}")
            self._remaining = None
        else:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise HttpError(f"chunk size {line[:60]!r} is no number")
            self._in_trailer = int(size[1], 16) == 0
            self._remaining = int(size[1], 16) or None
