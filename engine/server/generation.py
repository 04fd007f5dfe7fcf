"""One request from prompt to text: tokenize, generate, detokenize, stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.async_engine import AsyncEngine
from engine.detokenizer import Detokenizer, token_bytes
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError
from engine.step_output import RequestTiming


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text; the last one has the reason and the timing."""

    text: str
    finish_reason: str | None
    timing: RequestTiming | None


class TextGenerator:
    """Text in, text out, over an engine that knows only token ids."""

    def __init__(self, engine: AsyncEngine, tokenizer: Any) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._vocabulary = token_bytes(tokenizer)

    async def encode(self, prompt: str) -> list[int]:
        return await asyncio.to_thread(self._tokenizer.encode, prompt)

    async def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation through the model's own chat template.

        Raises:
            ApiError: the model has none.
        """
        if not self._tokenizer.chat_template:
            raise ApiError(400, "this model has no chat template; use /v1/completions", "invalid_request_error")
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=False)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, stop: tuple[str, ...], request_id: str
    ) -> AsyncGenerator[TextDelta, None]:
        """Text as it comes. A stop string ends the request in the engine too; leaving early aborts it."""
        detokenizer = Detokenizer(self._vocabulary, stop)
        first_ns: int | None = None
        count = 0
        arrival_ns = time.monotonic_ns()
        async with aclosing(self._engine.generate(token_ids, params, request_id)) as outputs:
            async for output in outputs:
                now_ns = time.monotonic_ns()
                first_ns = first_ns or now_ns
                count += len(output.token_ids)
                text = detokenizer.push(output.token_ids, final=output.finish_reason is not None)
                if detokenizer.is_stopped:
                    timing = output.timing or RequestTiming(
                        request_id, arrival_ns, arrival_ns, first_ns, now_ns, 0, len(token_ids), count
                    )
                    yield TextDelta(text, "stop", timing)
                    return
                if text or output.finish_reason is not None:
                    yield TextDelta(text, output.finish_reason, output.timing)


def load_tokenizer(path: Path) -> Any:
    """The checkpoint's tokenizer through transformers, never running code from the folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
