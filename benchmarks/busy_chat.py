"""The locustfile of chats in a process that also does other work, up to 90 % of a core."""

import time

import gevent
import locust  # noqa: F401  patches sockets before anything else is imported
from locust import events

from locustfiles.chat import ChatUser

__all__ = ["ChatUser"]
_CYCLE_S = 0.02
_SHARE = 0.9


@events.init.add_listener
def _on_init(**_: object) -> None:
    gevent.spawn(_keep_busy)


def _keep_busy() -> None:
    """In each cycle, spin away what the process has not used of its share."""
    wall, cpu = time.monotonic(), time.process_time()
    while True:
        gevent.sleep(0.001)
        while time.process_time() - cpu < _SHARE * (time.monotonic() - wall) and time.monotonic() - wall < 1.0:
            pass
        if time.monotonic() - wall > _CYCLE_S:
            wall, cpu = time.monotonic(), time.process_time()
