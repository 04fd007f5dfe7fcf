"""Whether a level's token rate held still over its window.

Two looks at one series: MSER-5 finds a beginning that differs from the rest, a trend test finds drift. Either counts
only if it is both larger than chance and large enough to matter; closed-loop levels of a few seconds are noisy.

Source: White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997);
the five-observation batches of Spratt (1998).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.dataset import Floats

#: Bins that a level's window is cut into; MSER-5 makes 20 batches of them.
NUM_BINS = 100
BATCH = 5
#: A change of the rate that would move the level's throughput by a tenth and more.
MATERIAL_CHANGE = 0.25
#: Levels are tested by the dozen, and the truncation point is chosen after looking.
SIGNIFICANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The finding. ``drift`` and ``start_change`` are relative to the mean rate."""

    steady: bool
    #: Share of the window that MSER-5 would drop from its beginning.
    truncated: float
    #: How far that beginning lies from the rest.
    start_change: float
    #: Change from the first to the last batch along the fitted line.
    drift: float


def mser5(series: Floats) -> int:
    """Batches to drop so that the mean of the rest has the least standard error; at most half of them."""
    batches = _batch_means(series)
    last = len(batches) // 2
    errors = [batches[d:].var() / (len(batches) - d) for d in range(last + 1)]
    return int(np.argmin(errors))


def steadiness(series: Floats) -> Steadiness:
    """Judges a series of rates in equal bins; one too short for four batches, or of zeros, is not judged."""
    batches = _batch_means(series)
    if len(batches) < 4 or batches.mean() <= 0:
        return Steadiness(True, 0.0, 0.0, 0.0)
    cut = mser5(series)
    start_change, start_p = _start_change(batches, cut)
    drift, drift_p = _drift(batches)
    moved = abs(start_change) > MATERIAL_CHANGE and start_p < SIGNIFICANCE
    drifted = abs(drift) > MATERIAL_CHANGE and drift_p < SIGNIFICANCE
    return Steadiness(not (moved or drifted), cut / len(batches), start_change, drift)


def _batch_means(series: Floats) -> Floats:
    whole = len(series) // BATCH * BATCH
    return series[:whole].reshape(-1, BATCH).mean(axis=1)


def _start_change(batches: Floats, cut: int) -> tuple[float, float]:
    start, rest = batches[:cut], batches[cut:]
    if cut < 2:
        return 0.0, 1.0
    change = float((start.mean() - rest.mean()) / batches.mean())
    spread = np.sqrt((start.var() * len(start) + rest.var() * len(rest)) / (len(batches) - 2))
    shrink = _independent_share(np.concatenate([start - start.mean(), rest - rest.mean()]))
    error = max(spread, 1e-12) * np.sqrt((1 / len(start) + 1 / len(rest)) / shrink)
    dof = max(1.0, len(batches) * shrink - 2)
    return change, float(2 * stats.t.sf(abs(start.mean() - rest.mean()) / error, dof))


def _drift(batches: Floats) -> tuple[float, float]:
    t = np.linspace(-0.5, 0.5, len(batches))
    slope, middle = np.polyfit(t, batches, 1)
    residuals = batches - (slope * t + middle)
    shrink = _independent_share(residuals)
    error = max(np.sqrt((residuals**2).sum() / (len(t) - 2) / (t**2).sum() / shrink), 1e-12)
    dof = max(1.0, len(batches) * shrink - 2)
    return float(slope / batches.mean()), float(2 * stats.t.sf(abs(slope) / error, dof))


def _independent_share(residuals: Floats) -> float:
    """How many independent values one batch is worth, from the correlation of neighbours."""
    power = float((residuals**2).sum())
    if power <= 0:
        return 1.0
    r = float(np.clip((residuals[1:] * residuals[:-1]).sum() / power, 0.0, 0.9))
    return (1 - r) / (1 + r)
