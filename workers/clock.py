"""One clock for everything: monotonic, with the wall clock's distance kept beside it.

The kernel stamps received data on the wall clock. ``to_monotonic`` moves such a stamp over by an anchor that is
measured again every second, so that the wall clock's slewing and steps do not get into a latency.
"""

from __future__ import annotations

import time

_TRIES = 5


class Clock:
    """The anchor, wall minus monotonic in ns, and how far off it may be."""

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Measure the anchor anew: the tightest of a few readings of the wall clock between two of the monotonic."""
        self.uncertainty_ns, self.anchor_ns = min(self._measure() for _ in range(_TRIES))

    def to_monotonic(self, wall_ns: int) -> int:
        return wall_ns - self.anchor_ns

    @staticmethod
    def _measure() -> tuple[int, int]:
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        return after - before, wall - (before + after) // 2
