"""What OpenAI's two streamed endpoints share: ``[DONE]``, choices, usage, errors. Gevent-free."""

from __future__ import annotations

from typing import Any

import orjson

from workers.protocols.token_stream import TokenStream, count, nanoseconds

_DONE = b"[DONE]"


def streamed(model: str, prompt: dict[str, Any], max_tokens: int, extra: dict[str, Any]) -> bytes:
    """The JSON of one streamed request, usage asked for."""
    options = {"include_usage": True} | extra.get("stream_options", {})
    return orjson.dumps(
        {"model": model, **prompt, "max_tokens": max_tokens, "stream": True, **extra, "stream_options": options}
    )


class OpenAIStream(TokenStream):
    """An endpoint says what a choice holds."""

    def on_event(self, kind: bytes, data: bytes, stamp_ns: int) -> bool:
        if data == _DONE:
            self.is_done = True
            return False
        return super().on_event(kind, data, stamp_ns)

    def take(self, kind: str, chunk: dict[str, Any], stamp_ns: int) -> None:
        if chunk.get("error") or kind == "error":
            self._take_error(chunk.get("error") or chunk)
            return
        num_before = len(self.chunk_ns)
        choices: list[dict[str, Any]] = chunk.get("choices") or []
        for choice in choices:
            if choice.get("finish_reason"):
                self._record.finish_reason = str(choice["finish_reason"])
            self._take_choice(choice, stamp_ns)
        del self.chunk_ns[num_before + 1 :]  # several choices in one chunk are one arrival
        has_content = len(self.chunk_ns) > num_before
        if chunk.get("usage"):
            self._take_usage(chunk["usage"], has_content)
        if chunk.get("timings"):
            self._take_timings(chunk["timings"])
        is_more = chunk.get("usage") or chunk.get("timings") or len(choices) != 1 or choices[0].get("finish_reason")
        if has_content and not is_more:
            self.only_text = self._only_text(choices[0])

    def _take_choice(self, choice: dict[str, Any], stamp_ns: int) -> None:
        raise NotImplementedError

    def _only_text(self, choice: dict[str, Any]) -> str | None:
        """The visible text of a choice with content, if that is all its content."""
        raise NotImplementedError

    def _take_usage(self, usage: dict[str, Any], has_content: bool) -> None:
        record = self._record
        record.prompt_tokens = count(usage.get("prompt_tokens"))
        if (completion := count(usage.get("completion_tokens"))) is not None:
            record.completion_tokens, record.token_source = completion, "usage"
            if has_content:
                self._counts.append(completion)
        details = usage.get("prompt_tokens_details") or {}
        record.cached_tokens = count(details.get("cached_tokens"))

    def _take_timings(self, timings: dict[str, Any]) -> None:
        """What some servers tell of their own time, in ms: llama.cpp's names, and the queue of tokenswarm's engine."""
        self._record.server_queue_ns = nanoseconds(timings.get("queue_ms"))
        self._record.server_prefill_ns = nanoseconds(timings.get("prompt_ms"))
