"""Hands arrivals to whoever is free, at their times. The heart of the open loop.

An arrival's time is an absolute deadline: being late with one does not move the next. If nobody is free, the arrival is
not put off but becomes an ``unsent`` row: a queue in the generator would be load that the service never saw.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gevent
from gevent.event import AsyncResult

from workers.prompts import Prompt

#: A timer may end this much late; so it is set this much early, and the rest is waited out in short turns.
_TIMER_NS = 1_500_000
_CAP = "all users of this process had a request in flight: raise their number, the cap of the open loop"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to leave at a time (monotonic ns)."""

    due_ns: int
    prompt: Prompt


class Dispatcher:
    """Runs through one level's arrivals."""

    def __init__(self, arrivals: Iterator[Arrival], on_unsent: Callable[[Arrival, str], None]) -> None:
        """``arrivals`` rise in time; each is asked for when the one before it has gone."""
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._on_unsent = on_unsent
        self._free: deque[AsyncResult] = deque()
        self._is_over = False
        self._greenlet = gevent.spawn(self._run)

    def next_arrival(self, ticket: AsyncResult) -> Arrival | None:
        """Wait, holding ``ticket``, for an arrival; None if there will be none, or the ticket was given back."""
        if self._is_over:
            return None
        self._free.append(ticket)
        arrival: Arrival | None = ticket.get()
        return arrival

    def give_back(self, ticket: AsyncResult) -> None:
        """Who holds the ticket waits no longer."""
        if ticket in self._free:
            self._free.remove(ticket)
            ticket.set(None)

    def close(self) -> None:
        """No more arrivals; those who wait are told. What has fallen due and not left is unsent."""
        self._is_over = True
        self._greenlet.kill(block=False)
        now_ns = time.monotonic_ns()
        while self._next is not None and self._next.due_ns <= now_ns:
            self._on_unsent(self._next, "the level ended before it left")
            self._next = next(self._arrivals, None)
        self._tell_all()

    def _run(self) -> None:
        while self._next is not None and not self._is_over:
            self._wait_until(self._next.due_ns)
            if self._is_over:
                return
            arrival, self._next = self._next, next(self._arrivals, None)
            if self._free:
                self._free.popleft().set(arrival)
            else:
                self._on_unsent(arrival, _CAP)
        self._is_over = True
        self._tell_all()

    def _tell_all(self) -> None:
        while self._free:
            self._free.popleft().set(None)

    def _wait_until(self, due_ns: int) -> None:
        while (remaining_ns := due_ns - time.monotonic_ns()) > 0:
            gevent.sleep(max(0.0, (remaining_ns - _TIMER_NS) / 1e9))
