"""OpenAI chat completions: what is asked, and what the events of the answer mean. Gevent-free.

Reasoning comes as ``reasoning_content`` (DeepSeek, vLLM, SGLang) or ``reasoning`` (OpenRouter, newer vLLM).
"""

from __future__ import annotations

from typing import Any

from workers.protocols.openai_stream import OpenAIStream, streamed
from workers.protocols.wire_protocol import WireProtocol, bearer


def _body(model: str, text: str, max_tokens: int, extra: dict[str, Any]) -> bytes:
    return streamed(model, {"messages": [{"role": "user", "content": text}]}, max_tokens, extra)


class ChatStream(OpenAIStream):
    text_key = b'"content"'

    def _take_choice(self, choice: dict[str, Any], stamp_ns: int) -> None:
        delta = choice.get("delta") or {}
        visible = delta.get("content") or delta.get("refusal")
        hidden = delta.get("reasoning_content") or delta.get("reasoning")
        calls = delta.get("tool_calls")
        if visible or hidden or calls:
            self._take_content(stamp_ns, (hidden or "") + (visible or "") + _call_text(calls), bool(visible))

    def _only_text(self, choice: dict[str, Any]) -> str | None:
        delta = choice["delta"]
        is_more = any(value for name, value in delta.items() if name not in ("content", "role"))
        return None if is_more else delta.get("content")


def _call_text(calls: list[dict[str, Any]] | None) -> str:
    if not calls:
        return ""
    parts = [call.get("function") or {} for call in calls]
    return "".join(f"{part.get('name') or ''}{part.get('arguments') or ''}" for part in parts)


PROTOCOL = WireProtocol("openai-chat", "/chat/completions", bearer, _body, ChatStream)
