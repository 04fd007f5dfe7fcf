"""Anthropic messages: what is asked, and what the events of the answer mean. Gevent-free.

Source: Anthropic's API reference, "Streaming messages": ``message_start`` tells the tokens of the prompt,
``content_block_delta`` carries text, thinking or the JSON of a tool's input, ``message_delta`` the stop reason and the
output tokens so far, ``message_stop`` ends; ``ping`` may come at any time, ``error`` instead of the rest.
"""

from __future__ import annotations

from typing import Any

import orjson

from workers.protocols.token_stream import TokenStream, count
from workers.protocols.wire_protocol import WireProtocol

_VERSION = "2023-06-01"
#: The key of a delta's content, by its type. A signature is bookkeeping, not a token.
_CONTENT_KEYS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _headers(key: str | None) -> str:
    return f"anthropic-version: {_VERSION}\r\n" + (f"x-api-key: {key}\r\n" if key else "")


def _body(model: str, text: str, max_tokens: int, extra: dict[str, Any]) -> bytes:
    messages = [{"role": "user", "content": text}]
    return orjson.dumps({"model": model, "messages": messages, "max_tokens": max_tokens, "stream": True} | extra)


class MessageStream(TokenStream):
    text_key = b'"text"'

    def take(self, kind: str, chunk: dict[str, Any], stamp_ns: int) -> None:
        kind = chunk.get("type") or kind
        if kind == "error":
            self._take_error(chunk.get("error") or chunk)
        elif kind == "content_block_delta":
            self._take_delta(chunk["delta"], stamp_ns)
        elif kind == "message_start":
            self._take_usage(chunk["message"].get("usage") or {})
        elif kind == "message_delta":
            self._take_usage(chunk.get("usage") or {})
            if reason := (chunk.get("delta") or {}).get("stop_reason"):
                self._record.finish_reason = str(reason)
                self._record.completion_tokens = count((chunk.get("usage") or {}).get("output_tokens"))
                self._record.token_source = "usage" if self._record.completion_tokens is not None else None
        elif kind == "message_stop":
            self.is_done = True

    def _take_delta(self, delta: dict[str, Any], stamp_ns: int) -> None:
        key = _CONTENT_KEYS.get(delta.get("type", ""))
        text = delta.get(key) if key else None
        if text:
            self._take_content(stamp_ns, text, key == "text")
            self.only_text = text if key == "text" else None

    def _take_usage(self, usage: dict[str, Any]) -> None:
        """Input tokens leave out what was read from the cache or written to it; a prompt's are all of them."""
        if (fresh := count(usage.get("input_tokens"))) is None:
            return
        cached = count(usage.get("cache_read_input_tokens"))
        written = count(usage.get("cache_creation_input_tokens"))
        self._record.prompt_tokens = fresh + (cached or 0) + (written or 0)
        self._record.cached_tokens = cached


PROTOCOL = WireProtocol("anthropic-messages", "/messages", _headers, _body, MessageStream)
