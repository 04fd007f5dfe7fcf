"""OpenAI completions, text in and text out: what base models and older servers speak. Gevent-free."""

from __future__ import annotations

from typing import Any

from workers.protocols.openai_stream import OpenAIStream, streamed
from workers.protocols.wire_protocol import WireProtocol, bearer


def _body(model: str, text: str, max_tokens: int, extra: dict[str, Any]) -> bytes:
    return streamed(model, {"prompt": text}, max_tokens, extra)


class CompletionStream(OpenAIStream):
    text_key = b'"text"'

    def _take_choice(self, choice: dict[str, Any], stamp_ns: int) -> None:
        if text := choice.get("text"):
            self._take_content(stamp_ns, text, True)

    def _only_text(self, choice: dict[str, Any]) -> str | None:
        return choice["text"]


PROTOCOL = WireProtocol("openai-completions", "/completions", bearer, _body, CompletionStream)
