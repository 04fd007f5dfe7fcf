"""Event streams by the WHATWG specification, in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sse import EventParser

STREAM = (
    b'\xef\xbb\xbfdata: {"a": 1}\n\n: ping\n\nevent: x\ndata:no space\ndata: two\n\nid: 7\nretry: 10\n\n\n\ndata: '
    + "世界🙂\n\ndata\n\ndata:  kept\n\n".encode()
)
EVENTS = [(b"", b'{"a": 1}'), (b"x", b"no space\ntwo"), (b"", "世界🙂".encode()), (b"", b""), (b"", b" kept")]


def parse(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(line_end: bytes) -> None:
    assert parse([STREAM.replace(b"\n", line_end)]) == EVENTS


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 140)))
def test_any_split_gives_the_same_events(line_end: bytes, cuts: list[int]) -> None:
    data = STREAM.replace(b"\n", line_end)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert parse([data[a:b] for a, b in itertools.pairwise(edges)]) == EVENTS


def test_an_incomplete_event_is_none() -> None:
    assert parse([b"data: x\n"]) == []


def test_a_large_event_in_many_pieces() -> None:
    body = b"y" * 1_000_000
    data = b"data: " + body + b"\n\n"
    assert parse([data[i : i + 1000] for i in range(0, len(data), 1000)]) == [(b"", body)]
