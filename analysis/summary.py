"""From a run to its answer: levels with verdicts, the knee, one sentence. Pure; nothing is written here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

from analysis.dataset import Level, Run
from analysis.generator import GeneratorCondition, sentences
from analysis.knee import KneeResult, Load, fit_curve
from analysis.metrics import FORMULAS, LevelMetrics, measure, token_series
from analysis.steady_state import NUM_BINS, steadiness
from analysis.verdict import LevelVerdict, judge

UNITS = {"closed": "requests in flight", "open": "requests/s offered"}
#: Blocks of time that a level is resampled in; long enough that neighbours hardly depend on each other.
_NUM_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One level: what was asked, what was measured, and whether it counts."""

    level: int
    concurrency: int
    #: The rate offered (requests/s) in an open loop, the requests in flight in a closed one.
    load: float
    status: str
    note: str | None
    window_s: float
    rows: int
    metrics: LevelMetrics
    verdict: LevelVerdict
    generator: GeneratorCondition | None

    def as_json(self) -> dict[str, Any]:
        flat = {name: value for name, value in asdict(self).items() if name not in ("metrics", "verdict")}
        return flat | {"verdict": self.verdict.kind, "reason": self.verdict.reason} | asdict(self.metrics)


@dataclass(frozen=True, slots=True)
class Summary:
    """The answer of a run."""

    run_id: str
    knee: KneeResult
    sentence: str
    levels: tuple[LevelSummary, ...]
    #: What the loads are: "requests in flight", or "requests/s offered".
    unit: str
    #: What is to be said of the load generator.
    generator: tuple[str, ...]
    manifest: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What ``summary.json`` holds. Units: tokens/s, ms, requests in flight."""
        return {
            "format": 1,
            "run_id": self.run_id,
            **self.knee.as_json(),
            "sentence": self.sentence,
            "levels": [level.as_json() for level in self.levels],
            "generator": list(self.generator),
            "calibration": self.manifest.get("calibration"),
            "formulas": FORMULAS,
            "versions": self.manifest.get("versions", {}),
            "target": self.manifest.get("target", {}),
            "seed": self.manifest.get("seed"),
        }


def summarize(run: Run) -> Summary:
    """Measure and judge every level, fit those that are valid, and say what came out."""
    pairs = [(level, _summarize_level(level, run.load)) for level in run.levels]
    valid = [(level, summary) for level, summary in pairs if summary.verdict.kind == "valid"]
    knee = fit_curve(
        [summary.load for _, summary in valid],
        [summary.metrics.tokens_per_s or 0.0 for _, summary in valid],
        cast(Load, run.load),
        blocks=[token_series(level, _NUM_BLOCKS) for level, _ in valid],
    )
    summaries = tuple(summary for _, summary in pairs)
    run_id = str(run.manifest.get("run_id", run.path.name))
    conditions = [level.generator for level in run.levels if level.generator is not None]
    clocks = {name for level in run.levels for name in level.clock_sources}
    generator = tuple(sentences(run.manifest, conditions, clocks))
    unit = UNITS[run.load]
    return Summary(run_id, knee, _sentence(knee, summaries, unit), summaries, unit, generator, run.manifest)


def _summarize_level(level: Level, load: str) -> LevelSummary:
    metrics = measure(level)
    steady = steadiness(token_series(level, NUM_BINS) if level.window_s else level.sent[:0])
    return LevelSummary(
        level.level, level.concurrency, level.load, level.status, level.note, level.window_s, level.num_rows, metrics,
        judge(level, metrics, steady, load), level.generator,
    )  # fmt: skip


def _sentence(knee: KneeResult, levels: tuple[LevelSummary, ...], unit: str) -> str:
    """The answer in plain words."""
    valid = [level for level in levels if level.verdict.kind == "valid"]
    refused = len(levels) - len(valid)
    aside = f" {refused} of {len(levels)} levels were refused and do not count." if refused else ""
    return _ANSWERS[knee.verdict](knee, valid, unit) + aside


def _found(knee: KneeResult, _: list[LevelSummary], unit: str) -> str:
    assert knee.knee is not None
    return (
        f"Throughput grows with load up to about {knee.knee.x:.3g} {unit} (95 % interval "
        f"{knee.knee.low:.3g} to {knee.knee.high:.3g}) and levels off at {knee.capacity:.4g} tokens/s; "
        "more load than that mostly adds waiting."
    )


def _soft(knee: KneeResult, _: list[LevelSummary], unit: str) -> str:
    assert knee.knee is not None
    return (
        f"Throughput bends gradually, without a sharp knee: the middle of the bend is at {knee.knee.x:.3g} "
        f"{unit} (95 % interval {knee.knee.low:.3g} to {knee.knee.high:.3g}), and it tends to "
        f"{knee.capacity:.4g} tokens/s."
    )


def _retrograde(knee: KneeResult, valid: list[LevelSummary], unit: str) -> str:
    assert knee.knee is not None
    peak = max(valid, key=lambda level: level.metrics.tokens_per_s or 0.0)
    return (
        f"Throughput grows up to about {knee.knee.x:.3g} {unit} (95 % interval {knee.knee.low:.3g} to "
        f"{knee.knee.high:.3g}), peaks at {peak.metrics.tokens_per_s:.4g} tokens/s with {peak.load:g}, and falls "
        "under more load."
    )


def _right_censored(_: KneeResult, valid: list[LevelSummary], unit: str) -> str:
    top = max(valid, key=lambda level: level.load)
    return (
        f"Saturation was not reached: throughput still grows at {top.load:g} {unit} "
        f"({top.metrics.tokens_per_s:.4g} tokens/s). Measure higher levels."
    )


def _left_censored(knee: KneeResult, valid: list[LevelSummary], unit: str) -> str:
    low = min(valid, key=lambda level: level.load)
    return (
        f"The service is saturated from the lowest level, {low.load:g} {unit}, at "
        f"{knee.capacity:.4g} tokens/s; the knee lies below what was measured."
    )


def _invalid(knee: KneeResult, _: list[LevelSummary], unit: str) -> str:
    reason = knee.warnings[0] if knee.warnings else "the levels do not carry a fit"
    return f"No answer: {reason}."


_ANSWERS = {
    "found": _found,
    "no_sharp_knee": _soft,
    "retrograde": _retrograde,
    "right_censored": _right_censored,
    "left_censored": _left_censored,
    "invalid": _invalid,
}
