"""A run's answer as files: summary.json, report.html, knee.png, each appearing whole."""

from __future__ import annotations

import html
import os
from pathlib import Path
from string import Template
from typing import Any

import orjson

from analysis.dataset import load_run
from analysis.metrics import FORMULAS, Distribution
from analysis.plots import latency_svg, throughput_png, throughput_svg
from analysis.summary import LevelSummary, Summary, summarize


def analyze(run_dir: Path) -> Summary:
    """Work a run out from its rows alone and write the answer beside them.

    Raises:
        InputError: the directory is no run, or its rows cannot be read.
    """
    summary = summarize(load_run(run_dir))
    _write(run_dir / "summary.json", orjson.dumps(summary.as_json(), option=orjson.OPT_INDENT_2))
    _write(run_dir / "knee.png", throughput_png(summary))
    _write(run_dir / "report.html", render(summary).encode())
    return summary


def render(summary: Summary) -> str:
    """The report as one HTML page that loads nothing and runs nothing."""
    is_open = summary.manifest.get("load") == "open"
    return _PAGE.substitute(
        unit=summary.unit.replace(" ", "<br>", 1),
        intended='<th colspan="4">TTFT from intended in ms</th>' if is_open else "",
        intended_cells="<th>mean</th><th>p50</th><th>p95</th><th>p99</th>" if is_open else "",
        run_id=html.escape(summary.run_id),
        verdict=html.escape(summary.knee.verdict.replace("_", " ")),
        sentence=html.escape(summary.sentence),
        warnings="".join(f"<li>{html.escape(warning)}</li>" for warning in summary.knee.warnings),
        target=_definitions(summary.manifest.get("target", {})),
        throughput=throughput_svg(summary),
        ttft=latency_svg(summary, "ttft_ms", "TTFT"),
        tpot=latency_svg(summary, "tpot_ms", "TPOT"),
        rows="".join(_row(level, is_open) for level in summary.levels),
        refused="".join(
            _refusal(level, summary.unit) for level in summary.levels if level.verdict.reason or level.note
        ),
        generator="".join(f"<p>{html.escape(sentence)}</p>" for sentence in summary.generator),
        models=_models(summary),
        formulas=_definitions(FORMULAS),
        settings=_definitions(_flat(summary.manifest.get("settings", {})) | {"seed": summary.manifest.get("seed")}),
        versions=_definitions(summary.manifest.get("versions", {})),
    )


def _row(level: LevelSummary, is_open: bool) -> str:
    metrics = level.metrics
    failed = ", ".join(f"{count} {name}" for name, count in metrics.outcomes.items() if name != "ok") or "none"
    cells = [
        f"{level.load:g}",
        str(metrics.requests),
        failed,
        _number(metrics.tokens_per_s),
        _number(metrics.mean_in_flight, 2),
        *(_cells(metrics.ttft_from_intended_ms) if is_open else []),
        *_cells(metrics.ttft_ms),
        *_cells(metrics.tpot_ms),
        *_cells(metrics.e2e_ms),
        level.verdict.kind,
    ]
    return f'<tr class="{level.verdict.kind}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n"


def _cells(values: Distribution) -> list[str]:
    return [_number(values.mean), _number(values.p50), _number(values.p95), _number(values.p99)]


def _refusal(level: LevelSummary, unit: str) -> str:
    text = " ".join(part for part in (level.verdict.reason, level.note) if part)
    return text and f"<li>{level.load:g} {unit}: {html.escape(text)}</li>"


def _models(summary: Summary) -> str:
    models = summary.knee.models or {}
    known = sorted(((aicc, name) for name, aicc in models.items() if aicc is not None))
    return _definitions({name.replace("_", " "): f"{aicc:.1f}" for aicc, name in known}) or "<p>none was fitted</p>"


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _definitions(pairs: dict[str, Any]) -> str:
    items = (f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(str(v))}</dd>" for k, v in pairs.items())
    return f"<dl>{''.join(items)}</dl>" if pairs else ""


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tokenswarm: $run_id</title>
<style>
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --soft: #f3f5f8; --line: #d6dae0; --mark: #d9730d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e6ea; --paper: #14171c; --soft: #1d2127; --line: #343a42; }
}
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 68rem; padding: 0 1.2rem; }
header p.answer { font-size: 1.3rem; line-height: 1.45; border-left: 4px solid var(--mark); padding-left: 1rem; }
h1 { font-size: 1.05rem; font-weight: 600; opacity: .75; }
h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.tag { font-size: .8rem; border: 1px solid var(--mark); color: var(--mark); border-radius: 1rem; padding: .1rem .6rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; width: 100%; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { background: var(--soft); }
tbody tr:not(.valid) { opacity: .65; font-style: italic; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .88rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; } section { break-inside: avoid; } }
</style>
</head>
<body>
<header>
<h1>tokenswarm – $run_id</h1>
<p class="answer">$sentence</p>
<p><span class="tag">$verdict</span></p>
<ul>$warnings</ul>
</header>
<section><h2>Throughput against load</h2>$throughput</section>
<section><h2>Latency against load</h2><div class="figures"><div>$ttft</div><div>$tpot</div></div></section>
<section><h2>Levels</h2>
<div class="wide"><table>
<thead>
<tr><th rowspan="2">$unit</th><th rowspan="2">requests</th><th rowspan="2">not ok</th>
<th rowspan="2">tokens/s</th><th rowspan="2">in flight<br>measured</th>$intended<th colspan="4">TTFT in ms</th>
<th colspan="4">TPOT in ms</th><th colspan="4">E2E in ms</th><th rowspan="2">verdict</th></tr>
<tr>$intended_cells<th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>mean</th><th>p50</th><th>p95</th><th>p99</th>
<th>mean</th><th>p50</th><th>p95</th><th>p99</th></tr>
</thead>
<tbody>
$rows</tbody>
</table></div>
<ul>$refused</ul>
</section>
<section><h2>The load generator</h2>$generator</section>
<section><h2>What was measured</h2>$target</section>
<section><h2>Formulas</h2>$formulas</section>
<section><h2>Models tried</h2><p>The knee is N* of the smooth min X(N) = γN / (1 + (N/N*)<sup>m</sup>)<sup>1/m</sup>.
AICc of each model, less is better:</p>$models</section>
<section><h2>Settings</h2>$settings</section>
<section><h2>Versions</h2>$versions</section>
</body>
</html>
""")
