"""A server whose timing is known exactly: the truth that ``tokenswarm calibrate`` holds a client's rows against.

The first token is due a fixed time after the request arrived, each further one a fixed time after that. What counts is
not when a token was due but when it was handed to the kernel, which is logged for each one, as is the kernel's own time
of each request's arrival. Python and one thread: its loop does nothing else, so that it carries more than the clients.

``GET /log`` gives, and forgets, a JSON line for each request that has ended; ``GET /stats`` counts.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections import deque
from typing import Any

import orjson

from workers.clock import Clock
from workers.kernel_time import CONTROL_BYTES, enable_stamps, stamp_of

_READ_BYTES = 256 * 1024
#: The end of a wait is spent awake, because a sleep ends late; and none is longer than a request may wait to be read.
_SPIN_NS, _LONGEST_SLEEP_NS = 100_000, 1_000_000
_CLOCK_INTERVAL_NS = 1_000_000_000
_MAX_EVENTS = 256
_MODEL = "timed"


def _chunk(payload: dict[str, object] | bytes) -> bytes:
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _delta(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    name = "chatcmpl-0123456789abcdef0123456789abcdef"
    return {"id": name, "object": "chat.completion.chunk", "created": 1764547200, "model": _MODEL, "choices": [choice]}


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_ROLE = _chunk(_delta({"role": "assistant", "content": ""}))
_TOKEN = _chunk(_delta({"content": " token"}))
_LAST_TOKEN = _chunk(_delta({"content": " token"}, "length"))
_DONE = _chunk(b"[DONE]") + b"0\r\n\r\n"


class _Stream:
    """One client's connection and, while it is served, its request."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.buffer = b""
        self.request_id = ""
        self.num_tokens = 0
        self.prompt_tokens = 0
        self.received_ns = 0
        self.sent_ns: list[int] = []


