"""What a step tells the outside: plain data that crosses a process boundary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """When a request passed each stage. ``queue + prefill + decode`` is its whole time in the engine.

    Times are monotonic; prefill ends with the first token. None: the request ended before that stage.
    """

    request_id: str
    arrival_ns: int
    first_scheduled_ns: int | None
    first_token_ns: int | None
    finished_ns: int
    num_preemptions: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def queue_ns(self) -> int:
        return (self.first_scheduled_ns or self.finished_ns) - self.arrival_ns

    @property
    def prefill_ns(self) -> int | None:
        if self.first_scheduled_ns is None:
            return None
        return (self.first_token_ns or self.finished_ns) - self.first_scheduled_ns

    @property
    def decode_ns(self) -> int | None:
        return None if self.first_token_ns is None else self.finished_ns - self.first_token_ns


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """New tokens of one request; ``finish_reason`` ("stop", "length", "error") and ``timing`` come with its last."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    timing: RequestTiming | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of the step timeline."""

    time_ns: int
    duration_ns: int
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    free_blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    outputs: list[RequestOutput]
    row: StepRow


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's condition between two steps."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_preemptions_total: int
