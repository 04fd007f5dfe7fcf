"""Whether a level may enter the fit, and if not, why: one that measures the generator says nothing of the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.dataset import Level
from analysis.metrics import LevelMetrics
from analysis.steady_state import Steadiness

Kind = Literal["valid", "client_limited", "not_steady", "failing", "too_few"]

MAX_FAILED_SHARE = 0.05
MIN_FINISHED = 5
#: Little's law: the mean number in flight is the concurrency that was asked for, give or take this.
MAX_IN_FLIGHT_ERROR = 0.05
#: Open loop: share of arrivals that may stay unsent, and how late requests may leave.
MAX_UNSENT = 0.01
MAX_SCHEDULE_LAG_MS = 20.0
#: Cores that a load process, which has one thread for everything, may use.
MAX_GENERATOR_CPU = 0.95
#: Bursts are said beside the verdict above this share of the rows.
MENTION_BURSTS = 0.05
#: Cut-off requests bias latencies towards the short ones; said beside the verdict above this share.
MENTION_CANCELLED = 0.05


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """A level's verdict and the sentence that explains it."""

    kind: Kind
    reason: str


def judge(level: Level, metrics: LevelMetrics, steady: Steadiness, load: str) -> LevelVerdict:
    """The first objection that holds, in the order of how much it explains."""
    objection = (
        _lost(level)
        or _failing(metrics)
        or _too_few(metrics)
        or _busy(level)
        or (_in_flight(level, metrics) if load == "closed" else _off_schedule(metrics))
        or _not_steady(steady)
    )
    return objection or LevelVerdict("valid", _remark(level, metrics))


def _lost(level: Level) -> LevelVerdict | None:
    if level.status in ("interrupted", "running"):
        return LevelVerdict("too_few", "The level was interrupted before its window ended.")
    if level.status == "degraded":
        return LevelVerdict("client_limited", "A load worker was lost during the level.")
    return None


def _failing(metrics: LevelMetrics) -> LevelVerdict | None:
    if not metrics.requests or metrics.failed / metrics.requests <= MAX_FAILED_SHARE:
        return None
    kinds = ", ".join(f"{n} {name}" for name, n in metrics.outcomes.items() if name != "ok")
    return LevelVerdict(
        "failing",
        f"{metrics.failed} of {metrics.requests} requests failed ({kinds}); at most {MAX_FAILED_SHARE:.0%} may.",
    )


def _too_few(metrics: LevelMetrics) -> LevelVerdict | None:
    if metrics.finished >= MIN_FINISHED:
        return None
    return LevelVerdict("too_few", f"{metrics.finished} requests finished in the window; at least {MIN_FINISHED} must.")


def _busy(level: Level) -> LevelVerdict | None:
    if level.generator is None or level.generator.cpu <= MAX_GENERATOR_CPU:
        return None
    return LevelVerdict(
        "client_limited",
        f"A load process used {level.generator.cpu:.0%} of a core; beyond {MAX_GENERATOR_CPU:.0%} it, not the service, "
        "may have set the pace. Use more load workers.",
    )


def _in_flight(level: Level, metrics: LevelMetrics) -> LevelVerdict | None:
    actual = metrics.mean_in_flight or 0.0
    if abs(actual - level.concurrency) <= MAX_IN_FLIGHT_ERROR * level.concurrency:
        return None
    return LevelVerdict(
        "client_limited",
        f"{actual:.2f} requests were in flight on average where {level.concurrency} were asked for; the generator, not "
        f"the service, set the load (limit {MAX_IN_FLIGHT_ERROR:.0%}).",
    )


def _off_schedule(metrics: LevelMetrics) -> LevelVerdict | None:
    unsent, lag_ms = metrics.outcomes.get("unsent", 0), metrics.schedule_lag_ms.p95 or 0.0
    if unsent > MAX_UNSENT * metrics.requests:
        return LevelVerdict(
            "client_limited",
            f"{unsent} of {metrics.requests} arrivals found the cap on requests in flight and were not sent (limit "
            f"{MAX_UNSENT:.0%}): the service saw less load than this level is called by.",
        )
    if lag_ms > MAX_SCHEDULE_LAG_MS:
        return LevelVerdict(
            "client_limited",
            f"Requests left {lag_ms:.0f} ms late at p95 (limit {MAX_SCHEDULE_LAG_MS:.0f} ms): the generator did not "
            "keep the schedule. Use more load workers.",
        )
    return None


def _not_steady(steady: Steadiness) -> LevelVerdict | None:
    if steady.steady:
        return None
    return LevelVerdict(
        "not_steady",
        f"The token rate moved by {steady.drift:+.0%} across the window, its first {steady.truncated:.0%} by "
        f"{steady.start_change:+.0%} from the rest: warm up or measure longer.",
    )


def _remark(level: Level, metrics: LevelMetrics) -> str:
    remarks = []
    cancelled = metrics.outcomes.get("cancelled", 0)
    if cancelled > MENTION_CANCELLED * metrics.requests:
        remarks.append(
            f"{cancelled} of {metrics.requests} requests were cut off at the level's end; latencies are of the others."
        )
    if level.num_bursts > MENTION_BURSTS * level.num_rows:
        remarks.append(
            f"{level.num_bursts} of {level.num_rows} streams came in one burst: something on the way collects them; "
            "their TTFT and TPOT are its, not the model's."
        )
    return " ".join(remarks)
