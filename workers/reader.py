"""One epoll that reads for all connections of a process, watched by gevent's hub.

A greenlet a stream costs two switches a token; here a token costs one call. Because the kernel stamps what arrives,
nothing is gained by reading it at once: under load the reader looks every millisecond, and finds many streams ready.
But bytes that lie unread until more of the same stream come share one stamp with them. So reading goes before all
else, and what costs more than a token does is put off, to be done in slices between looks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import gevent
from gevent import monkey

_READ_EVENT = 1  # of gevent's loop
_EPOLLIN, _EPOLLRDHUP, _EPOLLET = 0x001, 0x2000, 1 << 31
_MAX_READY = 65536
_PACE_S = 0.001
#: Arrivals a second above which looks are paced, and below which each arrival wakes the reader; judged over a while,
#: because the change costs the kernel a walk over all sockets.
_BUSY_RATE, _CALM_RATE = 4000, 2000
_JUDGED_NS = 100_000_000
#: Longest slice of work that was put off.
_SLICE_NS = 2_000_000

#: Called when something came, with the time (monotonic ns) at which its socket was last known to be empty. It reads all
#: there is, for nothing calls it again for the same bytes; true if it found any.
Handler = Callable[[int], bool]


class Reader:
    """Calls a connection's handler, in the hub, whenever there is something to read."""

    def __init__(self) -> None:
        self._epoll = monkey.get_original("select", "epoll")()
        self._handlers: dict[int, Handler] = {}
        self._last_look_ns = time.monotonic_ns()
        self._put_off: deque[Callable[[], None]] = deque()
        loop = self._loop = gevent.get_hub().loop
        self._ready = loop.io(self._epoll.fileno(), _READ_EVENT)
        self._pace = loop.timer(_PACE_S, _PACE_S)
        self._is_paced = False
        self._num_arrivals = 0
        self._judged_ns = self._last_look_ns
        self._ready.start(self._look)

    def __len__(self) -> int:
        return len(self._handlers)

    def add(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, _EPOLLIN | _EPOLLRDHUP | _EPOLLET)

    def set_handler(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def put_off(self, work: Callable[[], None]) -> None:
        """Do this after the present look, or after a later one."""
        self._put_off.append(work)

    def close(self) -> None:
        self._ready.stop()
        self._pace.stop()
        self._ready.close()
        self._pace.close()
        self._epoll.close()

    def _look(self) -> None:
        empty_ns = self._last_look_ns  # whatever was there then has been read
        self._last_look_ns = time.monotonic_ns()
        ready = self._epoll.poll(0, _MAX_READY)
        handlers = self._handlers
        for fd, event in ready:
            handler = handlers[fd]
            is_more = handler(empty_ns)
            if event != _EPOLLIN:  # the end has come too, behind the bytes
                while is_more:
                    is_more = handler(empty_ns)
        self._num_arrivals += len(ready)
        if self._last_look_ns - self._judged_ns > _JUDGED_NS:
            self._judge()
        if self._put_off:
            self._do_some()

    def _do_some(self) -> None:
        end_ns = time.monotonic_ns() + _SLICE_NS
        while self._put_off:
            self._put_off.popleft()()
            if time.monotonic_ns() > end_ns:
                break
        if self._put_off and not self._is_paced:
            self._loop.run_callback(self._look)

    def _judge(self) -> None:
        """Choose between being woken and looking at a pace."""
        rate = self._num_arrivals * 1e9 / (self._last_look_ns - self._judged_ns)
        self._num_arrivals, self._judged_ns = 0, self._last_look_ns
        if rate > _BUSY_RATE if not self._is_paced else rate < _CALM_RATE:
            self._is_paced = not self._is_paced
            start, stop = (self._pace, self._ready) if self._is_paced else (self._ready, self._pace)
            stop.stop()
            start.start(self._look)
