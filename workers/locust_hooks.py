"""Ties a session to Locust's life cycle: options, start, stop, and the master's level messages."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import gevent
from gevent.event import Event
from locust import events
from locust.runners import STATE_INIT, MasterRunner, WorkerRunner

from workers.arrivals import Arrivals, parse_arrivals
from workers.errors import SettingsError
from workers.messages import LEVEL_BEGIN, LEVEL_CLOSED, LEVEL_END, PROGRESS
from workers.options import Settings, add_options, read_options
from workers.plain_master import PlainMaster
from workers.run_manifest import RunManifest
from workers.session import Session, Shard
from workers.targets import resolve_target
from workers.user import ChatUser

_DEFAULT_GRACE_S = 30.0
_PROGRESS_INTERVAL_S = 1.0
_MAX_TTFT_SAMPLES = 50


def install() -> None:
    """Register everything; called once by a locustfile."""
    events.init_command_line_parser.add_listener(_on_parser)
    events.init.add_listener(_on_init)


def _on_parser(parser: Any) -> None:
    add_options(parser)


def _on_init(environment: Any, runner: Any, **_: Any) -> None:
    options = environment.parsed_options
    is_worker = isinstance(runner, WorkerRunner)
    try:
        settings = read_options(options, _default_name(runner))
        _check_host(environment)
        if settings.out.exists() and not is_worker:
            raise SettingsError(f"run directory {str(settings.out)!r} exists; choose another with --out")
    except SettingsError as error:
        _refuse(str(error))
    environment.stop_timeout = environment.stop_timeout or _DEFAULT_GRACE_S  # answers in flight end whole
    if not is_worker:  # workers of a plain distributed run take these from here
        options.out, options.run_id, options.seed = str(settings.out), settings.run_id, settings.seed
    if isinstance(runner, MasterRunner):
        RunManifest(environment, settings).listen()
        PlainMaster(environment, runner, settings.arrivals is not None).listen()
    else:
        _Hooks(environment, runner, settings).listen()
        if not is_worker:
            RunManifest(environment, settings).listen()
    gevent.get_hub().loop.update_now()  # else the run time that Locust sets next counts from before all the imports


def _check_host(environment: Any) -> None:
    host = environment.host or environment.parsed_options.host
    if host:
        resolve_target(host)
    elif environment.parsed_options.headless:
        raise SettingsError("no host; say where requests go with --host http://HOST:PORT")


class _Hooks:
    """Listeners of a process that runs users."""

    def __init__(self, environment: Any, runner: Any, settings: Settings) -> None:
        self._environment = environment
        self._runner = runner
        self._settings = settings
        self._session: Session | None = None
        self._num_starts = 0
        self._is_begun = False
        self._ready = Event()

    def listen(self) -> None:
        self._environment.events.test_start.add_listener(self._on_start)
        self._environment.events.spawning_complete.add_listener(self._on_spawned)
        self._environment.events.test_stopping.add_listener(self._on_stopping)
        self._environment.events.test_stop.add_listener(self._on_stop)
        self._environment.events.quitting.add_listener(self._on_stop)
        if isinstance(self._runner, WorkerRunner):
            self._runner.register_message(LEVEL_BEGIN, self._on_level_begin, concurrent=True)
            self._runner.register_message(LEVEL_END, self._on_level_end, concurrent=True)
            gevent.spawn(self._report_progress)
            if self._runner.worker_state != STATE_INIT:  # told to spawn before anyone listened
                self._on_start()

    def _on_start(self, **_: Any) -> None:
        """Users are about to spawn."""
        if self._session is None:
            try:
                self._session = self._open_session()
                self._session.prepare()
            except SettingsError as error:
                self._give_up(str(error))
        self._is_begun = False
        if self._settings.arrivals is None:
            self._begin()
        self._ready.set()

    def _on_spawned(self, **_: Any) -> None:
        """The schedule of an open loop starts when all users are there to take it."""
        if not self._is_begun:
            self._begin()

    def _begin(self) -> None:
        """Without a master, each start of the test is a level; with one, its message begins it."""
        self._is_begun = True
        if not isinstance(self._runner, WorkerRunner):
            self._open_level(self._num_starts, Shard(), None, self._settings.arrivals)
            self._num_starts += 1

    def _on_stopping(self, **_: Any) -> None:
        if self._session is not None:
            self._session.end_arrivals()

    def _on_stop(self, **_: Any) -> None:
        if self._session is not None and self._session.level is not None:
            self._session.close_level(grace_s=0)  # the users have had Locust's own stop timeout

    def _on_level_begin(self, msg: Any, **_: Any) -> None:
        self._ready.wait()
        data, arrivals = msg.data, self._settings.arrivals
        if data["arrivals"] is not None:
            arrivals = parse_arrivals(data["arrivals"])
        self._open_level(data["level"], Shard(data["index"], data["count"]), data["start_unix_ns"], arrivals)

    def _on_level_end(self, msg: Any, **_: Any) -> None:
        rows: dict[str, int] = {}
        if self._session is not None and self._session.level is not None:
            self._session.close_level(msg.data["grace_s"])
            rows = dict(self._session.outcomes)
        name = self._settings.worker_name
        self._runner.send_message(LEVEL_CLOSED, {"level": msg.data["level"], "worker": name, "outcomes": rows})

    def _open_level(self, level: int, shard: Shard, start_unix_ns: int | None, arrivals: Arrivals | None) -> None:
        assert self._session is not None
        num_users = self._runner.target_user_count or self._runner.user_count
        try:
            self._session.open_level(level, num_users, shard, start_unix_ns, arrivals)
        except SettingsError as error:
            self._give_up(str(error))

    def _open_session(self) -> Session:
        options = self._environment.parsed_options
        self._settings = read_options(options, _default_name(self._runner))  # with what a master has set since
        session = Session(self._settings, resolve_target(self._environment.host or options.host or ""))
        ChatUser.session = session
        ChatUser.has_session.set()
        return session

    def _give_up(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\n")
        self._environment.process_exit_code = 2
        self._runner.quit()
        sys.exit(2)

    def _report_progress(self) -> None:
        """Once a second, a message of bounded size to the master."""
        while True:
            gevent.sleep(_PROGRESS_INTERVAL_S)
            data: dict[str, Any] = {"worker": self._settings.worker_name}
            if self._session is not None:
                ttft, self._session.recent_ttft_ms = self._session.recent_ttft_ms, []
                tokens, self._session.num_tokens = self._session.num_tokens, 0
                data |= {
                    "in_flight": self._session.wire.in_flight.count,
                    "outcomes": dict(self._session.outcomes),
                    "tokens": tokens,
                    "ttft_ms": ttft[-_MAX_TTFT_SAMPLES:],
                }
            self._runner.send_message(PROGRESS, data)


def _default_name(runner: Any) -> str:
    return f"w{max(0, runner.worker_index)}" if isinstance(runner, WorkerRunner) else "w0"


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(2)
