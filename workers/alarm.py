"""Runs something in the main thread, in the middle of whatever Python code keeps it.

A thread watches the time and, when something is due, has the main thread interrupt itself. That is not a signal: no
system call is cut short, which with Python's buffered files can lose what was being written. Nor does the thread do
the work: after every system call it would have to win back Python's lock from the code that keeps the main thread.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable
from typing import Any

from gevent import monkey

_INTERVAL_S = 0.005
#: A number under which Python knows our handler; nobody sends it.
_NUMBER: Any = getattr(signal, "SIGRTMAX", None)

# those of the system, not gevent's: the thread has no hub
_start_thread = monkey.get_original("_thread", "start_new_thread")
_sleep = monkey.get_original("time", "sleep")


class Alarm:
    """Calls ``action`` within some milliseconds of ``is_due``, while it lives. One a process; none outside Unix."""

    def __init__(self, is_due: Callable[[], bool], action: Callable[[], None]) -> None:
        self._is_due = is_due
        self._action = action
        self._is_stopped = _NUMBER is None
        if _NUMBER is not None:
            signal.signal(_NUMBER, self._on_interrupt)
            _start_thread(self._watch, ())

    def stop(self) -> None:
        self._is_stopped = True

    def _watch(self) -> None:
        while not self._is_stopped:
            _sleep(_INTERVAL_S)
            if self._is_due():
                _thread.interrupt_main(_NUMBER)

    def _on_interrupt(self, *_: object) -> None:
        if not self._is_stopped:
            self._action()
