"""The knee of curves whose answer is known: published ones, and simulated ones. Never a false find."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from analysis.curve_csv import knee_from_csv
from analysis.curves import smooth_min
from analysis.errors import InputError
from analysis.knee import fit_curve

CURVES = Path(__file__).parents[1] / "data" / "curves"
#: What an honest answer may call each shape of INDEX.csv.
HONEST = {
    "sharp": {"found"},
    "soft": {"found", "no_sharp_knee"},
    "retrograde": {"retrograde", "found"},
    "right-censored": {"right_censored"},
    "left-censored": {"left_censored"},
}
LOADS = np.array([1, 2, 4, 8, 16, 32, 64, 128.0])


def published() -> list[dict[str, str]]:
    with (CURVES / "INDEX.csv").open() as file:
        return list(csv.DictReader(file))


def test_all_published_curves_are_there() -> None:
    assert len(published()) == 18
    assert all((CURVES / row["file"]).is_file() for row in published())


@pytest.mark.parametrize("row", published(), ids=lambda row: row["file"].removesuffix(".csv"))
def test_published_curve(row: dict[str, str]) -> None:
    load = "open" if row["load"].startswith("open") else "closed"
    result = knee_from_csv(CURVES / row["file"], row["x"], row["y"], load)  # type: ignore[arg-type]
    assert result.verdict in HONEST[row["shape"].split("(")[0]]
    if result.knee is None:
        assert result.verdict.endswith("censored")
    else:
        assert float(row["reference_low"]) <= result.knee.x <= float(row["reference_high"])
        assert result.knee.low <= result.knee.x <= result.knee.high


def noisy(curve: np.ndarray, seed: int, scatter: float = 0.03) -> np.ndarray:
    return curve * np.exp(np.random.default_rng(seed).normal(0, scatter, len(curve)))


@pytest.mark.parametrize("sharpness", [2.0, 4.0, 16.0])
def test_a_known_knee_is_found_within_its_interval(sharpness: float) -> None:
    """Ten noisy curves each: the true knee lies inside the 95 % interval in all but at most two."""
    covered = 0
    for seed in range(10):
        result = fit_curve(LOADS, noisy(smooth_min(LOADS, 50.0, 12.0, sharpness), seed), "closed")
        assert result.verdict in ("found", "retrograde")
        assert result.knee is not None
        assert result.knee.x == pytest.approx(12, rel=0.4)
        assert result.capacity == pytest.approx(600, rel=0.15)
        covered += result.knee.low <= 12 <= result.knee.high
    assert covered >= 8


def test_michaelis_menten_is_no_sharp_knee() -> None:
    result = fit_curve(LOADS, LOADS / (0.02 + 0.002 * LOADS), "closed")
    assert result.verdict == "no_sharp_knee"
    assert result.knee is not None
    assert result.knee.x == pytest.approx(10, rel=0.05)
    assert result.sharpness == pytest.approx(1, abs=0.02)


def test_straight_and_flat_curves_have_no_knee() -> None:
    for seed in range(8):
        assert fit_curve(LOADS, noisy(LOADS * 50, seed), "closed").verdict == "right_censored"
        assert fit_curve(LOADS, noisy(LOADS * 0 + 600, seed), "closed").verdict == "left_censored"


def test_noise_is_invalid() -> None:
    values = np.array([500, 20, 900, 3, 400, 70, 800, 10.0])
    assert fit_curve(LOADS, values, "closed").verdict == "invalid"


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1, 2, 4], [10, 20, 30]),
        ([1, 1, 1, 1, 2], [10, 10, 10, 10, 20]),
        ([1, 2, 4, 8], [float("nan"), 0, -1, 5]),
    ],
)
def test_too_little_is_invalid_with_a_reason(x: list[float], y: list[float]) -> None:
    result = fit_curve(x, y, "closed")
    assert result.verdict == "invalid"
    assert "at least 4" in result.warnings[0]


def test_the_same_curve_gives_the_same_answer() -> None:
    y = noisy(smooth_min(LOADS, 50.0, 12.0, 3.0), 1)
    assert fit_curve(LOADS, y, "closed") == fit_curve(LOADS, y, "closed")


def test_the_unit_of_throughput_does_not_matter() -> None:
    y = noisy(smooth_min(LOADS, 50.0, 12.0, 3.0), 1)
    one, thousand = fit_curve(LOADS, y, "closed").knee, fit_curve(LOADS, y * 1000, "closed").knee
    assert one is not None
    assert thousand is not None
    assert one.x == pytest.approx(thousand.x, rel=1e-3)


def test_a_bad_csv_is_named(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("load,rate\n1,10\n2,x\n")
    with pytest.raises(InputError, match="no column 'users'; it has load, rate"):
        knee_from_csv(path, "users", "rate", "closed")
    with pytest.raises(InputError, match="line 3: rate is 'x'"):
        knee_from_csv(path, "load", "rate", "closed")
    with pytest.raises(InputError, match="not readable"):
        knee_from_csv(tmp_path / "nowhere.csv", "load", "rate", "closed")
