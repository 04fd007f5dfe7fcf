"""How far off this machine is as a load generator: one load process against a server whose timing is known.

The process, its rows and its master are those of a sweep; only Ray is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import orjson

from analysis.calibration import CalibrationPoint, Truth, measure_point, trusted_load
from cluster import die_with_parent
from cluster.errors import RunError, UsageError
from cluster.locust_master import Event, LocustMaster
from cluster.locustfile import locustfile
from workers import calibration

DEFAULT_STREAMS = (1, 10, 100, 400, 700, 1000, 1500, 2000, 3000)
_JOIN_TIMEOUT_S = 60.0
_LEVEL_TIMEOUT_S = 180.0
_GRACE_S = 10.0
_OPENER = build_opener(ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class CalibrateSettings:
    """What is measured, and how long."""

    streams: tuple[int, ...] = DEFAULT_STREAMS
    ttft_s: float = 0.05
    itl_s: float = 0.02
    tokens: int = 64
    duration_s: float = 5.0
    client: str = "own"
    #: A locustfile of one's own, for a process that also does something else.
    locustfile: Path | None = None
    #: Go on though a load was not trusted.
    is_exhaustive: bool = False
    extra: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.streams or min(self.streams) < 1:
            raise UsageError("streams are whole numbers from 1 up, such as 10,100,1000")
        if self.tokens < 2:
            raise UsageError(f"tokens is {self.tokens}; a stream needs at least 2 for a TPOT")
        if min(self.ttft_s, self.itl_s) <= 0:
            raise UsageError("ttft and itl are seconds above 0")
        if self.duration_s < 3:
            raise UsageError(f"duration is {self.duration_s:g}; it must be at least 3 s")

    @property
    def answer_s(self) -> float:
        return self.ttft_s + self.tokens * self.itl_s


def calibrate(settings: CalibrateSettings, tell: Callable[[CalibrationPoint], None]) -> list[CalibrationPoint]:
    """Raise the number of streams until a load is not to be trusted; ``tell`` hears of each as it ends.

    Raises:
        RunError: a process that is needed did not start, or died.
        SettingsError: this machine does not allow so many connections.
    """
    points: list[CalibrationPoint] = []
    with tempfile.TemporaryDirectory(prefix="tokenswarm-calibrate-") as folder, ExitStack() as stack:
        bench = stack.enter_context(_bench(settings, Path(folder)))
        for number, streams in enumerate(sorted(settings.streams)):
            points.append(bench.run_level(number, streams))
            tell(points[-1])
            if not (points[-1].is_trusted or settings.is_exhaustive):
                break
    return points


def result_of(settings: CalibrateSettings, points: list[CalibrationPoint]) -> dict[str, Any]:
    """What is stored and printed: every load, and the greatest that is trusted."""
    trusted = trusted_load(points)
    return {
        "created_unix_ns": time.time_ns(),
        "client": settings.client,
        "timing": {"ttft_s": settings.ttft_s, "itl_s": settings.itl_s, "tokens": settings.tokens},
        "points": [point.as_json() for point in points],
        "trusted": trusted and {"streams": trusted.streams, "tokens_per_s": round(trusted.tokens_per_s)},
    }


@dataclass(slots=True)
class _Bench:
    """The server, the master and the load process while they run."""

    settings: CalibrateSettings
    out: Path
    master: LocustMaster
    url: str

    def run_level(self, number: int, streams: int) -> CalibrationPoint:
        settings = self.settings
        before = self._ask("stats")
        warmup_s = 2 * settings.answer_s + 1.0
        self.master.send(
            "level", level=number, users=streams, warmup_s=warmup_s, measure_s=settings.duration_s, grace_s=_GRACE_S
        )
        ended = self.master.wait_for("level_ended", warmup_s + settings.duration_s + _LEVEL_TIMEOUT_S)
        if ended["lost_workers"]:
            raise RunError(f"the load process died at {streams} streams; {_last_words(self.out)}")
        after = self._ask("stats")
        requests = after["requests"] - before["requests"]
        truth = Truth(self._log(), requests, after["most_connections"], settings.ttft_s, settings.itl_s)
        window = ended["window_start_unix_ns"], ended["window_end_unix_ns"]
        return measure_point(self.out, number, streams, window, truth)

    def _ask(self, what: str) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(self._get(what))
        return answer

    def _log(self) -> dict[str, dict[str, Any]]:
        lines = (orjson.loads(line) for line in self._get("log").splitlines())
        return {line["request_id"]: line for line in lines}

    def _get(self, what: str) -> bytes:
        with _OPENER.open(f"{self.url}/{what}", timeout=60) as response:
            body: bytes = response.read()
        return body


@contextmanager
def _bench(settings: CalibrateSettings, out: Path) -> Iterator[_Bench]:
    with ExitStack() as stack:
        timing = ["--ttft", str(settings.ttft_s), "--itl", str(settings.itl_s)]
        server = _start(stack, ["-m", "workers.timing_server", *timing], stdout=subprocess.PIPE)
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        master = LocustMaster("127.0.0.1", out / "master.log")
        stack.callback(master.close)
        ready = master.wait_for("ready", _JOIN_TIMEOUT_S)
        with (out / "locust.log").open("wb") as log:
            worker = _start(stack, _locust(settings, out, url, ready), stdout=log)
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        while (event := master.next_event(1.0)) is None or event["event"] != "workers" or not event["count"]:
            if worker.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"the load process did not start; {_last_words(out)}")
        yield _Bench(settings, out, master, url)


def _start(stack: ExitStack, arguments: list[str], stdout: Any) -> subprocess.Popen[bytes]:
    """A Python process that ends with this one, and at the end of ``stack``."""
    command = [sys.executable, "-S", die_with_parent.__file__, str(os.getpid()), sys.executable, "-P", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _locust(settings: CalibrateSettings, out: Path, url: str, master: Event) -> list[str]:
    options = {
        "-f": str(settings.locustfile or locustfile()),
        "--master-host": master["host"],
        "--master-port": str(master["port"]),
        "--host": url,
        "--out": str(out),
        "--run-id": "calibrate",
        "--worker-name": "w0",
        "--seed": "0",
        "--prompt-tokens": "32",
        "--max-tokens": str(settings.tokens),
        "--client": settings.client,
    }
    return ["-m", "locust", "--worker", *(part for option in options.items() for part in option), *settings.extra]


def _last_words(out: Path) -> str:
    lines = (out / "locust.log").read_text(errors="replace").strip().splitlines()
    return f"its last words: {lines[-1]}" if lines else "it said nothing"


def store(result: dict[str, Any]) -> Path:
    """Keep it for later reports; the file."""
    calibration.save(result)
    return calibration.path()
