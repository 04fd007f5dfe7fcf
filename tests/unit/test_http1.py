"""Response framing in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.http1 import HttpError, ResponseParser

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    b"5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nTrailer: 1\r\n\r\n"
)
PLAIN = b"HTTP/1.1 429 Too Many\r\nContent-Length: 12\r\n\r\nhello, world"


def feed(data: bytes, cuts: list[int]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return parser, b"".join([parser.feed(data[a:b]) for a, b in itertools.pairwise(edges)])


@given(st.sampled_from([(CHUNKED, 200), (PLAIN, 429)]), st.lists(st.integers(0, 170)))
def test_any_split_gives_the_same_body(case: tuple[bytes, int], cuts: list[int]) -> None:
    parser, body = feed(case[0], cuts)
    assert (parser.status, body, parser.is_complete, parser.keeps_alive) == (case[1], b"hello, world", True, True)


def test_a_body_until_close_is_whole_only_at_the_end() -> None:
    parser, body = feed(b"HTTP/1.1 200 OK\r\n\r\nhello", [])
    assert (body, parser.is_complete) == (b"hello", False)
    parser.end()
    assert parser.is_complete
    assert not parser.keeps_alive


def test_a_cut_chunked_body_never_becomes_whole() -> None:
    parser, _ = feed(CHUNKED[:-20], [])
    parser.end()
    assert not parser.is_complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
    ],
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(HttpError):
        feed(data, [])
