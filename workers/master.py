"""A Locust master that runs one load level after another, told by JSON lines: ``python -m workers.master``.

Commands come on stdin, events leave on stdout (docs/architecture.md); the end of stdin ends everything. Users are
spawned while the gate is closed, then let go all at once, so a level starts with its whole wave.
"""

from __future__ import annotations

import argparse
import socket as std_socket
import statistics
import sys
import time
from typing import Any

import gevent
import orjson
from gevent.fileobject import FileObjectThread
from locust.env import Environment
from locust.runners import MasterRunner

from workers.arrivals import parse_arrivals
from workers.errors import SettingsError
from workers.messages import LEVEL_BEGIN, LEVEL_CLOSED, LEVEL_END, PROGRESS, level_begin
from workers.user import ChatUser

_LEVEL_FIELDS = ("level", "users", "warmup_s", "measure_s", "grace_s")
_SPAWN_TIMEOUT_S = 60.0
_CLOSE_MARGIN_S = 15.0
_TICK_S = 0.05
#: Time for a message to reach all workers before the first arrival of an open loop is due.
_HEAD_START_NS = 300_000_000
_PROGRESS_INTERVAL_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    port = options.port or _free_port(options.host)
    # these reach a worker with every spawn message, so also one that joins in the middle
    told_to_workers = argparse.Namespace(enable_rebalancing=False, headless=False)
    environment = Environment(user_classes=[ChatUser], stop_timeout=1.0, parsed_options=told_to_workers)
    runner = environment.create_master_runner(options.host, port)
    controller = Controller(runner)
    emit("ready", host=options.host, port=port)
    controller.obey(FileObjectThread(sys.stdin.buffer, "rb"))


def emit(event: str, **fields: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps({"event": event} | fields) + b"\n")
    sys.stdout.buffer.flush()


