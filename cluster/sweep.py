"""A sweep: replicas if asked for, a Locust master, load workers, one level after another, into a run directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import ray_cluster
from cluster.errors import RunError
from cluster.interrupts import Interrupts, deferred
from cluster.load_workers import LoadWorkers
from cluster.locust_master import Event, LocustMaster
from cluster.locustfile import locustfile
from cluster.plan import Level
from cluster.progress import Progress
from cluster.replicas import serving
from cluster.run_dir import RunDir
from cluster.settings import SweepSettings, free_port
from workers.limits import core_warning
from workers.targets import resolve_target

import ray  # isort: skip

_JOIN_TIMEOUT_S = 90.0
_CONNECT_TIMEOUT_S = 10.0
_TICK_S = 0.2
#: Longer than a master takes to close a level whose workers have all gone.
_CLOSE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """How a sweep ended; what it measured is in the run directory."""

    path: Path
    is_interrupted: bool
    num_ok: int


def run_sweep(settings: SweepSettings, out: Path, run_id: str) -> SweepResult:
    """Run every level and leave the run directory complete but for the analysis.

    Raises:
        UsageError: nothing was started, and no directory is left.
        RunError: the target does not answer, or the sweep could not go on; what was measured is kept.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}" if settings.is_engine else settings.target
    model = settings.replicas.config.model if settings.is_engine else settings.model
    target = {"name": settings.target, "base_url": resolve_target(url).base_url, "model": model or None}
    if not (settings.is_engine or settings.trust_env):
        _require_reachable(settings.target)
    run = RunDir.create(out, run_id, target, settings.as_json(), settings.seed)
    run.update(load="open" if settings.is_open_loop else "closed")
    try:
        with Progress(settings.levels) as progress, ExitStack() as stack:
            sweep = _Sweep(settings, run, progress)
            is_interrupted = sweep.run(stack, url, port, model)
    finally:
        run.discard_unless_measured()
    return SweepResult(run.path, is_interrupted, sweep.num_ok)


