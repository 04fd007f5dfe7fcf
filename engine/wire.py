"""What passes through the pipe between the HTTP side and the step loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.step_output import EngineStats, RequestOutput, RequestTiming, StepRow


@dataclass(frozen=True, slots=True)
class Add:
    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded; ``config`` has every default resolved."""

    config: EngineConfig
    path: Path
    vocab_size: int
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Stepped:
    outputs: list[RequestOutput]
    row: StepRow
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Refused:
    request_id: str
    message: str
    param: str | None


@dataclass(frozen=True, slots=True)
class Aborted:
    timing: RequestTiming
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Died:
    """The loop ended: bad settings (``is_config``) or a fault of ours."""

    message: str
    is_config: bool
