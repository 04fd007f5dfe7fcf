"""The short way for a token: a read that is the last one again but for its text. Gevent-free.

While a stream runs, one read brings one HTTP chunk with one event, and event after event differs only inside one JSON
string. Where that has been seen once, and the parsers stand between chunks and events, comparing what stands around the
text decides the same as parsing it all, at a quarter of the cost. Anything else takes the long way.
"""

from __future__ import annotations

#: Bytes in the chunk, by its size line; as many entries as tokens have lengths.
_SIZES: dict[bytes, int] = {}
#: Characters that stand for themselves in a JSON string.
_PLAIN_ASCII = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))


class FastLane:
    """What stands around the text of a read."""

    __slots__ = ("_after", "_before", "_num_after", "_num_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        """``before``: from the chunk's size line to the text; ``after``: from the text to the chunk's end."""
        self._before = before
        self._after = after
        self._num_before, self._num_after = len(before), -len(after)

    def text_of(self, data: bytes) -> bytes | None:
        """The text of a read like the one learned from; None if this is not one, or not surely."""
        start = data.find(b"\n", 0, 10) + 1
        if not (data.startswith(self._before, start) and data.endswith(self._after)):
            return None
        text = data[start + self._num_before : self._num_after]
        rest = text.translate(None, _PLAIN_ASCII)
        if not text or (rest and not _is_plain(rest)):
            return None
        size = _SIZES.get(data[:start])
        if size is None:
            size = _learn_size(data[:start])
        return text if size == len(data) - start - 2 else None


def learn(data: bytes, text_key: bytes, text: bytes) -> FastLane | None:
    """The lane after a read of exactly one chunk with one event, whose only content is ``text`` under ``text_key``."""
    size_end = data.find(b"\r\n", 0, 10)
    for quoted in (b'%s:"%s"' % (text_key, text), b'%s: "%s"' % (text_key, text)):
        start = data.find(quoted) + len(quoted) - len(text) - 1
        if size_end > 0 and data.count(quoted) == 1 and data.endswith(b"\n\n\r\n"):
            return FastLane(data[size_end + 2 : start], data[start + len(text) :])
    return None


def _learn_size(line: bytes) -> int:
    """The number in a size line; -1 for a line that the long way has to look at."""
    try:
        size = int(line, 16)
    except ValueError:
        return -1
    if len(_SIZES) < 10_000:
        _SIZES[line] = size
    return size


def _is_plain(text: bytes) -> bool:
    """Whether these bytes between quotes are a JSON string that stands for itself."""
    try:
        return b'"' not in text and b"\\" not in text and text.decode().isprintable()
    except UnicodeDecodeError:
        return False
