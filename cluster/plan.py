"""What a sweep will do, level by level. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.errors import UsageError

MAX_CONCURRENCY = 100_000
MAX_RATE = 1_000_000.0
#: Between two levels: answers in flight come to their end, rows become Parquet, users spawn.
_BETWEEN_LEVELS_S = 1.5


@dataclass(frozen=True, slots=True)
class Level:
    """One load level: so many users, each with one request in flight at all times; or, in an open loop, arrivals at a
    rate, of which as many may be in flight as there are users."""

    level: int
    users: int
    warmup_s: float
    measure_s: float
    grace_s: float
    arrivals: str | None = None
    rate_rps: float | None = None

    @property
    def planned_s(self) -> float:
        return self.warmup_s + self.measure_s + _BETWEEN_LEVELS_S


def parse_concurrency(text: str, name: str = "concurrency") -> tuple[int, ...]:
    """``1,2,4`` as numbers of users, in the order given; ``name`` is what errors call it.

    Raises:
        UsageError: one of them is no whole number from 1 up.
    """
    return tuple(_users(name, text, part.strip()) for part in text.split(","))


def _users(name: str, text: str, part: str) -> int:
    if not (part.isascii() and part.isdigit()) or not 1 <= int(part) <= MAX_CONCURRENCY:
        raise UsageError(
            f"{name} {text!r}: {part!r} is no whole number from 1 to {MAX_CONCURRENCY}; give some such as 1,2,4"
        )
    return int(part)


def parse_rates(text: str) -> tuple[float, ...]:
    """``0.5,1,2`` as requests a second, in the order given.

    Raises:
        UsageError: one of them is no number above 0.
    """
    return tuple(_rate(text, part.strip()) for part in text.split(","))


def _rate(text: str, part: str) -> float:
    try:
        rate = float(part)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= MAX_RATE:
        raise UsageError(
            f"rate {text!r}: {part!r} is no number above 0 and up to {MAX_RATE:g}; give some such as 0.5,1,2"
        )
    return rate


def at_rates(levels: Sequence[Level], rates: Sequence[float], process: str) -> tuple[Level, ...]:
    """The levels as an open loop: ``process`` is poisson, constant, or gamma with its coefficient of variation."""
    kind, _, variation = process.partition(":")
    arrivals = [f"{kind}:{rate:g}" + (f":{variation}" if variation else "") for rate in rates]
    return tuple(
        replace(level, arrivals=text, rate_rps=rate) for level, text, rate in zip(levels, arrivals, rates, strict=True)
    )


def make_levels(concurrency: Sequence[int], warmup_s: float, measure_s: float, grace_s: float) -> tuple[Level, ...]:
    """The levels of a closed-loop sweep.

    Raises:
        UsageError: a time that is out of its bounds.
    """
    for name, value, least in (("warmup", warmup_s, 0.0), ("grace", grace_s, 0.0)):
        if not least <= value < float("inf"):
            raise UsageError(f"{name} is {value:g} s; it must be 0 or more")
    if not 0 < measure_s < float("inf"):
        raise UsageError(f"duration is {measure_s:g} s; it must be above 0")
    return tuple(Level(index, users, warmup_s, measure_s, grace_s) for index, users in enumerate(concurrency))


def remaining_s(levels: Sequence[Level], current: int, elapsed_s: float) -> float:
    """Time until the last level ends, ``elapsed_s`` into level ``current``."""
    return max(0.0, sum(level.planned_s for level in levels[current:]) - elapsed_s)
