"""However a stream is cut into reads, it becomes the same record: the fast lane and the long way agree."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.clock import Clock
from workers.exchange import Exchange
from workers.protocols import PROTOCOLS
from workers.records import Record

CLOCK = Clock()
SUITES = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parent.parent / "contract" / "sse").glob("*.json"))
]  # fmt: skip
#: Columns that tell of the cutting itself.
TIMES = {
    "first_byte_ns",
    "first_token_ns",
    "first_visible_ns",
    "last_token_ns",
    "chunk_ns",
    "is_burst",
    "clock_error_ns",
}


class Reads:
    """Stands in for a connection: gives out the pieces that a read would bring, one a call, a microsecond apart."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [*pieces, b""]
        self._at = 0

    def read(self) -> tuple[bytes, int]:
        self._at += 1
        return self._pieces[self._at - 1], 1000 * self._at

    def is_over(self) -> bool:
        return self._at == len(self._pieces)

    is_encrypted = is_closed_by_peer = False

    def decrypt(self, data: bytes) -> bytes:
        return data

    def put_off(self, work: Any) -> None:
        work()


def receive(protocol: str, pieces: list[bytes]) -> dict[str, Any]:
    """What the client makes of these reads, with the text and the number of content chunks."""
    record = Record("run", 0, "w", "id", "short", "p", "t", "m", protocol)
    record.sent_ns = 0
    answer: list[str] = []
    reads: Any = Reads([piece for piece in pieces if piece])
    exchange = Exchange(reads, reads, record, PROTOCOLS[protocol].stream(record, answer), CLOCK, 1.0)
    while not (exchange.is_over or reads.is_over()):
        exchange.on_readable(0)
    assert exchange.is_over
    row = asdict(record)
    num_chunks = len(row["chunk_ns"] or [])
    return {name: value for name, value in row.items() if name not in TIMES} | {
        "text": "".join(answer), "num_chunks": num_chunks, "is_visible": row["first_visible_ns"] is not None,
    }  # fmt: skip


def one_read_each(events: list[bytes]) -> list[bytes]:
    """A response as servers send it: the head, then each event in a chunk of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *[b"%x\r\n%s\r\n" % (len(event), event) for event in events if event], b"0\r\n\r\n"]


def chunked(events: list[bytes]) -> bytes:
    return b"".join(one_read_each(events))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def piece_bytes(suite: dict[str, Any], items: list[Any]) -> bytes:
    parts = [suite["fragments"].get(item, item).encode() for item in items if isinstance(item, str)]
    return b"".join(parts) if len(parts) == len(items) else b""


STREAMS = [
    (suite["protocol"], case["name"], [piece_bytes(suite, items) for _, *items in case["pieces"]])
    for suite in SUITES
    for case in suite["cases"]
    if case["expect"]["outcome"] == "ok" and "recode" not in case
]


@pytest.mark.parametrize(("protocol", "name", "events"), STREAMS, ids=[f"{p}-{n}" for p, n, _ in STREAMS])
@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, 2**31), max_size=40), line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_valid_streams(protocol: str, name: str, events: list[bytes], cuts: list[int], line_end: bytes) -> None:
    whole = receive(protocol, [chunked(events)])
    assert whole["outcome"] == "ok"
    data = chunked([event.replace(b"\n", line_end) for event in events])
    ignored = {"bytes_in": len(data)}
    assert receive(protocol, cut(data, cuts)) == whole | ignored
    pieces = one_read_each(events)
    assert receive(protocol, pieces) == whole | {"bytes_in": sum(map(len, pieces))}


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS, cuts=st.lists(st.integers(0, 2**31), max_size=20), escaped=st.booleans(), by_event=st.booleans())
def test_any_text(texts: list[str], cuts: list[int], escaped: bool, by_event: bool) -> None:
    """Every piece of text that is not empty is one token, and the text comes out as it went in."""

    def event(text: str, finish: str | None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "x", "choices": [choice]}, ensure_ascii=escaped).encode() + b"\n\n"

    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}\n\n'
    events = [*[event(text, None) for text in texts], event("", "stop"), usage, b"data: [DONE]\n\n"]
    pieces = one_read_each(events) if by_event else cut(chunked(events), cuts)
    row = receive("openai-chat", pieces)
    assert (row["outcome"], row["text"]) == ("ok", "".join(texts))
    assert row["num_chunks"] == sum(map(bool, texts))