class _Sweep:
    """The parts of one sweep while it runs."""

    def __init__(self, settings: SweepSettings, run: RunDir, progress: Progress) -> None:
        self._settings = settings
        self._run = run
        self._progress = progress
        self.num_ok = 0

    def run(self, stack: ExitStack, url: str, port: int, model: str) -> bool:
        """Everything up, all levels, everything down; whether it was interrupted."""
        settings = self._settings
        address = "127.0.0.1"
        if settings.ray_address is None:  # else the address is known only once Ray is
            self._start_master(stack, address)
        self._progress.stage("starting Ray")
        num_cpus = settings.replicas.replicas * (settings.replicas.config.threads or 1)
        stack.enter_context(ray_cluster.connected(settings.ray_address, num_cpus))
        if settings.ray_address is not None:
            address = ray.util.get_node_ip_address()
            self._start_master(stack, address)
        self._run.update(nodes=ray_cluster.describe_nodes())
        url = f"http://{address}:{port}" if settings.is_engine else url
        self._workers = stack.enter_context(self._load_workers(url, model))
        if settings.is_engine:
            self._progress.stage(f"starting {settings.replicas.replicas} engine replica(s)")
            steps, is_own_cluster = self._run.path.resolve() / "steps", settings.ray_address is None
            stack.enter_context(serving(settings.replicas, address, port, steps, is_own_cluster))
        self._progress.stage("waiting for the load workers")
        self._await_workers(self._workers)
        self._run.update(calibration=self._workers.calibrations())
        with deferred() as interrupts:
            for level in settings.levels:
                self._run_level(level, interrupts)
                if interrupts:
                    break
        return bool(interrupts)

    def _start_master(self, stack: ExitStack, host: str) -> None:
        self._master = LocustMaster(host, self._run.log_dir / "locust-master.log")
        stack.callback(self._master.close)

    @contextmanager
    def _load_workers(self, url: str, model: str) -> Iterator[LoadWorkers]:
        self._progress.stage(f"starting {self._settings.workers} load worker(s)")
        warning = None if self._settings.ray_address else core_warning(self._settings.workers)
        if warning is not None:
            self._progress.note(warning)
        ready = self._master.wait_for("ready", _JOIN_TIMEOUT_S)
        arguments = _locust_arguments(self._settings, self._run.run_id, url, model, ready)
        workers = LoadWorkers(self._run, self._settings.workers, arguments, self._settings.collect_rows)
        try:
            workers.start()
            yield workers
        finally:
            workers.stop()

    def _await_workers(self, workers: LoadWorkers) -> None:
        """Raises RunError if not all of them join."""
        waited_s = 0.0
        while waited_s < _JOIN_TIMEOUT_S:
            event = self._master.next_event(1.0)
            if event is None:
                waited_s += 1.0
                if workers.num_alive() < len(workers):
                    break
            elif event["event"] == "workers" and event["count"] >= len(workers):
                return
        raise RunError(
            f"only {workers.num_alive()} of {len(workers)} load workers joined; see {self._run.path / 'logs'}"
        )

    def _run_level(self, level: Level, interrupts: Interrupts) -> None:
        self._run.begin_level(level.level, level.users, level.rate_rps)
        self._master.send(
            "level", level=level.level, users=level.users, warmup_s=level.warmup_s, measure_s=level.measure_s,
            grace_s=level.grace_s, arrivals=level.arrivals,
        )  # fmt: skip
        ended = self._follow(level, interrupts)
        self.num_ok += ended["outcomes"].get("ok", 0)
        saved = self._workers.finish_level(level.level)
        has_all_died = self._workers.num_alive() == 0
        dead = self._workers.mend() if not has_all_died else ended["lost_workers"]
        status, note = _judge(ended, dead, saved, bool(interrupts))
        self._run.update_level(
            level.level, status=status, note=note, window_start_unix_ns=ended["window_start_unix_ns"],
            window_end_unix_ns=ended["window_end_unix_ns"],
        )  # fmt: skip
        self._progress.level_ended(ended, note)
        if has_all_died:
            raise RunError(
                f"all load workers died in level {level.level}; what they acknowledged is kept in {self._run.path}, "
                f"why they died in {self._run.path / 'logs'}"
            )
        if dead and not interrupts:
            self._await_workers(self._workers)

    def _follow(self, level: Level, interrupts: Interrupts) -> Event:
        """The level's events as they come, until the one that ends it."""
        is_stopping = False
        timeout_s = level.planned_s + level.grace_s + _CLOSE_TIMEOUT_S
        while timeout_s > 0:
            event = self._master.next_event(_TICK_S)
            if interrupts and not is_stopping:
                is_stopping = True
                self._progress.stage("interrupted; ending the level")
                self._master.send("stop")
            if event is None:
                timeout_s -= _TICK_S
                continue
            if event["event"] == "level_ended":
                return event
            self._take(level, event)
        raise RunError(f"level {level.level} did not end; see {self._run.path / 'logs'}")

    def _take(self, level: Level, event: Event) -> None:
        match event["event"]:
            case "level_started":
                self._run.update_level(level.level, started_unix_ns=event["unix_ns"])
            case "window":
                self._run.update_level(
                    level.level, window_start_unix_ns=event["start_unix_ns"], window_end_unix_ns=event["end_unix_ns"]
                )
            case "progress":
                self._progress.update(event)
            case "error":
                self._progress.note(f"Locust master: {event['message']}")


def _require_reachable(url: str) -> None:
    target = resolve_target(url)
    try:
        socket.create_connection((target.host, target.port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise RunError(f"{target.origin} does not answer ({error.strerror or error}); is the service up?") from error


def _judge(ended: Event, dead: list[str], saved: int, is_interrupted: bool) -> tuple[str, str | None]:
    """The level's status and note."""
    lost = sorted({*ended["lost_workers"], *dead})
    note = f"lost load worker {', '.join(lost)}; {saved} of its rows recovered" if lost else None
    if is_interrupted:
        return "interrupted", "; ".join(["ended by the user", *([note] if note else [])])
    return ("degraded" if lost else "complete"), note


def _locust_arguments(settings: SweepSettings, run_id: str, url: str, model: str, master: Event) -> list[str]:
    options = {
        "-f": str(locustfile()),
        "--master-host": master["host"],
        "--master-port": str(master["port"]),
        "--run-id": run_id,
        "--host": url,
        "--model": model,
        "--mix": settings.mix,
        "--prompt-tokens": settings.prompt_tokens,
        "--max-tokens": settings.max_tokens,
        "--language": settings.language,
        "--seed": str(settings.seed),
        "--protocol": settings.protocol,
        "--client": settings.client,
        "--tokenizer": settings.tokenizer,
        "--request-timeout": f"{settings.request_timeout_s:g}",
    }
    flags = {
        "--ignore-eos": settings.ignore_eos,
        "--continuous-usage": settings.continuous_usage,
        "--trust-env": settings.trust_env,
        "--obey-retry-after": settings.obey_retry_after,
    }
    pairs = (part for option in options.items() for part in option if option[1])
    return ["--worker", *pairs, *(flag for flag, is_set in flags.items() if is_set)]
