"""Reads for all connections where there is no epoll: a watcher of gevent's loop for each. Slower, and just as right."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from workers.in_flight import InFlight

_READ_EVENT = 1
Handler = Callable[[int], bool]


class WatcherReader:
    """The interface of ``workers.reader.Reader``."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self._loop = gevent.get_hub().loop
        self._watchers: dict[int, Any] = {}
        self._handlers: dict[int, Handler] = {}
        self._last_ns: dict[int, int] = {}

    def add(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler
        self._last_ns[fd] = time.monotonic_ns()
        self._watchers[fd] = watcher = self._loop.io(fd, _READ_EVENT)
        watcher.start(self._read, fd)

    def set_handler(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            watcher = self._watchers.pop(fd)
            watcher.stop()
            watcher.close()

    def put_off(self, work: Callable[[], None]) -> None:
        self._loop.run_callback(work)

    def close(self) -> None:
        for fd in list(self._handlers):
            self.remove(fd)

    def _read(self, fd: int) -> None:
        empty_ns, self._last_ns[fd] = self._last_ns[fd], time.monotonic_ns()
        self._handlers[fd](empty_ns)
