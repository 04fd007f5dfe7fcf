"""A response as server-sent events: built by hand, since this runs once a token for every client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from engine.step_output import RequestTiming

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks and the whole answer of one request have in common."""

    response_id: str
    model: str
    is_chat: bool
    created: int

    @classmethod
    def make(cls, request_id: str, model: str, is_chat: bool) -> Envelope:
        prefix = "chatcmpl" if is_chat else "cmpl"
        return cls(f"{prefix}-{request_id}", model, is_chat, int(time.time()))

    def header(self, streaming: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        kind += ".chunk" if self.is_chat and streaming else ""
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}


class ChunkWriter:
    """Formats the chunks of one streamed answer; everything but the text is serialised once."""

    def __init__(self, envelope: Envelope) -> None:
        self._is_chat = envelope.is_chat
        self._header = envelope.header(streaming=True)
        self._before = b"data: " + orjson.dumps(self._header)[:-1] + b',"choices":[{"index":0,'
        self._is_first = True

    def content(self, text: str, finish_reason: str | None) -> bytes:
        """One chunk. The role comes with the first, and a chunk without text carries only the finish reason."""
        quoted = orjson.dumps(text)
        if self._is_chat:
            role = b'"role":"assistant",' if self._is_first else b""
            body = b'"delta":{' + role + b'"content":' + quoted + b"}" if text or self._is_first else b'"delta":{}'
        else:
            body = b'"text":' + quoted
        self._is_first = False
        reason = b"null" if finish_reason is None else orjson.dumps(finish_reason)
        return self._before + body + b',"logprobs":null,"finish_reason":' + reason + b"}]}\n\n"

    def usage(self, usage: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps(self._header | {"choices": []} | usage) + b"\n\n"


def usage_of(timing: RequestTiming) -> dict[str, Any]:
    """Usage, and llama.cpp's ``timings`` with the time in the queue added."""
    prompt, completion = timing.prompt_tokens, timing.completion_tokens
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        "timings": {
            "queue_ms": timing.queue_ns / 1e6,
            "prompt_n": prompt,
            "prompt_ms": _ms(timing.prefill_ns),
            "predicted_n": completion,
            "predicted_ms": _ms(timing.decode_ns),
        },
    }


def whole_answer(envelope: Envelope, text: str, finish_reason: str, timing: RequestTiming) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
    if envelope.is_chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    return envelope.header(streaming=False) | {"choices": [choice]} | usage_of(timing)


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
