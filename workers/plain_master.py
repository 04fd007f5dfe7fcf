"""The master of a plain distributed Locust run: gives each worker its share of the traffic when a test starts."""

from __future__ import annotations

import time
from typing import Any

from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner

from workers.messages import LEVEL_BEGIN, level_begin

#: Time for the message to reach all workers before the first arrival of an open loop is due.
_HEAD_START_NS = 500_000_000


class PlainMaster:
    """Each start of the test is a level.

    A closed loop begins at once, user by user; the schedule of an open one starts when all users are there. A worker
    that joins later takes part in a closed loop; the schedule of an open one has been shared out by then.
    """

    def __init__(self, environment: Any, runner: MasterRunner, is_open_loop: bool) -> None:
        self._environment = environment
        self._runner = runner
        self._is_open_loop = is_open_loop
        self._is_begun = False
        self._level = -1
        self._num_shares = 0

    def listen(self) -> None:
        self._environment.events.test_start.add_listener(self._on_start)
        self._environment.events.spawning_complete.add_listener(self._on_spawned)
        self._environment.events.worker_connect.add_listener(self._on_worker)

    def _on_start(self, **_: Any) -> None:
        self._level += 1
        self._is_begun = False
        if not self._is_open_loop:
            self._begin()

    def _on_spawned(self, **_: Any) -> None:
        if not self._is_begun:
            self._begin()

    def _begin(self) -> None:
        self._is_begun = True
        members = self._runner.clients
        clients = sorted(client.id for client in members.ready + members.spawning + members.running)
        self._num_shares = len(clients)
        start_ns = time.time_ns() + _HEAD_START_NS
        for index, client in enumerate(clients):
            data = level_begin(self._level, index, len(clients), start_ns)
            self._runner.send_message(LEVEL_BEGIN, data, client_id=client)

    def _on_worker(self, client_id: str, **_: Any) -> None:
        if self._is_begun and self._runner.state in (STATE_RUNNING, STATE_SPAWNING):
            data = level_begin(self._level, self._num_shares, 0, time.time_ns())
            self._num_shares += 1
            self._runner.send_message(LEVEL_BEGIN, data, client_id=client_id)
