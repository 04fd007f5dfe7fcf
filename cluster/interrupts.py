"""Ctrl-C and SIGTERM as something a loop asks for, once; the second one is the ordinary KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The first signal that came, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def take(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def deferred() -> Iterator[Interrupts]:
    """Within it, the first signal is only noted."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts.take) for number in _SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
