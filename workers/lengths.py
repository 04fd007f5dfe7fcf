"""Lengths in tokens: a number, or a distribution of numbers. Pure, gevent-free.

``128``, ``uniform:16:64``, ``normal:128:20`` (mean and standard deviation), ``lognormal:512:0.5`` (median, and sigma of
the logarithm), ``trace:FILE`` (what the requests of a trace had; see ``workers.trace``).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from workers.errors import SettingsError
from workers.trace import read_trace

_MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers from 1 up."""

    kind: str
    first: float
    second: float = 0.0
    values: tuple[int, ...] = ()

    def sample(self, rng: random.Random) -> int:
        match self.kind:
            case "uniform":
                return rng.randint(round(self.first), round(self.second))
            case "normal":
                return _whole(rng.gauss(self.first, self.second))
            case "lognormal":
                return _whole(self.first * math.exp(rng.gauss(0.0, self.second)))
            case "trace":
                return rng.choice(self.values)
        return round(self.first)

    @property
    def typical(self) -> int:
        """The middle of it."""
        if self.kind == "uniform":
            return round((self.first + self.second) / 2)
        if self.kind == "trace":
            return sorted(self.values)[len(self.values) // 2]
        return round(self.first)

    @property
    def most(self) -> int:
        """The greatest there can be; of a distribution without end, the middle."""
        if self.kind == "trace":
            return max(self.values)
        return round(self.second) if self.kind == "uniform" else round(self.first)


def parse_lengths(option: str, text: str, column: str) -> Lengths:
    """A length as it is written in an option; ``column`` is what a trace is asked for.

    Raises:
        SettingsError: it is none.
    """
    kind, *numbers = text.strip().split(":")
    if kind == "trace":
        values = tuple(max(1, getattr(request, column)) for request in read_trace(text.strip().partition(":")[2]))
        return Lengths("trace", 0, values=values)
    if not numbers and kind.isascii() and kind.isdigit():
        kind, numbers = "fixed", [kind]
    wanted = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2}.get(kind)
    if wanted is None or len(numbers) != wanted:
        raise SettingsError(
            f"{option} {text!r} is no length; give a whole number from 1 up, uniform:LEAST:MOST, "
            "normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or trace:FILE"
        )
    first, second = (_number(option, text, number) for number in (*numbers, "0")[:2])
    _check(option, text, kind, first, second)
    return Lengths(kind, first, second)


def _check(option: str, text: str, kind: str, first: float, second: float) -> None:
    is_whole = kind in ("normal", "lognormal") or (first == round(first) and second == round(second))
    if not 1 <= first <= _MOST_TOKENS or not is_whole:
        raise SettingsError(f"{option} {text!r}: {first:g} is no whole number of tokens from 1 up")
    if kind == "uniform" and not first <= second <= _MOST_TOKENS:
        raise SettingsError(f"{option} {text!r}: the most, {second:g}, lies below the least, {first:g}")
    if kind in ("normal", "lognormal") and not 0 <= second < _MOST_TOKENS:
        raise SettingsError(f"{option} {text!r}: {second:g} is no spread; it must be 0 or more")


def _number(option: str, text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingsError(f"{option} {text!r}: {number!r} is no number")
    return value


def _whole(value: float) -> int:
    return max(1, min(round(value), _MOST_TOKENS))
