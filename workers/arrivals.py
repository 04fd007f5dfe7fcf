"""When requests come in an open loop: one schedule for all workers, from one seed. Pure, gevent-free.

Every worker draws the whole schedule and takes each n-th arrival of it, so that one worker or twenty send the same
requests at the same times, without gaps or doubles. Times are seconds since the start of the level, meant as absolute
deadlines, so that no lateness adds up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from workers.errors import SettingsError
from workers.trace import read_trace

KINDS = ("constant", "poisson", "gamma", "ramp", "steps", "day", "trace")
#: Rates above this are a mistake: no single machine sends so many requests.
_MOST_RATE = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process, as it is written.

    ``constant:50``, ``poisson:50``, ``gamma:50:0.5`` (rate and coefficient of variation), ``ramp:10:100:60`` (from one
    rate to another within seconds), ``steps:10,20,40:30`` (rates, seconds of each), ``day:10:100:600`` (lowest and
    highest rate of a sine whose day lasts 600 s), ``trace:FILE:20`` (a trace, 20 times as fast).
    """

    kind: str
    numbers: tuple[float, ...]
    path: str = ""

    def times(self, seed: int, level: int) -> Iterator[float]:
        """Seconds since the start, rising, without end but for a trace."""
        rng = random.Random(f"{seed}/{level}/arrivals")
        match self.kind:
            case "constant":
                return _constant(self.numbers[0])
            case "poisson":
                return _renewal(lambda: rng.expovariate(self.numbers[0]))
            case "gamma":
                rate, variation = self.numbers
                shape = 1 / variation**2
                return _renewal(lambda: rng.gammavariate(shape, 1 / (rate * shape)))
            case "trace":
                return (request.at_s / self.numbers[0] for request in read_trace(self.path))
        return self._thinned(rng)

    def rate(self, at_s: float) -> float:
        """Arrivals a second, on average, at a time."""
        match self.kind:
            case "ramp":
                first, last, length = self.numbers
                return first + (last - first) * min(at_s / length, 1.0)
            case "steps":
                *rates, length = self.numbers
                return rates[min(int(at_s / length), len(rates) - 1)]
            case "day":
                low, high, length = self.numbers
                return low + (high - low) * (1 - math.cos(2 * math.pi * at_s / length)) / 2
        return self.numbers[0]

    @property
    def mean_rate(self) -> float:
        """Of a whole period; what a level is called by."""
        match self.kind:
            case "ramp" | "day":
                return (self.numbers[0] + self.numbers[1]) / 2
            case "steps":
                return sum(self.numbers[:-1]) / (len(self.numbers) - 1)
            case "trace":
                requests = read_trace(self.path)
                return len(requests) / max(requests[-1].at_s, 1e-9) * self.numbers[0]
        return self.numbers[0]

    def _thinned(self, rng: random.Random) -> Iterator[float]:
        """A Poisson process of changing rate, by thinning one of the highest.

        Source: Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning" (1979).
        """
        highest = max(self.numbers[:-1])
        at_s = 0.0
        while True:
            at_s += rng.expovariate(highest)
            if rng.random() * highest < self.rate(at_s):
                yield at_s


def parse_arrivals(text: str) -> Arrivals:
    """An arrival process as it is written in an option.

    Raises:
        SettingsError: it is none, or a rate is 0 or below.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in KINDS:
        raise SettingsError(
            f"arrivals {text!r}: {kind!r} is unknown; choose one of {', '.join(KINDS)}, such as poisson:50"
        )
    if kind == "trace":
        path, speed = _path_and_speed(rest)
        read_trace(path)
        return Arrivals(kind, (_positive(text, speed),), path)
    numbers = tuple(_positive(text, number) for part in rest.split(":") for number in part.split(","))
    wanted = {"constant": 1, "poisson": 1, "gamma": 2, "ramp": 3, "day": 3}.get(kind, max(2, len(numbers)))
    if len(numbers) != wanted or (kind == "steps" and rest.count(":") != 1):
        raise SettingsError(f"arrivals {text!r}: {kind} takes {_FORMS[kind]}")
    return Arrivals(kind, numbers)


def shard(times: Iterator[float], index: int, count: int) -> Iterator[tuple[int, float]]:
    """Every ``count``-th arrival from ``index`` on, with its number in the whole schedule."""
    return islice(enumerate(times), index, None, count)


_FORMS = {
    "constant": "a rate: constant:50",
    "poisson": "a rate: poisson:50",
    "gamma": "a rate and a coefficient of variation: gamma:50:2",
    "ramp": "two rates and the seconds between them: ramp:10:100:60",
    "steps": "rates and the seconds of each: steps:10,20,40:30",
    "day": "the lowest and the highest rate and the seconds of a day: day:10:100:600",
}


def _constant(rate: float) -> Iterator[float]:
    number = 0
    while True:
        yield number / rate
        number += 1


def _renewal(draw_gap: Callable[[], float]) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += draw_gap()
        yield at_s


def _path_and_speed(rest: str) -> tuple[str, str]:
    path, _, speed = rest.rpartition(":")
    try:
        float(speed)
    except ValueError:
        return rest, "1"
    return (path, speed) if path else (rest, "1")


def _positive(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        raise SettingsError(f"arrivals {text!r}: {number!r} is no number") from None
    if not 0 < value <= _MOST_RATE:
        raise SettingsError(f"arrivals {text!r}: {number} must be above 0 and at most {_MOST_RATE:g}")
    return value