class Controller:
    """Runs levels on a master runner and reports them."""

    def __init__(self, runner: MasterRunner) -> None:
        self._runner = runner
        self._names: dict[str, str] = {}  # client id → worker name, from its progress messages
        self._progress: dict[str, dict[str, Any]] = {}
        self._closed: dict[str, dict[str, int]] = {}
        self._is_stopping = False
        self._level: gevent.Greenlet | None = None
        runner.register_message(PROGRESS, self._on_progress)
        runner.register_message(LEVEL_CLOSED, self._on_closed)
        gevent.spawn(self._watch_workers)

    def obey(self, commands: Any) -> None:
        """Take commands until ``quit`` or the end of the input."""
        for line in iter(commands.readline, b""):
            try:
                command = orjson.loads(line)
                name = command["cmd"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                emit("error", message=f"not a command: {line[:120]!r}")
                continue
            if name == "quit":
                break
            if name == "stop":
                self._is_stopping = True
            elif name == "level" and (self._level is None or self._level.dead):
                self._begin(command)
            else:
                emit("error", message=f"command {name!r} is unknown, or a level is still running")
        self._is_stopping = True
        self._runner.quit()

    def _begin(self, command: dict[str, Any]) -> None:
        missing = [name for name in _LEVEL_FIELDS if not isinstance(command.get(name), (int, float))]
        if missing or command["users"] < 1 or min(command[name] for name in _LEVEL_FIELDS) < 0:
            emit("error", message=f"a level needs {', '.join(_LEVEL_FIELDS)} as numbers from 0 up, users from 1")
            return
        try:
            parse_arrivals(command.get("arrivals") or "constant:1")
        except SettingsError as error:
            emit("error", message=str(error))
            return
        self._is_stopping = False
        self._level = gevent.spawn(self._run_level, command)

    def _run_level(self, command: dict[str, Any]) -> None:
        level = command["level"]
        self._closed = {}
        self._spawn(command["users"])
        members = self._alive()
        arrivals = command.get("arrivals")
        started_ns = time.time_ns() + (_HEAD_START_NS if arrivals else 0)
        names = sorted(members, key=lambda client: self._names.get(client, client))
        for index, client in enumerate(names):
            data = level_begin(level, index, len(names), started_ns, arrivals)
            self._runner.send_message(LEVEL_BEGIN, data, client_id=client)
        emit("level_started", level=level, unix_ns=started_ns)
        start_ns = started_ns + round(command["warmup_s"] * 1e9)
        planned_end_ns = start_ns + round(command["measure_s"] * 1e9)
        emit("window", level=level, start_unix_ns=start_ns, end_unix_ns=planned_end_ns)
        self._wait_until(planned_end_ns, level, started_ns, members)
        end_ns = min(time.time_ns(), planned_end_ns)
        start_ns = min(start_ns, end_ns)  # stopped while warming up: an empty window
        self._runner.send_message(LEVEL_END, {"level": level, "grace_s": command["grace_s"]})
        self._await_closed(members, command["grace_s"] + _CLOSE_MARGIN_S)
        self._report_end(level, start_ns, end_ns, members)

    def _spawn(self, users: int) -> None:
        """Bring the users to their number; they wait at the gate. Workers are ready for it when this returns."""
        deadline = time.monotonic() + _SPAWN_TIMEOUT_S
        while not self._alive() <= set(self._names) and time.monotonic() < deadline:
            gevent.sleep(_TICK_S)
        self._runner.start(users, spawn_rate=max(users, 1))
        while self._runner.user_count != users and time.monotonic() < deadline and self._alive():
            gevent.sleep(_TICK_S)

    def _wait_until(self, end_ns: int, level: int, started_ns: int, members: set[str]) -> None:
        next_report = time.monotonic() + _PROGRESS_INTERVAL_S
        while time.time_ns() < end_ns and not self._is_stopping and members & self._alive():
            gevent.sleep(min(_TICK_S, max(0.0, (end_ns - time.time_ns()) / 1e9)))
            if time.monotonic() >= next_report:
                next_report += _PROGRESS_INTERVAL_S
                emit("progress", level=level, elapsed_s=(time.time_ns() - started_ns) / 1e9, **self._sum_progress())

    def _await_closed(self, members: set[str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (members & self._alive()) - set(self._closed) and time.monotonic() < deadline:
            gevent.sleep(_TICK_S)

    def _report_end(self, level: int, start_ns: int, end_ns: int, members: set[str]) -> None:
        outcomes: dict[str, int] = {}
        for counts in self._closed.values():
            for outcome, count in counts.items():
                outcomes[outcome] = outcomes.get(outcome, 0) + count
        lost = sorted(self._names.get(client, client) for client in members - set(self._closed))
        emit(
            "level_ended", level=level, window_start_unix_ns=start_ns, window_end_unix_ns=end_ns,
            rows=sum(outcomes.values()), outcomes=outcomes, lost_workers=lost,
        )  # fmt: skip

    def _alive(self) -> set[str]:
        clients = self._runner.clients
        return {client.id for client in clients.ready + clients.spawning + clients.running}

    def _on_progress(self, msg: Any, **_: Any) -> None:
        self._names[msg.node_id] = msg.data["worker"]
        self._progress[msg.node_id] = msg.data

    def _on_closed(self, msg: Any, **_: Any) -> None:
        self._names[msg.node_id] = msg.data["worker"]
        self._closed[msg.node_id] = msg.data["outcomes"]

    def _sum_progress(self) -> dict[str, Any]:
        latest = [self._progress[client] for client in self._alive() if "tokens" in self._progress.get(client, {})]
        ttft = [sample for data in latest for sample in data["ttft_ms"]]
        outcomes = [data["outcomes"] for data in latest]
        return {
            "users": self._runner.user_count,
            "in_flight": sum(data["in_flight"] for data in latest),
            "requests": sum(sum(counts.values()) for counts in outcomes),
            "failures": sum(sum(counts.values()) - counts.get("ok", 0) for counts in outcomes),
            "tokens_per_s": sum(data["tokens"] for data in latest) / _PROGRESS_INTERVAL_S,
            "ttft_p50_ms": statistics.median(ttft) if ttft else None,
        }

    def _watch_workers(self) -> None:
        known: set[str] = set()
        while True:
            alive = {client for client in self._alive() if client in self._names}
            if alive != known:
                known = alive
                emit("workers", count=len(alive), names=sorted(self._names[client] for client in alive))
            gevent.sleep(_TICK_S)


def _free_port(host: str) -> int:
    with std_socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
