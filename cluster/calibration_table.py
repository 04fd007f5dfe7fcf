"""A calibration in words."""

from __future__ import annotations

from typing import Any

from analysis.calibration import MAX_TPOT_ERROR_MS, MAX_TTFT_ERROR_MS, CalibrationPoint

HEADER = (
    "                                                TTFT error, ms     TPOT error, ms\n"
    "streams  requests  tokens/s  cores  µs a token    p50      p99       p50      p99   verdict"
)


def line(point: CalibrationPoint) -> str:
    ttft, tpot = point.ttft_error_ms, point.tpot_error_ms
    return (
        f"{point.streams:7d}  {point.requests:8d}  {point.tokens_per_s:8,.0f}  {point.cpu:5.2f}  "
        f"{point.cpu_us_per_token:10.1f}  {ttft['p50']:6.3f}  {ttft['p99']:7.3f}  {tpot['p50']:8.4f} {tpot['p99']:8.4f}"
        f"   {point.verdict}"
    )


def conclusion(result: dict[str, Any]) -> str:
    bound = f"TTFT within {MAX_TTFT_ERROR_MS:g} ms and TPOT within {MAX_TPOT_ERROR_MS:g} ms at p99"
    trusted = result["trusted"]
    if trusted is None:
        return f"no load was measured with {bound}: do not trust results of this machine"
    return f"trusted up to {trusted['streams']} streams or {trusted['tokens_per_s']:,} tokens/s a load process: {bound}"
