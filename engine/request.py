"""One request inside the engine: its tokens, how far they are computed, and where its KV lives."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """State of one request. ``token_ids`` is the prompt followed by what was generated.

    There is no prefill or decode phase: the first ``num_computed_tokens`` tokens have their KV in ``block_table``, and
    a step computes some of the rest. Preemption sets the count back to 0 and nothing else.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    arrival_ns: int
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    generator: torch.Generator | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens
