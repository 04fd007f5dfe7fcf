"""What a level's rows say: throughput, latencies, failures. Each measure carries the formula that the report prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.dataset import Floats, Level
from workers.records import OUTCOMES, PROMPT_CLASSES

FORMULAS: dict[str, str] = {
    "Throughput": "completion tokens whose chunk arrived inside the window / length of the window; a request's tokens "
    "are spread evenly over its chunks where the server does not tell each chunk's",
    "TTFT": "first_token − sent, over requests that succeeded and were sent inside the window",
    "TTFT from intended": "first_token − intended: what a user who arrived on time waited",
    "Schedule lag": "sent − intended, over the requests that were sent; in a closed loop from when a user was free",
    "TPOT": "(last_token − first_token) / (completion_tokens − 1), from 2 tokens on",
    "ICL": "gap between successive content chunks of one request",
    "E2E": "last_token − sent; the closing usage chunk does not extend it",
    "In flight": "Σ over requests of the time between sent and end inside the window / length of the window",
    "Outcomes": "every request sent inside the window, by how it ended; one never sent counts at its intended time",
    "p95, p99": "left out below 20 and 100 samples",
}
#: Samples that a percentile needs.
MIN_SAMPLES = {"p50": 1, "p95": 20, "p99": 100}
#: Ends that are the generator's doing, not the service's.
NOT_THE_SERVICE = ("ok", "cancelled", "unsent")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A latency over a level's requests. Units: ms. None: too few samples."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """Everything measured at one level inside its window."""

    requests: int
    outcomes: dict[str, int]
    #: Requests that ended inside the window, however they ended.
    finished: int
    tokens_per_s: float | None
    requests_per_s: float | None
    mean_in_flight: float | None
    #: How late requests left.
    schedule_lag_ms: Distribution
    ttft_ms: Distribution
    ttft_from_intended_ms: Distribution
    tpot_ms: Distribution
    icl_ms: Distribution
    e2e_ms: Distribution
    prompt_tokens: dict[str, float]

    @property
    def failed(self) -> int:
        """Requests that the service did not answer properly."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in NOT_THE_SERVICE)


def measure(level: Level) -> LevelMetrics:
    """A level's measures."""
    started = np.where(np.isnan(level.sent), level.intended, level.sent)
    counted = (started >= 0) & (started < level.window_s)
    good = counted & (level.outcome == OUTCOMES.index("ok"))
    finished = int(((level.end >= 0) & (level.end < level.window_s)).sum())
    window = level.window_s or None
    return LevelMetrics(
        requests=int(counted.sum()),
        outcomes={name: n for i, name in enumerate(OUTCOMES) if (n := int((level.outcome[counted] == i).sum()))},
        finished=finished,
        tokens_per_s=float(token_series(level, 1)[0]) if window else None,
        requests_per_s=finished / window if window else None,
        mean_in_flight=_mean_in_flight(level) if window else None,
        schedule_lag_ms=distribution((level.sent - level.intended)[counted]),
        ttft_ms=distribution(level.first_token[good] - level.sent[good]),
        ttft_from_intended_ms=distribution(level.first_token[good] - level.intended[good]),
        tpot_ms=distribution(_tpot(level)[good]),
        icl_ms=distribution(_icl(level, good)),
        e2e_ms=distribution(level.last_token[good] - level.sent[good]),
        prompt_tokens=_mean_prompt_tokens(level, counted),
    )


def token_series(level: Level, num_bins: int) -> Floats:
    """Tokens per second in equal bins of the window. Shape: (num_bins,)."""
    inside = (level.chunk_at >= 0) & (level.chunk_at < level.window_s)
    tokens, _ = np.histogram(
        level.chunk_at[inside], bins=num_bins, range=(0.0, level.window_s), weights=level.chunk_tokens[inside]
    )
    return np.asarray(tokens * num_bins / level.window_s, dtype=np.float64)


def distribution(seconds: Floats) -> Distribution:
    """Mean and percentiles of the values that are known."""
    known = seconds[np.isfinite(seconds)] * 1e3

    def percentile(name: str) -> float | None:
        return float(np.percentile(known, int(name[1:]))) if len(known) >= MIN_SAMPLES[name] else None

    mean = float(known.mean()) if len(known) else None
    return Distribution(len(known), mean, percentile("p50"), percentile("p95"), percentile("p99"))


def _tpot(level: Level) -> Floats:
    gaps = np.where(level.completion_tokens >= 2, level.completion_tokens - 1, np.nan)
    return np.asarray((level.last_token - level.first_token) / gaps, dtype=np.float64)


def _icl(level: Level, good: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    same = level.chunk_row[1:] == level.chunk_row[:-1]
    return np.diff(level.chunk_at)[same & good[level.chunk_row[1:]]]


def _mean_in_flight(level: Level) -> float:
    # A row without an end was cut off with its process; it was in flight at least until it was last heard of.
    last_seen = np.fmax(np.fmax(level.end, level.last_token), level.sent)
    inside = np.clip(last_seen, 0, level.window_s) - np.clip(level.sent, 0, level.window_s)
    return float(np.nansum(inside) / level.window_s)


def _mean_prompt_tokens(level: Level, counted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> dict[str, float]:
    known = counted & np.isfinite(level.prompt_tokens)
    chosen = {name: known & (level.prompt_class == i) for i, name in enumerate(PROMPT_CLASSES)}
    return {name: float(level.prompt_tokens[rows].mean()) for name, rows in chosen.items() if rows.any()}