class TimingServer:
    """Serves until ``is_closing``; times are monotonic ns."""

    def __init__(self, port: int, ttft_s: float, itl_s: float) -> None:
        self._ttft_ns, self._itl_ns = int(ttft_s * 1e9), int(itl_s * 1e9)
        self._clock = Clock()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._streams: dict[int, _Stream] = {}
        self._first: deque[tuple[int, _Stream]] = deque()  # each queue is in order of its due times by construction
        self._next: deque[tuple[int, _Stream]] = deque()
        self._log: list[dict[str, object]] = []
        self._stats = {"requests": 0, "connections": 0, "most_connections": 0, "cancelled": 0, "tokens": 0}
        self.is_closing = False

    def run(self) -> None:
        refresh_ns = 0
        while not self.is_closing:
            now_ns = time.monotonic_ns()
            if now_ns > refresh_ns:
                self._clock.refresh()
                refresh_ns = now_ns + _CLOCK_INTERVAL_NS
            self._send_due(self._first, now_ns)
            self._send_due(self._next, now_ns)
            for fd, _ in self._epoll.poll(self._wait(), _MAX_EVENTS):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(self._streams[fd])

    def _wait(self) -> float:
        """Sleep while nothing is due; the seconds that may be spent in waiting for requests after that."""
        due_ns = min((queue[0][0] for queue in (self._first, self._next) if queue), default=None)
        if due_ns is None:
            return 0.1
        sleep_ns = min(due_ns - time.monotonic_ns() - _SPIN_NS, _LONGEST_SLEEP_NS)
        if sleep_ns > 0:
            time.sleep(sleep_ns / 1e9)
        return 0.0

    def _send_due(self, queue: deque[tuple[int, _Stream]], now_ns: int) -> None:
        for _ in range(_MAX_EVENTS):
            if not queue or queue[0][0] > now_ns:
                return
            due_ns, stream = queue.popleft()
            if not stream.num_tokens:
                continue  # gone in the meantime
            is_last = len(stream.sent_ns) + 1 == stream.num_tokens
            stream.sent_ns.append(time.monotonic_ns())
            try:
                stream.socket.send(_LAST_TOKEN if is_last else _TOKEN)
                if is_last:
                    self._finish(stream)
                else:
                    self._next.append((due_ns + self._itl_ns, stream))
            except OSError:
                self._drop(stream)

    def _finish(self, stream: _Stream) -> None:
        usage = {"prompt_tokens": stream.prompt_tokens, "completion_tokens": stream.num_tokens}
        stream.socket.send(_chunk(_delta({}) | {"choices": [], "usage": usage}) + _DONE)
        self._stats["tokens"] += stream.num_tokens
        self._log.append(
            {"request_id": stream.request_id, "received_ns": stream.received_ns, "sent_ns": stream.sent_ns}
        )
        stream.num_tokens = 0

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_stamps(connected)
            self._streams[connected.fileno()] = _Stream(connected)
            self._epoll.register(connected, select.EPOLLIN)
            self._stats["connections"] += 1
            self._stats["most_connections"] = max(self._stats["most_connections"], len(self._streams))

    def _read(self, stream: _Stream) -> None:
        try:
            data, ancillary, _, _ = stream.socket.recvmsg(_READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.buffer += data
        head, found, body = stream.buffer.partition(b"\r\n\r\n")
        if found and len(body) >= (length := int(_header(head, b"content-length") or 0)):
            stream.buffer = body[length:]
            self._answer_or_refuse(
                stream,
                head,
                body[:length],
                self._clock.to_monotonic(stamp_of(ancillary) if ancillary else time.time_ns()),
            )

    def _answer_or_refuse(self, stream: _Stream, head: bytes, body: bytes, received_ns: int) -> None:
        try:
            self._answer(stream, head, body, received_ns)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._reply(stream, 400, orjson.dumps({"error": {"message": f"not a chat request: {error!r}"}}))

    def _answer(self, stream: _Stream, head: bytes, body: bytes, received_ns: int) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/chat/completions":
            request = orjson.loads(body)
            stream.request_id = _header(head, b"x-request-id").decode()
            stream.num_tokens = int(request.get("max_tokens") or 16)
            stream.prompt_tokens = _count(request["messages"])
            stream.received_ns, stream.sent_ns = received_ns, []
            stream.socket.send(_HEAD + _ROLE)
            self._first.append((received_ns + self._ttft_ns, stream))
            self._stats["requests"] += 1
        elif path == b"/health":
            self._reply(stream, 200, b"{}")
        elif path == b"/v1/models":
            self._reply(stream, 200, orjson.dumps({"data": [{"id": _MODEL}]}))
        elif path == b"/tokenize":
            self._reply(stream, 200, orjson.dumps({"count": _count(orjson.loads(body)["messages"])}))
        elif path == b"/stats":
            self._reply(stream, 200, orjson.dumps(self._stats))
        elif path == b"/log":
            log, self._log = self._log, []
            self._reply(stream, 200, b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in log))
        else:
            self._reply(stream, 404, b'{"error": {"message": "no such path"}}')

    def _reply(self, stream: _Stream, status: int, body: bytes) -> None:
        """A small question's answer; the log is megabytes, so this one may wait for the client."""
        stream.socket.settimeout(30)
        stream.socket.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        stream.socket.setblocking(False)

    def _drop(self, stream: _Stream) -> None:
        if stream.num_tokens:
            self._stats["cancelled"] += 1
            stream.num_tokens = 0
        del self._streams[stream.socket.fileno()]
        stream.socket.close()


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _count(messages: list[dict[str, Any]]) -> int:
    """Tokens as this server counts them: words, and three for the template. Content may come in parts."""
    texts = []
    for message in messages:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return sum(len(text.split()) for text in texts) + 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, which is printed")
    parser.add_argument("--ttft", type=float, default=0.05, help="seconds from a request to its first token")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds from one token to the next")
    options = parser.parse_args()
    server = TimingServer(options.port, options.ttft, options.itl)
    print(server.port, flush=True)  # noqa: T201  the one thing that it says
    server.run()


if __name__ == "__main__":
    main()
