"""Server-sent events from bytes in any pieces. Gevent-free.

Source: WHATWG HTML, "Server-sent events", event stream interpretation. Comments, ids and retry times carry no data and
are passed over; an event without data is none.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class EventParser:
    """Feeds on body bytes; gives out (event type, data) for each event that is complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._scanned = 0
        self._skip_line_feed = False
        self._at_start = True

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event."""
        return not (self._buffer or self._skip_line_feed or self._at_start)

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The events that ``data`` completes; the type is ``b""`` where none was given."""
        if self._at_start or self._skip_line_feed or b"\r" in data:
            data = self._normalize(data)
        buffer = self._buffer + data
        events: list[tuple[bytes, bytes]] = []
        start = 0
        end = buffer.find(b"\n\n", self._scanned)
        while end >= 0:
            block = buffer[start:end]
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((b"", block[6:]))
            else:
                events += _interpret(block)
            start = end + 2
            end = buffer.find(b"\n\n", start)
        self._buffer = buffer[start:]
        self._scanned = max(0, len(self._buffer) - 1)
        return events

    def _normalize(self, data: bytes) -> bytes:
        """Every line end becomes one line feed; a byte-order mark at the start goes."""
        if self._skip_line_feed and data:
            data = data.removeprefix(b"\n")
            self._skip_line_feed = False
        if data.endswith(b"\r"):  # a line end already; a line feed that follows belongs to it
            self._skip_line_feed = True
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._at_start:
            whole = self._buffer + data
            if len(whole) < len(_BOM) and _BOM.startswith(whole):
                return data
            self._at_start = False
            self._buffer = b""
            return whole.removeprefix(_BOM)
        return data


def _interpret(block: bytes) -> list[tuple[bytes, bytes]]:
    kind = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    return [(kind, b"\n".join(data))] if data else []
