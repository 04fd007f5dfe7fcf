"""How one request's tokens are chosen and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import RequestError

_SMALLEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; ``temperature=0`` is greedy, ``top_k=0`` is no limit.

    Raises:
        RequestError: a value is out of its bounds; ``param`` names it.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._require(self.max_tokens >= 1, "max_tokens", "at least 1")
        self._require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "a number from 0 up")
        self._require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self._require(self.top_k >= 0, "top_k", "0 (no limit) or more")
        self._require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", "between 0 and max_tokens")

    @property
    def is_greedy(self) -> bool:
        """A temperature this close to 0 would overflow the division by it."""
        return self.temperature < _SMALLEST_TEMPERATURE

    def _require(self, holds: bool, param: str, allowed: str) -> None:
        if not holds:
            raise RequestError(f"{param} is {getattr(self, param)}; it must be {allowed}", param)
