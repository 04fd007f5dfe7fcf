"""The Locust master: a process of its own that takes commands and gives events, one JSON object a line."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from cluster.errors import RunError

Event = dict[str, Any]
_QUIT_TIMEOUT_S = 10.0


class LocustMaster:
    """Started at once; it ends by itself when this process dies, because its stdin does."""

    def __init__(self, host: str, log: Path) -> None:
        command = [sys.executable, "-P", "-m", "workers.master", "--host", host]
        with log.open("wb") as stderr:
            # a session of its own: Ctrl-C is for this process, which then ends the level in order
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        self._log = log
        self._events: queue.Queue[Event] = queue.Queue()
        threading.Thread(target=self._read, daemon=True, name="locust-master-events").start()

    def send(self, command: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone; the end of its events tells
            self._process.stdin.write(orjson.dumps({"cmd": command} | fields) + b"\n")
            self._process.stdin.flush()

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None if none came in time.

        Raises:
            RunError: the master has ended.
        """
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event["event"] == "exited":
            raise RunError(f"the Locust master ended; its last words are in {self._log}")
        return event

    def wait_for(self, name: str, timeout_s: float) -> Event:
        """The next event of that name.

        Raises:
            RunError: it did not come in time.
        """
        while (event := self.next_event(timeout_s)) is not None:
            if event["event"] == name:
                return event
        raise RunError(f"the Locust master said no {name!r} for {timeout_s:g} s; see {self._log}")

    def close(self) -> None:
        self.send("quit")
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_QUIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(orjson.JSONDecodeError):
                self._events.put(orjson.loads(line))
        self._process.stdout.close()
        self._events.put({"event": "exited"})
