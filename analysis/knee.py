"""Where throughput stops growing with load, as a verdict with numbers and never a bare number.

A knee is reported only where the measured range shows both sides of it: levels that still grow with the load, and
levels that no longer do. Both are judged on the fitted curve and on nine in ten of its resampled refits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from analysis.bootstrap import Draws, refit_draws
from analysis.curves import (
    SHARPNESS_RANGE,
    Floats,
    ProfileGrid,
    fit_constant,
    fit_hinge,
    fit_linear,
    fit_michaelis_menten,
    fit_smooth_min,
    fit_usl,
    smooth_min,
)

Verdict = Literal["found", "right_censored", "left_censored", "no_sharp_knee", "retrograde", "invalid"]
Load = Literal["closed", "open"]

MIN_LOADS = 4
#: Points further than this from every model are noise.
MAX_SCATTER = 0.25
#: The highest load must carry this share of the fitted capacity, or capacity is extrapolated by over a third.
SATURATED_SHARE = 0.75
#: ... and proportional growth must have promised this much more there.
SATURATED_SHORTFALL = 1.25
#: The lowest load must carry less than this share, or the growing side was never seen.
GROWING_SHARE = 0.75
#: Three levels that grow by less than this power of the load are a plateau.
FLAT_ELASTICITY = 0.15
#: A side of the knee has to stand out from the scatter by this many standard deviations.
CLEAR_OF_SCATTER = 3.0
#: This share of the refits has to show both sides as well.
AGREEMENT = 0.9
#: Below this m the bend is spread over more than a decade of load.
SHARP = 1.25
#: Throughput after the peak is falling when it is lower by this ...
RETROGRADE_FALL = 0.04
#: ... and by this many standard deviations of the scatter: the peak of a noisy plateau is its luckiest level.
CLEAR_FALL, CLEAR_STEADY_FALL = 4.0, 2.0
#: Half of that will do where the USL, which can fall, describes the levels better than the smooth minimum.
DOUBT_WITH_USL = 0.5


@dataclass(frozen=True, slots=True)
class Interval:
    """A point with its 95 % interval."""

    x: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class KneeResult:
    """The answer for one curve. Capacity is in the unit of y, ``per_unit`` in y per unit of load."""

    verdict: Verdict
    knee: Interval | None = None
    capacity: float | None = None
    sharpness: float | None = None
    per_unit: float | None = None
    models: dict[str, float | None] | None = None
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The form that the command line prints."""
        return {
            "verdict": self.verdict,
            "knee": asdict(self.knee) if self.knee else None,
            "capacity": self.capacity,
            "sharpness": self.sharpness,
            "models": self.models or {},
            "warnings": list(self.warnings),
        }


def fit_curve(
    x: Sequence[float] | Floats,
    y: Sequence[float] | Floats,
    load: Load,
    blocks: Sequence[Floats] | None = None,
    seed: int = 0,
) -> KneeResult:
    """Fits a throughput curve and says what it shows.

    Args:
        x: concurrency for a closed loop, offered rate for an open one.
        blocks: for each point, throughput in successive blocks of its window, where the run is at hand.
    """
    points = _usable(np.asarray(x, dtype=float), np.asarray(y, dtype=float), blocks)
    warnings = list(points.warnings)
    if len(np.unique(points.x)) < MIN_LOADS:
        return _invalid(f"{len(np.unique(points.x))} usable loads; a knee needs at least {MIN_LOADS}", warnings)
    competitors = [
        fit(points.x, points.y) for fit in (fit_hinge, fit_michaelis_menten, fit_usl, fit_linear, fit_constant)
    ]
    smooth = fit_smooth_min(points.x, points.y)
    models = {fit.name: fit.aicc for fit in (smooth, *competitors)}
    scatter = min(fit.scatter for fit in (smooth, *competitors))
    if scatter > MAX_SCATTER:
        return _invalid(
            f"the points lie {scatter:.0%} off every model; above {MAX_SCATTER:.0%} a fit says nothing: measure longer",
            warnings, models,
        )  # fmt: skip
    prefers_usl = _prefers(models, "usl", "smooth_min")
    falling = _falls_after_peak(points.x, points.y, DOUBT_WITH_USL if prefers_usl else 1.0)
    if falling:
        points = points.held_at_peak()
        warnings.append(
            f"throughput falls by {falling:.0%} after its peak; the knee is the onset, fitted with the peak held"
        )
    return _judge(points, load, bool(falling), seed, models, warnings)


@dataclass(frozen=True, slots=True)
class _Points:
    x: Floats
    y: Floats
    blocks: list[Floats] | None
    warnings: tuple[str, ...]

    def held_at_peak(self) -> _Points:
        """The curve as if load beyond the peak were queued rather than admitted."""
        return _Points(self.x, np.maximum.accumulate(self.y), self.blocks, self.warnings)


def _usable(x: Floats, y: Floats, blocks: Sequence[Floats] | None) -> _Points:
    keep = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    order = np.flatnonzero(keep)[np.argsort(x[keep], kind="stable")]
    warnings = []
    if dropped := int((~keep).sum()):
        warnings.append(f"{dropped} of {len(x)} points left out: load and throughput must be finite and above 0")
    if len(np.unique(x[order])) < len(order):
        warnings.append("some loads appear more than once; each point counts by itself")
    if blocks is None:
        warnings.append(
            "one value a load: the interval rests on the scatter about the fit, not on repeated measurement"
        )
    return _Points(x[order], y[order], None if blocks is None else [blocks[i] for i in order], tuple(warnings))


