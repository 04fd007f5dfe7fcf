"""The throughput curves that are fitted to a load sweep, and the fits themselves.

Every fit minimises the sum of squared log ratios, so a level counts by its relative error whatever its size, and for
a given shape the scale has a closed form: the mean log ratio. What is left to search is one or two shape parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

Floats = npt.NDArray[np.float64]

#: m = 1 is Michaelis-Menten, the softest saturation; beyond 32 a curve cannot be told from a hinge.
SHARPNESS_RANGE = (1.0, 32.0)
#: How far outside the measured loads a fitted N* may lie.
REACH = 8.0


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted model: its curve as a function of load, and how far the data lie from it."""

    name: str
    params: dict[str, float]
    predict: Callable[[Floats], Floats]
    rss: float
    num_params: int
    num_points: int

    @property
    def aicc(self) -> float | None:
        """Akaike's criterion with the small-sample term, scatter counted as a parameter; None where it is undefined."""
        n, k = self.num_points, self.num_params + 1
        if n - k - 1 <= 0:
            return None
        # The floor keeps data without noise comparable: half a percent is finer than any level is measured.
        variance = max(self.rss / n, 0.005**2)
        return float(n * np.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1))

    @property
    def scatter(self) -> float:
        """Relative standard deviation of the points about the curve, corrected for the parameters spent."""
        return float(np.sqrt(self.rss / max(1, self.num_points - self.num_params)))


def smooth_min(x: Floats, per_unit: float | Floats, knee: float | Floats, sharpness: float | Floats) -> Floats:
    """X(N) = γN / (1 + (N/N*)^m)^(1/m)."""
    # logaddexp keeps (N/N*)^m from overflowing at m = 32.
    return per_unit * x * np.exp(-np.logaddexp(0.0, sharpness * np.log(x / knee)) / sharpness)


class ProfileGrid:
    """Smooth-min fits of many curves over the same loads at once, by exhaustion over (N*, m).

    The scale is profiled out, so the misfit of every curve at every grid point is one matrix product.
    """

    def __init__(self, x: Floats, sharpness: Floats | None = None) -> None:
        sharpness = np.geomspace(*SHARPNESS_RANGE, 24) if sharpness is None else sharpness
        knees = np.geomspace(x.min() / REACH, x.max() * REACH, 300)
        knees, sharpness = np.meshgrid(knees, sharpness, indexing="ij")
        self.knees, self.sharpness = knees.ravel(), sharpness.ravel()
        shapes = np.log(smooth_min(x[None, :], 1.0, self.knees[:, None], self.sharpness[:, None]))
        self._shapes = shapes - shapes.mean(axis=1, keepdims=True)
        self._norms = (self._shapes**2).sum(axis=1)

    def best(self, log_y: Floats) -> npt.NDArray[np.intp]:
        """Index of the best grid point for each row. Shape: (curves, loads) to (curves,)."""
        centred = log_y - log_y.mean(axis=1, keepdims=True)
        return np.argmin(self._norms[None, :] - 2.0 * centred @ self._shapes.T, axis=1)


def fit_smooth_min(x: Floats, y: Floats) -> Fit:
    """The smooth minimum of γN and C, from the best grid point and one start on either side of it."""
    log_y = np.log(y)

    def residuals(p: Floats) -> Floats:
        shape = np.log(smooth_min(x, 1.0, float(np.exp(p[0])), float(np.exp(p[1])))) - log_y
        return shape - shape.mean()

    low, high = np.log([x.min() / REACH, SHARPNESS_RANGE[0]]), np.log([x.max() * REACH, SHARPNESS_RANGE[1]])
    grid = ProfileGrid(x)
    best = int(grid.best(log_y[None, :])[0])
    middle = np.log([grid.knees[best], grid.sharpness[best]])
    starts = [np.clip(middle + step, low + 1e-6, high - 1e-6) for step in ((0, 0), (0.7, -0.5), (-0.7, 0.5))]
    fits = [least_squares(residuals, start, bounds=(low, high)) for start in starts]
    knee, sharpness = (float(v) for v in np.exp(min(fits, key=lambda fit: fit.cost).x))
    return _scaled("smooth_min", x, y, lambda n: smooth_min(n, 1.0, knee, sharpness), 3,
                   {"knee": knee, "sharpness": sharpness})  # fmt: skip


def fit_hinge(x: Floats, y: Floats) -> Fit:
    """min(γN, C): for every split of the loads both means are known, so the best split is found by trying all."""
    log_ratio, log_y = np.log(y / x), np.log(y)
    knees = [np.exp(log_y[i:].mean() - log_ratio[:i].mean()) for i in range(1, len(x))]
    # A split whose corner falls outside its own gap is refitted with the corner at the gap's nearer end.
    candidates = [float(np.clip(knee, x[i], x[i + 1])) for i, knee in enumerate(knees)]
    fits = [
        _scaled("hinge", x, y, lambda n, k=knee: np.minimum(n, k), 2, {"knee": knee})  # type: ignore[misc]
        for knee in candidates
    ]
    return min(fits, key=lambda fit: fit.rss)


def fit_michaelis_menten(x: Floats, y: Floats) -> Fit:
    """γN / (1 + N/N*): the smooth minimum at m = 1."""

    def residuals(p: Floats) -> Floats:
        shape = np.log(smooth_min(x, 1.0, float(np.exp(p[0])), 1.0)) - np.log(y)
        return shape - shape.mean()

    bounds = (np.log(x.min() / REACH), np.log(x.max() * REACH))
    fit = least_squares(residuals, [np.log(x).mean()], bounds=bounds)
    knee = float(np.exp(fit.x[0]))
    return _scaled("michaelis_menten", x, y, lambda n: smooth_min(n, 1.0, knee, 1.0), 2, {"knee": knee})


def fit_usl(x: Floats, y: Floats) -> Fit:
    """γN / (1 + α(N−1) + βN(N−1)), Gunther's Universal Scalability Law, α and β not negative."""

    def cost(alpha: float, beta: float, n: Floats) -> Floats:
        return n / np.maximum(1.0 + alpha * (n - 1) + beta * n * (n - 1), 1e-9)

    def residuals(p: Floats) -> Floats:
        shape = np.log(cost(p[0], p[1], x)) - np.log(y)
        return shape - shape.mean()

    starts = ([0.02, 1e-4], [0.2, 1e-3], [1e-3, 1e-6])
    fits = [least_squares(residuals, s, bounds=([0, 0], [1, 1]), x_scale=[1e-2, 1e-4]) for s in starts]
    alpha, beta = (float(v) for v in min(fits, key=lambda fit: fit.cost).x)
    return _scaled("usl", x, y, lambda n: cost(alpha, beta, n), 3, {"alpha": alpha, "beta": beta})


def fit_linear(x: Floats, y: Floats) -> Fit:
    """γN: no sign of saturation."""
    return _scaled("linear", x, y, lambda n: n * 1.0, 1, {})


def fit_constant(x: Floats, y: Floats) -> Fit:
    """C: saturated at every load."""
    return _scaled("constant", x, y, lambda n: np.ones_like(n), 1, {})


def _scaled(
    name: str, x: Floats, y: Floats, shape: Callable[[Floats], Floats], num_params: int, params: dict[str, float]
) -> Fit:
    log_ratio = np.log(y) - np.log(shape(x))
    scale = float(np.exp(log_ratio.mean()))
    rss = float(((log_ratio - log_ratio.mean()) ** 2).sum())
    return Fit(name, params | {"scale": scale}, lambda n: scale * shape(n), rss, num_params, len(x))
