"""A server whose every byte and time is known: what a request gets is chosen by the model it names.

Run as ``python golden_server.py PORT [CERTIFICATE]``, the latter for TLS. ``GET /log`` tells, per X-Request-Id, when
each piece was handed to the kernel (monotonic ns, which processes of one machine share), and how many requests and
connections there were.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time

SSE = "text/event-stream"


def chunk(delta: dict[str, object] | None = None, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "x", "choices": choices} | more, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})
TEXT = chunk({"content": "hi"})
USAGE = chunk(usage={"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}})
LAST = chunk({"content": "hi"}, "stop")
CHINESE = chunk({"content": "世界"})

#: model → (status, content type, pieces of (delay before it in s, bytes), whether the stream ends whole)
SCRIPTS: dict[str, tuple[int, str, list[tuple[float, bytes]], bool]] = {
    "ok": (200, SSE, [(0.05, TEXT), (0.02, TEXT), (0.02, LAST), (0.05, USAGE), (0, DONE)], True),
    "role-first": (200, SSE, [(0, ROLE), (0.1, TEXT), (0, LAST), (0, USAGE), (0, DONE)], True),
    "reasoning": (
        200, SSE, [(0, ROLE), (0.02, chunk({"reasoning_content": "hm"})), (0.05, LAST), (0, USAGE), (0, DONE)], True,
    ),
    "ping-first": (200, SSE, [(0, b": keep-alive\n\n"), (0.1, TEXT), (0, LAST), (0, USAGE), (0, DONE)], True),
    "no-usage": (200, SSE, [(0, TEXT), (0.01, TEXT), (0.01, LAST), (0, DONE)], True),
    "split-utf8": (
        200, SSE, [(0, CHINESE[:-14]), (0.02, CHINESE[-14:]), (0, LAST), (0, USAGE), (0, DONE)], True,
    ),
    "crlf": (200, SSE, [(0, (TEXT + LAST + USAGE + DONE).replace(b"\n", b"\r\n"))], True),
    "many-in-one": (200, SSE, [(0.03, TEXT + TEXT + LAST), (0, USAGE), (0, DONE)], True),
    "error-in-stream": (200, SSE, [(0, TEXT), (0, b'data: {"error": {"message": "kaputt"}}\n\n')], True),
    "error-left-open": (200, SSE, [(0, b'data: {"error": {"message": "kaputt"}}\n\n'), (60, b"")], True),
    "truncated": (200, SSE, [(0, TEXT), (0, TEXT)], True),
    "cut": (200, SSE, [(0, TEXT), (0, TEXT)], False),
    "no-token": (200, SSE, [(0, ROLE), (0, USAGE), (0, DONE)], True),
    "odd-usage": (
        200, SSE, [(0, TEXT), (0, chunk({"content": "x"}, "stop", usage={"prompt_tokens": "7"})), (0, DONE)], True,
    ),
    "odd-delta": (200, SSE, [(0, TEXT), (0, b'data: {"choices": [{"delta": "hi"}]}\n\n'), (0, DONE)], True),
    "odd-choices": (200, SSE, [(0, TEXT), (0, b'data: {"choices": ["hi"]}\n\n'), (0, DONE)], True),
    "late-with-usage": (200, SSE, [(0, TEXT), (0.03, LAST + USAGE), (0, DONE)], True),
    "open-end": (200, SSE, [(0, TEXT), (0, LAST), (0, USAGE), (0, DONE), (60, b"")], True),
    "bad-json": (200, SSE, [(0, TEXT), (0, b"data: {oops\n\n"), (0, DONE)], True),
    "html": (200, "text/html", [(0, b"<html>hello</html>")], True),
    "json": (200, "application/json", [(0, b'{"choices": []}')], True),
    "unauthorized": (401, "application/json", [(0, b'{"error": {"message": "bad key golden-secret"}}')], True),
    "not-found": (404, "application/json", [(0, b'{"error": {"message": "no such model"}}')], True),
    "rate-limited": (429, "application/json", [(0, b'{"error": {"message": "slow down"}}')], True),
    "broken": (500, "text/plain", [(0, b"oops")], True),
    "stall": (200, SSE, [(0, TEXT), (60, LAST)], True),
    "reset": (200, SSE, [], False),
}  # fmt: skip
LOG: dict[str, list[int]] = {}
COUNTS = {"requests": 0, "connections": 0}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    COUNTS["connections"] += 1
    try:
        while await answer(reader, writer):
            pass
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path = head.split(" ")[1]
    if path == "/log":
        return await plain(writer, 200, {"log": LOG, **COUNTS})
    if path == "/v1/models":
        return await plain(writer, 200, {"data": [{"id": "ok"}]})
    if path == "/tokenize":
        return await plain(writer, 200, {"count": len(json.loads(body)["messages"][0]["content"]) + 5})
    COUNTS["requests"] += 1
    return await stream(writer, json.loads(body)["model"], LOG.setdefault(headers["x-request-id"], []))


async def plain(writer: asyncio.StreamWriter, status: int, value: object) -> bool:
    body = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


async def stream(writer: asyncio.StreamWriter, model: str, log: list[int]) -> bool:
    status, content_type, pieces, is_whole = SCRIPTS[model]
    if model == "reset":
        writer.transport.abort()
        return False
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for delay, piece in pieces:
        await asyncio.sleep(delay)
        log.append(time.monotonic_ns())
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
    if is_whole:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return is_whole


async def main(port: int, certificate: str | None) -> None:
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:] or [None]))