def _judge(
    points: _Points, load: Load, falling: bool, seed: int, models: dict[str, float | None], warnings: list[str]
) -> KneeResult:
    x, y = points.x, points.y
    fit = fit_smooth_min(x, y) if load == "closed" else fit_hinge(x, y)
    knee, sharpness = fit.params["knee"], fit.params.get("sharpness", SHARPNESS_RANGE[1])
    grid = ProfileGrid(x) if load == "closed" else ProfileGrid(x, np.array([SHARPNESS_RANGE[1]]))
    draws = refit_draws(x, fit, grid, points.blocks, seed)
    capacity, per_unit = fit.params["scale"] * knee, fit.params["scale"]
    growing, saturated = _sides(x, knee, sharpness, fit.scatter, draws)
    saturated = saturated or _plateau(x, y)
    if not (growing or saturated):
        growing, saturated = _clearly(models, "linear"), _clearly(models, "constant")
    if not (growing and saturated):
        return _one_sided(growing, saturated, points, capacity, per_unit, models, warnings)
    if load == "closed" and sharpness < SHARP:
        warnings.append(f"throughput bends over more than a decade of load (m = {sharpness:.2f}); N* is its middle")
    return KneeResult(
        "retrograde" if falling else "no_sharp_knee" if sharpness < SHARP else "found",
        Interval(knee, *draws.interval(knee)), capacity, sharpness if load == "closed" else None, per_unit,
        models, tuple(warnings),
    )  # fmt: skip


def _sides(x: Floats, knee: float, sharpness: float, scatter: float, draws: Draws) -> tuple[bool, bool]:
    """Whether the range shows the growing side of the knee, and whether it shows the saturated one."""
    knees, sharp = np.append(knee, draws.knees), np.append(sharpness, draws.sharpness)
    first, last = (smooth_min(n, 1.0, knees, sharp) for n in (x[:1], x[-1:]))
    clear = np.exp(CLEAR_OF_SCATTER * scatter)
    growing = first / knees <= min(GROWING_SHARE, 1 / clear)
    saturated = (last / knees >= SATURATED_SHARE) & (x[-1] / last >= max(SATURATED_SHORTFALL, clear))
    return _agreed(growing), _agreed(saturated)


def _agreed(shown: npt.NDArray[np.bool_]) -> bool:
    """The fit itself comes first, its refits after it."""
    return bool(shown[0]) and float(shown[1:].mean()) >= AGREEMENT


def _plateau(x: Floats, y: Floats) -> bool:
    """Whether three and more levels in the upper half of the loads lie flat, whatever the model makes of the bend."""
    upper = x >= x[-1] / 2
    if upper.sum() < 3 or y[upper].mean() / y[0] < 2:
        return False
    return bool(np.polyfit(np.log(x[upper]), np.log(y[upper]), 1)[0] <= FLAT_ELASTICITY)


def _clearly(models: dict[str, float | None], name: str) -> bool:
    """Whether one model is the best by a margin that AICc calls considerable."""
    known = {model: aicc for model, aicc in models.items() if aicc is not None}
    return all(known[name] + 4 <= aicc for model, aicc in known.items() if model != name)


def _one_sided(
    growing: bool, saturated: bool, points: _Points, capacity: float, per_unit: float,
    models: dict[str, float | None], warnings: list[str],
) -> KneeResult:  # fmt: skip
    if growing:
        warnings.append(
            f"saturation is not shown up to a load of {points.x[-1]:g}; capacity is at least {points.y.max():.4g}: "
            "measure higher loads"
        )
        return KneeResult("right_censored", per_unit=per_unit, models=models, warnings=tuple(warnings))
    if saturated:
        warnings.append(f"saturated from the first load, {points.x[0]:g}: measure lower loads")
        return KneeResult("left_censored", capacity=capacity, models=models, warnings=tuple(warnings))
    return _invalid("the scatter hides both growth and saturation: measure longer", warnings, models)


def _prefers(models: dict[str, float | None], one: str, other: str) -> bool:
    first, second = models[one], models[other]
    return first is not None and second is not None and first < second


def _falls_after_peak(x: Floats, y: Floats, doubt: float) -> float:
    """The share that throughput lost from its peak to the highest load, or 0 where that may be scatter.

    Either every level after the peak is clearly lower, or three and more fall one after another.
    """
    peak = int(np.argmax(y))
    tail, fall = y[peak + 1 :], 1 - y[-1] / y.max()
    if not len(tail):
        return 0.0
    scatter = doubt * fit_smooth_min(x, np.maximum.accumulate(y)).scatter
    falls_steadily = len(tail) >= 3 and bool(np.all(np.diff(y[peak:]) < 0))
    all_fell = 1 - tail.max() / y.max() > max(RETROGRADE_FALL, CLEAR_FALL * scatter)
    steady_fall = falls_steadily and fall > max(RETROGRADE_FALL, CLEAR_STEADY_FALL * scatter)
    return float(fall) if steady_fall or all_fell else 0.0


def _invalid(reason: str, warnings: list[str], models: dict[str, float | None] | None = None) -> KneeResult:
    return KneeResult("invalid", models=models, warnings=(reason, *warnings))
