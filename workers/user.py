"""The Locust user: a slot that sends one graded prompt after another, and tells Locust's own statistics of each."""

from __future__ import annotations

import time
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from locust import User, task
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING, LOCUST_STATE_WAITING

from workers.prompts import Prompt
from workers.records import Record
from workers.session import Session

_STOP_CHECK_S = 0.1


class RequestFailedError(Exception):
    """How a row that is not ok appears among Locust's failures."""


class ChatUser(User):
    """Closed loop: the next prompt leaves when the last answer is whole. Open loop: it leaves when one arrives."""

    _state: str | None  # Locust's
    session: Session
    has_session = Event()

    def on_start(self) -> None:
        self.has_session.wait()  # a worker that joins in the middle spawns before it is ready
        self._ticket = AsyncResult()
        self._client = self.session.make_client()
        self._client.warm()
        self._wait_at_gate()

    def on_stop(self) -> None:
        self._client.close()

    def stop(self, force: bool = False) -> bool:
        """Between two requests a user ends by itself; a kill would reach it only after it has sent the next one."""
        self.session.give_back(self._ticket)
        is_between = self._state == LOCUST_STATE_WAITING and self.session.gate.is_set()
        if is_between and not force:
            self._state = LOCUST_STATE_STOPPING
            return False
        return bool(super().stop(force))

    def wait_time(self) -> float:
        """No think time; between levels the user waits here, where Locust may stop it at once."""
        self._wait_at_gate()
        return 0.0

    @task
    def send(self) -> None:
        """One prompt, of a class by the mix."""
        if not self.session.gate.is_set():  # the level ended between the wait and now
            return
        if not self.session.is_open_loop:
            self._send(self.session.next_prompt(), self._free_ns)
        else:
            self._ticket = AsyncResult()
            arrival = self.session.next_arrival(self._ticket)
            if arrival is not None:
                self._send(arrival.prompt, arrival.due_ns)
            else:
                self._wait_until(time.monotonic_ns() + 10**9)  # the schedule is over, the level not yet

    def _wait_at_gate(self) -> None:
        """Note when this user became free to send: now, or when the gate opened."""
        self._free_ns = time.monotonic_ns()
        if not self.session.gate.is_set():
            self.session.gate.wait()
            self._free_ns = time.monotonic_ns()

    def _send(self, prompt: Prompt, intended_ns: int) -> None:
        attempt = 1
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
