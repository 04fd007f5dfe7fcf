"""One epoll that reads for all connections of a process.

A greenlet a stream costs two switches a token; here a token costs one call. Because the kernel stamps what arrives,
nothing is gained by reading it at once: under load the reader looks every millisecond, and finds many streams ready.

But bytes that lie unread until more of the same stream come share one stamp with them. So reading goes before all
else. What costs more than a token does is put off, to be done in slices between looks. And should something keep
gevent's hub from looking – a wave of new requests, a user's own code – an alarm looks in its stead, in the middle of
whatever runs.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable

import gevent
from gevent import monkey

from workers.alarm import Alarm
from workers.in_flight import InFlight

HAS_EPOLL = hasattr(select, "epoll") or monkey.is_object_patched("select", "epoll")
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
#: The alarm looks if nothing has for so long: less than the time between two tokens of a stream.
_ALARM_NS = 4_000_000

#: Called when something came, with the time (monotonic ns) at which its socket was last known to be empty. It reads all
#: there is, for nothing calls it again for the same bytes; true if it found any. It may run in the middle of any other
#: code of the process, and must not switch greenlets.
Handler = Callable[[int], bool]


class Reader:
    """Calls a connection's handler whenever there is something to read, and minds the time while any is in flight."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self._epoll = monkey.get_original("select", "epoll")()
        self._handlers: dict[int, Handler] = {}
        self._last_look_ns = self._judged_ns = time.monotonic_ns()
        self._num_arrivals = 0
        self._is_looking = False
        self._put_off: deque[Callable[[], None]] = deque()
        loop = self._loop = gevent.get_hub().loop
        self._ready = loop.io(self._epoll.fileno(), _READ_EVENT)
        self._pace = loop.timer(_PACE_S, _PACE_S)
        self._is_paced = False
        self._ready.start(self._turn)
        self._alarm = Alarm(self._is_due, self._look_instead)

    def add(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, _EPOLLIN | _EPOLLRDHUP | _EPOLLET)

    def set_handler(self, fd: int, handler: Handler) -> None:
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def put_off(self, work: Callable[[], None]) -> None:
        """Do this in the hub, between looks."""
        self._put_off.append(work)

    def close(self) -> None:
        self._alarm.stop()
        for watcher in (self._ready, self._pace):
            watcher.stop()
            watcher.close()
        self._epoll.close()

    def _turn(self) -> None:
        """What the hub does: a look, and some of the work."""
        self._look()
        if self._last_look_ns - self._judged_ns > _JUDGED_NS:
            self._judge()
        if self._put_off:
            self._do_some()

    def _look(self) -> None:
        self._is_looking = True
        empty_ns = self._last_look_ns  # whatever was there then has been read
        self._last_look_ns = time.monotonic_ns()
        ready = self._epoll.poll(0, _MAX_READY)
        self._num_arrivals += len(ready)
        handlers = self._handlers
        for fd, event in ready:
            handler = handlers[fd]
            is_more = handler(empty_ns)
            if event != _EPOLLIN:  # the end has come too, behind the bytes
                while is_more:
                    is_more = handler(empty_ns)
        self._is_looking = False

    def _is_due(self) -> bool:
        return self.in_flight.count > 0 and time.monotonic_ns() - self._last_look_ns > _ALARM_NS

    def _look_instead(self) -> None:
        if not self._is_looking:
            self._look()
            if self._put_off:
                self._loop.run_callback(self._do_some)

    def _judge(self) -> None:
        """Choose between being woken and looking at a pace."""
        rate = self._num_arrivals * 1e9 / (self._last_look_ns - self._judged_ns)
        self._num_arrivals, self._judged_ns = 0, self._last_look_ns
        if rate > _BUSY_RATE if not self._is_paced else rate < _CALM_RATE:
            self._is_paced = not self._is_paced
            start, stop = (self._pace, self._ready) if self._is_paced else (self._ready, self._pace)
            stop.stop()
            start.start(self._turn)

    def _do_some(self) -> None:
        end_ns = time.monotonic_ns() + _SLICE_NS
        while self._put_off:
            self._put_off.popleft()()
            if time.monotonic_ns() > end_ns:
                break
        if self._put_off and not self._is_paced:
            self._loop.run_callback(self._turn)
