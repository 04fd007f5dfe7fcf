"""Requests of the OpenAI API as this server takes them.

A parameter that would change the answer and is not supported is refused by name; one that cannot change it is ignored.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError

_IGNORED = frozenset({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"})
#: Parameters that would change the answer, with the values at which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, None), "best_of": (1, None), "echo": (False, None), "suffix": (None, ""), "logprobs": (False, None),
    "top_logprobs": (None, 0), "logit_bias": (None, {}), "presence_penalty": (0, None), "frequency_penalty": (0, None),
    "repetition_penalty": (1, None), "min_p": (0, None), "tools": (None, []), "tool_choice": (None, "none"),
    "functions": (None, []), "response_format": (None, {"type": "text"}), "reasoning_effort": (None,),
}  # fmt: skip


class StreamOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What chat and completion requests share."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: list[int] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in _NEUTRAL.items():
            if name in data and data[name] not in neutral:
                raise ApiError(
                    400, f"parameter {name} is not supported here; leave it out", "invalid_request_error", name
                )
        return {name: value for name, value in data.items() if name not in _IGNORED and name not in _NEUTRAL}

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings.

        Raises:
            ApiError: more than four, or an empty one.
        """
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stops) > 4 or "" in stops:
            raise ApiError(400, "stop takes at most 4 strings, none of them empty", "invalid_request_error", "stop")
        return stops

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(self, max_tokens: int) -> SamplingParams:
        """The engine's parameters; ``max_tokens`` is the default where the request has none."""
        return SamplingParams(
            max_tokens=self.max_tokens if self.max_tokens is not None else max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),  # other servers write "no limit" as -1
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(self.stop_token_ids),
        )


class CompletionRequest(GenerationRequest):
    prompt: str | list[str] | list[int] | list[list[int]]

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt as text or token ids.

        Raises:
            ApiError: there are several.
        """
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise ApiError(
                    400, "several prompts in one request are not supported; send one request each",
                    "invalid_request_error", "prompt",
                )  # fmt: skip
            prompt = prompt[0]
        return prompt


class TextPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    role: str
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content}


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_the_limit(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("max_completion_tokens") is not None:
            return data | {"max_tokens": data["max_completion_tokens"]}
        return data


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    prompt: str | None = None
    messages: list[Message] | None = None
