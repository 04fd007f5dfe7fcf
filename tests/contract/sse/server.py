"""A server whose every byte and time is known: the conformance suite for clients of LLM services.

    python server.py PORT [CERTIFICATE]        with a certificate it speaks TLS; needs nothing but Python

A request's path chooses the protocol and its model the case, of those in the JSON files beside this one (docs/
conformance.md). ``GET /log`` tells, per X-Request-Id, when each piece of the answer was handed to the kernel (monotonic
ns, which processes of one machine share), and how many requests and connections there were.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

_HOLD_S = 60
_RAGGED_BYTES = 7
SUITES: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("*.json"))]
CASES = {(suite["path"], case["name"]): (suite, case) for suite in SUITES for case in suite["cases"]}
LOG: dict[str, list[int]] = {}
COUNTS = {"requests": 0, "connections": 0}


def to_bytes(suite: dict[str, Any], items: list[Any]) -> bytes:
    """The bytes of one piece: fragments by name, literal text, hex, or a repetition."""
    data = b""
    for item in items:
        if isinstance(item, str):
            data += suite["fragments"].get(item, item).encode()
        elif "hex" in item:
            data += bytes.fromhex(item["hex"])
        else:
            data += item["repeat"].encode() * item["times"]
    return data


def recoded(pieces: list[bytes], recode: str) -> list[bytes]:
    """Pieces with other line ends, or compressed."""
    line_end = {"crlf": b"\r\n", "cr": b"\r"}.get(recode.split(" ")[0], b"\n")
    pieces = [piece.replace(b"\n", line_end) for piece in pieces]
    if "gzip" not in recode:
        return pieces
    gzip = zlib.compressobj(wbits=31)
    return [gzip.compress(piece) + gzip.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]


def head(response: dict[str, Any], length: int, recode: str) -> bytes:
    framing = response.get("framing", "chunked")
    content_type = response.get("content_type", "text/event-stream")
    lines = [f"HTTP/1.1 {response.get('status', 200)} X", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in response.get("headers", {}).items()]
    if "gzip" in recode:
        lines.append("Content-Encoding: gzip")
    if framing == "length":
        lines.append(f"Content-Length: {length}")
    elif framing != "close":
        lines.append("Transfer-Encoding: chunked")
    interim = "HTTP/1.1 100 Continue\r\n\r\n" if response.get("interim") else ""
    return (interim + "\r\n".join(lines) + "\r\n\r\n").encode()


def framed(framing: str, data: bytes) -> bytes:
    """A piece as the framing wants it."""
    if framing in ("length", "close", "none") or not data:
        return data
    if framing == "broken":
        return b"zz\r\n" + data + b"\r\n"
    size = _RAGGED_BYTES if framing == "ragged" else len(data)
    extension = b";a=b" if framing == "extended" else b""
    return b"".join(
        b"%x%s\r\n%s\r\n" % (len(data[i : i + size]), extension, data[i : i + size]) for i in range(0, len(data), size)
    )


def end_of(framing: str) -> bytes:
    if framing in ("length", "close", "none"):
        return b""
    return b"0;a=b\r\nX-Trailer: 1\r\n\r\n" if framing == "extended" else b"0\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    COUNTS["connections"] += 1
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while await answer(reader, writer):
            pass
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    request = (await reader.readuntil(b"\r\n\r\n")).decode()
    pairs = (line.partition(":") for line in request.split("\r\n")[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path = request.split(" ")[1]
    if path == "/log":
        return await plain(writer, 200, {"log": LOG, **COUNTS})
    if path == "/v1/models":
        return await plain(writer, 200, {"data": [{"id": "ok"}]})
    if path == "/tokenize":
        return await plain(writer, 200, {"count": len(json.loads(body)["messages"][0]["content"]) + 5})
    COUNTS["requests"] += 1
    found = CASES.get((path, json.loads(body).get("model", "")))
    if found is None:
        return await plain(writer, 404, {"error": {"message": f"no case of this name at {path}"}})
    return await play(writer, *found, LOG.setdefault(headers.get("x-request-id", ""), []))


async def plain(writer: asyncio.StreamWriter, status: int, value: object) -> bool:
    body = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


async def play(writer: asyncio.StreamWriter, suite: dict[str, Any], case: dict[str, Any], log: list[int]) -> bool:
    """Send a case's pieces at their times; whether the connection may be used again."""
    response, recode, end = case.get("response", {}), case.get("recode", ""), case.get("end", "whole")
    framing = response.get("framing", "chunked")
    pieces = recoded([to_bytes(suite, items) for _, *items in case["pieces"]], recode)
    if framing != "none":
        writer.write(head(response, sum(map(len, pieces)), recode))
    for (delay_ms, *_), piece in zip(case["pieces"], pieces, strict=True):
        await asyncio.sleep(delay_ms / 1000)
        log.append(time.monotonic_ns())
        packets = [piece[i : i + 1] for i in range(len(piece))] if "each_byte" in recode else [piece]
        for packet in packets:
            writer.write(framed(framing, packet))
            await writer.drain()
    return await finish(writer, framing, end)


async def finish(writer: asyncio.StreamWriter, framing: str, end: str) -> bool:
    if end == "hold":
        await asyncio.sleep(_HOLD_S)
    elif end == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif end == "whole":
        writer.write(end_of(framing))
        await writer.drain()
    return end == "whole" and framing != "close"


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
