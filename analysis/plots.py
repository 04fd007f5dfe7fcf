"""The report's figures, as SVG that takes its ink from the page and as a PNG that stands alone."""

from __future__ import annotations

import io
import re

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.curves import smooth_min
from analysis.knee import KneeResult
from analysis.summary import LevelSummary, Summary

#: Drawn in this colour, and replaced by the page's text colour in the SVG.
_INK = "#1f2328"
_BLUE, _ORANGE, _GREEN = "#2f6fdb", "#d9730d", "#2a9d6f"
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "legend.frameon": False,
}


def throughput_png(summary: Summary) -> bytes:
    """The throughput curve on white."""
    with matplotlib.rc_context(_STYLE):
        figure = _throughput(summary)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()


def throughput_svg(summary: Summary) -> str:
    """Throughput against load: the levels, the fitted line, the knee and its interval."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "throughput"}):
        return _svg(_throughput(summary))


def latency_svg(summary: Summary, measure: str, label: str) -> str:
    """Median and p95 of a latency against load. ``measure`` is a field of LevelMetrics."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": measure}):
        figure, axes = _figure((5.2, 3.2))
        for name, color, marker in (("p50", _BLUE, "o"), ("p95", _ORANGE, "s")):
            points = [
                (level.load, value)
                for level in summary.levels
                if (value := getattr(getattr(level.metrics, measure), name)) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker=marker, color=color, label=name, lw=1.6, ms=5)
        _load_axis(axes, [level.load for level in summary.levels], summary.unit)
        axes.set_ylabel(f"{label} in ms")
        axes.set_ylim(bottom=0)
        if axes.lines:
            axes.legend()
        return _svg(figure)


def _throughput(summary: Summary) -> Figure:
    figure, axes = _figure((8.6, 4.4))
    levels = [level for level in summary.levels if level.metrics.tokens_per_s is not None]
    _draw_fit(axes, summary.knee, [level.load for level in levels])
    valid = [level for level in levels if level.verdict.kind == "valid"]
    _scatter(axes, valid, "measured level", facecolors=_BLUE)
    _scatter(axes, [level for level in levels if level not in valid], "refused level", facecolors="none")
    _load_axis(axes, [level.load for level in levels], summary.unit)
    axes.set_ylabel("throughput in output tokens/s")
    top = max((level.metrics.tokens_per_s or 0.0 for level in levels), default=1.0)
    axes.set_ylim(0, 1.15 * max(top, summary.knee.capacity or 0.0) or 1.0)
    if levels:
        axes.legend(loc="lower right")
    return figure


def _scatter(axes: Axes, levels: list[LevelSummary], label: str, facecolors: str) -> None:
    if levels:
        loads = [level.load for level in levels]
        rates = [level.metrics.tokens_per_s or 0.0 for level in levels]
        axes.scatter(loads, rates, s=42, facecolors=facecolors, edgecolors=_BLUE, zorder=3, label=label)


def _draw_fit(axes: Axes, result: KneeResult, loads: list[float]) -> None:
    if not loads:
        return
    x = np.geomspace(min(loads), max(loads), 200)
    if result.knee is not None and result.per_unit is not None:
        y = smooth_min(x, result.per_unit, result.knee.x, result.sharpness or 32.0)
        axes.plot(x, y, color=_BLUE, lw=1.8, label="fit")
        axes.axvspan(result.knee.low, result.knee.high, color=_ORANGE, alpha=0.15, lw=0, label="95 % interval")
        axes.axvline(result.knee.x, color=_ORANGE, lw=1.6, label=f"knee {result.knee.x:.3g}")
    elif result.per_unit is not None:
        axes.plot(x, result.per_unit * x, color=_BLUE, lw=1.4, ls=":", label="proportional growth")
    if result.capacity is not None:
        axes.axhline(result.capacity, color=_GREEN, lw=1.2, ls="--", label=f"capacity {result.capacity:.4g}")


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _load_axis(axes: Axes, loads: list[float], unit: str) -> None:
    axes.set_xlabel(unit)
    if not loads:
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(loads)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(loads) / 1.2, max(loads) * 1.2)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return text[text.index("<svg") :].replace(_INK, "currentColor")
