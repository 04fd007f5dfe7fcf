"""The Locust user: a slot that sends one graded prompt after another, and tells Locust's own statistics of each."""

from __future__ import annotations

import time
from typing import Any

import gevent
from gevent.event import Event
from locust import User, task
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING, LOCUST_STATE_WAITING

from workers.records import Record
from workers.session import Session

_STOP_CHECK_S = 0.1


class RequestFailedError(Exception):
    """How a row that is not ok appears among Locust's failures."""


class ChatUser(User):
    """Closed loop: the next prompt leaves when the last answer is whole. ``tasks`` is weighted by the mix at start."""

    _state: str | None  # Locust's
    session: Session
    has_session = Event()

    def on_start(self) -> None:
        self.has_session.wait()  # a worker that joins in the middle spawns before it is ready
        self._client = self.session.make_client()
        self._client.warm()
        self._wait_at_gate()

    def on_stop(self) -> None:
        self._client.close()

    def stop(self, force: bool = False) -> bool:
        """Between two requests a user ends by itself; a kill would reach it only after it has sent the next one."""
        is_between = self._state == LOCUST_STATE_WAITING and self.session.gate.is_set()
        if is_between and not force:
            self._state = LOCUST_STATE_STOPPING
            return False
        return bool(super().stop(force))

    def wait_time(self) -> float:
        """No think time; between levels the user waits here, where Locust may stop it at once."""
        self._wait_at_gate()
        return 0.0

    @task(6)
    def short(self) -> None:
        self._send("short")

    @task(3)
    def medium(self) -> None:
        self._send("medium")

    @task(1)
    def long(self) -> None:
        self._send("long")

    @classmethod
    def weigh(cls, mix: dict[str, float]) -> None:
        """Weight the tasks by the mix, to a thousandth."""
        cls.tasks = [getattr(cls, name) for name, share in mix.items() for _ in range(round(share * 1000))]

    def _wait_at_gate(self) -> None:
        """Note when this user became free to send: now, or when the gate opened."""
        self._free_ns = time.monotonic_ns()
        if not self.session.gate.is_set():
            self.session.gate.wait()
            self._free_ns = time.monotonic_ns()

    def _send(self, class_name: str) -> None:
        if not self.session.gate.is_set():  # the level ended between the wait and now
            return
        prompt, attempt, intended_ns = self.session.next_prompt(class_name), 1, self._free_ns
        while True:
            record = self.session.request(self._client, prompt, attempt, intended_ns)
            if record.outcome != "cancelled":
                _report(self.environment, record)
            if not self.session.settings.obey_retry_after or record.retry_after_ns is None:
                return
            attempt, intended_ns = attempt + 1, (record.end_ns or 0) + record.retry_after_ns
            if not self._wait_until(intended_ns):
                return

    def _wait_until(self, due_ns: int) -> bool:
        """False if the level or the test ended meanwhile."""
        while self.session.gate.is_set() and self._state == LOCUST_STATE_RUNNING:
            remaining_s = (due_ns - time.monotonic_ns()) / 1e9
            if remaining_s <= 0:
                return True
            gevent.sleep(min(remaining_s, _STOP_CHECK_S))
        return False


def _report(environment: Any, record: Record) -> None:
    """One Locust request for one row; rows that were cancelled at the end of a run are none."""
    end_ns = record.last_token_ns or record.end_ns or record.intended_ns
    environment.events.request.fire(
        request_type=record.protocol,
        name=record.prompt_class,
        response_time=(end_ns - (record.sent_ns or record.intended_ns)) / 1e6,
        response_length=record.bytes_in,
        exception=None if record.outcome == "ok" else RequestFailedError(f"{record.outcome}: {record.error}"),
        context={},
    )
