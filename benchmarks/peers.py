"""Other load generators on the timing server, as far as they are installed: what they report of a true 50 and 20 ms."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.demo_model import ensure_demo_model

TOKENS, SECONDS, TIMEOUT_S = 64, 8, 180
HEADER = f"{'client':<12}{'streams':>8}{'requests':>10}   TTFT p50 / p99, ms   ITL p50 / p99, ms"


@dataclass(frozen=True, slots=True)
class Report:
    """What a tool says of itself; the truth is 50 ms and 20 ms. Units: ms."""

    requests: int
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float


def run_peers(streams: tuple[int, ...]) -> None:
    """Print a line for each tool and number of streams."""
    print(f"\nother tools, by their own account (truth: TTFT 50, ITL 20)\n{HEADER}", flush=True)
    for name, run in _PEERS.items():
        if shutil.which(name) is None:
            print(f"{name:<12} not installed here", flush=True)
            continue
        for number in streams:
            print(f"{name:<12}{number:>8}{_line(run, number)}", flush=True)


def _line(run: Callable[[str, int, Path], Report], streams: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, "-m", "workers.timing_server"], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            report = run(f"http://127.0.0.1:{int(server.stdout.readline())}", streams, Path(folder))
        except (subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
            return f"   failed: {error!r}"[:150]
        finally:
            server.kill()
            server.wait()
    return (
        f"{report.requests:>10}{report.ttft_p50:>12.1f} / {report.ttft_p99:<9.1f}"
        f"{report.itl_p50:>9.2f} / {report.itl_p99:<8.2f}"
    )


def _aiperf(url: str, streams: int, folder: Path) -> Report:
    _run(
        "aiperf", "profile", "--model", "timed", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--concurrency", str(streams), "--request-count", str(streams * SECONDS), "--ui", "none",
        "--tokenizer", str(ensure_demo_model()), "--synthetic-input-tokens-mean", "32",
        "--output-tokens-mean", str(TOKENS), "--use-legacy-max-tokens", "--artifact-dir", str(folder),
    )  # fmt: skip
    found = json.loads((folder / "profile_export_aiperf.json").read_text())
    ttft, itl = found["time_to_first_token"], found["inter_token_latency"]
    return Report(round(found["request_count"]["avg"]), ttft["p50"], ttft["p99"], itl["p50"], itl["p99"])


def _guidellm(url: str, streams: int, folder: Path) -> Report:
    output = folder / "report.json"
    _run(
        "guidellm", "run", "--backend", f"kind=openai_http,target={url},model=timed",
        "--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_duration,seconds={SECONDS}",
        "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}",
        "--tokenizer", f"kind=huggingface_auto,model={ensure_demo_model()}",
        "--output", f"kind=json,path={output}", "--disable-console",
    )  # fmt: skip
    metrics: dict[str, Any] = json.loads(output.read_text())["benchmarks"][0]["metrics"]
    ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return Report(
        ttft["count"], ttft["percentiles"]["p50"], ttft["percentiles"]["p99"], itl["percentiles"]["p50"],
        itl["percentiles"]["p99"],
    )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)


_PEERS: dict[str, Callable[[str, int, Path], Report]] = {"aiperf": _aiperf, "guidellm": _guidellm}
