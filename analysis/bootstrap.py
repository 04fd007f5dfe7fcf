"""How sure a knee is: the same fit over curves that could as well have been measured.

A run is resampled in blocks of time within each level, since neighbouring tokens are not independent; a bare curve has
one value a load, so its scatter about the fit is all there is. Either way a draw varies at least as much as the levels
lie off the fitted curve: blocks know nothing of what differs from level to level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.curves import Fit, Floats, ProfileGrid

DRAWS = 400
#: Two-sided 95 %.
QUANTILES = (0.025, 0.975)
#: Repeated levels of one service differ by a few percent even when each looks quiet inside.
SCATTER_FLOOR = {"run": 0.01, "curve": 0.03}


@dataclass(frozen=True, slots=True)
class Draws:
    """Knee and sharpness refitted on each resampled curve."""

    knees: Floats
    sharpness: Floats

    def interval(self, point: float) -> tuple[float, float]:
        """The central 95 % of the knees, widened where needed to hold the point estimate."""
        low, high = np.exp(np.quantile(np.log(self.knees), QUANTILES))
        return float(min(low, point)), float(max(high, point))


def refit_draws(x: Floats, fit: Fit, grid: ProfileGrid, blocks: list[Floats] | None, seed: int) -> Draws:
    """Resamples the curve and refits every draw.

    Args:
        blocks: for each load, throughput in successive blocks of its window; None for a bare curve.
    """
    rng = np.random.default_rng(seed)
    log_curve = np.log(fit.predict(x))
    floor = SCATTER_FLOOR["curve" if blocks is None else "run"]
    spread = np.full(len(x), max(fit.scatter, floor))
    noise = np.zeros((DRAWS, len(x)))
    if blocks is not None:
        noise = np.stack([_block_means(b, rng) for b in blocks], axis=1)
        # What blocks already show is not added a second time.
        spread = np.sqrt(np.maximum(spread**2 - noise.var(axis=0), 0.0))
    best = grid.best(log_curve + noise + rng.normal(size=noise.shape) * spread)
    return Draws(grid.knees[best], grid.sharpness[best])


def _block_means(blocks: Floats, rng: np.random.Generator) -> Floats:
    """Log of resampled mean over measured mean, one value a draw."""
    picks = blocks[rng.integers(len(blocks), size=(DRAWS, len(blocks)))]
    return np.log(np.maximum(picks.mean(axis=1), 1e-3 * blocks.mean()) / blocks.mean())
