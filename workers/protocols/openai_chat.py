"""OpenAI chat completions as a stream: what is asked, and what the events of the answer mean. Gevent-free."""

from __future__ import annotations

from typing import Any

import orjson

from workers.records import Record

NAME = "openai-chat"
PATH = "/chat/completions"
_DONE = b"[DONE]"


def request_body(model: str, text: str, max_tokens: int, extra: dict[str, Any]) -> bytes:
    """The JSON of one streamed request, usage asked for."""
    return orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        | extra
    )


class ChatStream:
    """Fills a record from the events of one answer.

    A token is generated content: text, reasoning, a refusal or a tool call; a role, an empty delta or a usage chunk is
    not. An answer is whole when it said ``[DONE]`` or gave a finish reason; an error object anywhere makes it failed.
    """

    def __init__(self, record: Record, answer: list[str] | None = None) -> None:
        """``answer``, if given, receives the pieces of visible text."""
        self.is_done = False
        self.has_failed = False
        self._record = record
        self._answer = answer
        self._chunk_ns: list[int] = []

    def on_event(self, data: bytes, stamp_ns: int) -> bool:
        """Take one event; true when it carried generated content."""
        if data == _DONE:
            self.is_done = True
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return self._fail("protocol", f"an event is not JSON: {data[:120]!r}")
        try:
            return self._take_chunk(chunk, stamp_ns)
        except (AttributeError, TypeError):
            return self._fail("protocol", f"an event has not the form of a chunk: {data[:120]!r}")

    def _take_chunk(self, chunk: dict[str, Any], stamp_ns: int) -> bool:
        if chunk.get("error"):
            return self._fail("server", f"error in the stream: {orjson.dumps(chunk['error'])[:400].decode()}")
        has_content = False
        for choice in chunk.get("choices") or ():
            has_content |= self._take_choice(choice, stamp_ns)
        if has_content:
            self._chunk_ns.append(stamp_ns)
        if chunk.get("usage"):
            self._take_usage(chunk["usage"])
        if chunk.get("timings"):
            self._take_timings(chunk["timings"])
        return has_content

    def finish(self) -> None:
        """The stream has ended: settle times, tokens and the outcome."""
        record = self._record
        times = self._chunk_ns
        record.chunk_ns = times or None
        if times:
            record.first_token_ns, record.last_token_ns = times[0], times[-1]
        if record.completion_tokens is None and times:
            record.completion_tokens, record.token_source = len(times), "chunks"
        if self.has_failed:
            return
        if not (self.is_done or record.finish_reason):
            record.outcome, record.error = "truncated", "the stream ended without [DONE] or a finish reason"
        elif not times and not self._is_empty_on_purpose():
            record.outcome, record.error = "protocol", "the stream ended without a token"
        else:
            record.outcome, record.error = "ok", None

    def _is_empty_on_purpose(self) -> bool:
        """The server itself counts no visible token: a model that ended at once, not a stream that lost its text."""
        return self._record.finish_reason == "stop" and (self._record.completion_tokens or 0) <= 1

    def _fail(self, outcome: str, error: str) -> bool:
        if not self.has_failed:
            self._record.outcome, self._record.error = outcome, error
        self.has_failed = True
        return False

    def _take_choice(self, choice: dict[str, Any], stamp_ns: int) -> bool:
        record = self._record
        delta = choice.get("delta") or {}
        is_visible = bool(delta.get("content") or delta.get("refusal"))
        if is_visible and record.first_visible_ns is None:
            record.first_visible_ns = stamp_ns
        if is_visible and self._answer is not None:
            self._answer.append(delta.get("content") or delta["refusal"])
        if choice.get("finish_reason"):
            record.finish_reason = str(choice["finish_reason"])
        return is_visible or bool(delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"))

    def _take_usage(self, usage: dict[str, Any]) -> None:
        record = self._record
        record.prompt_tokens = _count(usage.get("prompt_tokens"))
        if (completion := _count(usage.get("completion_tokens"))) is not None:
            record.completion_tokens, record.token_source = completion, "usage"
        details = usage.get("prompt_tokens_details") or {}
        record.cached_tokens = _count(details.get("cached_tokens"))

    def _take_timings(self, timings: dict[str, Any]) -> None:
        """What some servers tell of their own time, in ms: llama.cpp's names, and the queue of tokenswarm's engine."""
        self._record.server_queue_ns = _nanoseconds(timings.get("queue_ms"))
        self._record.server_prefill_ns = _nanoseconds(timings.get("prompt_ms"))


def _count(value: Any) -> int | None:
    """A number of tokens, or None for anything that is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _nanoseconds(milliseconds: Any) -> int | None:
    is_time = isinstance(milliseconds, (int, float)) and 0 <= milliseconds < 1e9
    return round(milliseconds * 1e6) if is_time else None
