"""How far off the clients are, and what a token costs them: our own, our own in a busy process, the openai SDK.

Other tools that are installed (benchmarks/peers.py) say their own figures beside them.

All against the timing server (50 ms to the first token, then one every 20 ms, 64 tokens), one load process each, as in
``tokenswarm calibrate``. The floor is a bare epoll loop that only receives; it is measured beside our client, pair by
pair. Bounds: docs/decisions/0004-client.md.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import orjson
from peers import run_peers

from analysis.calibration import CalibrationPoint
from cluster.calibrate import CalibrateSettings, calibrate
from cluster.calibration_table import HEADER, line

HERE = Path(__file__).parent
STREAMS, TOKENS, NUM_PAIRS, FLOOR_S = 1000, 64, 3, 6.0


def tell(point: CalibrationPoint) -> None:
    print(line(point), flush=True)


def measure(title: str, streams: tuple[int, ...], client: str = "own", busy: bool = False) -> list[CalibrationPoint]:
    print(f"\n{title}\n{HEADER}", flush=True)
    locustfile = HERE / "busy_chat.py" if busy else None
    settings = CalibrateSettings(streams, tokens=TOKENS, client=client, locustfile=locustfile, is_exhaustive=True)
    return calibrate(settings, tell)


def floor() -> float:
    """CPU microseconds a token of the bare loop."""
    command = [sys.executable, "-m", "workers.timing_server"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        arguments = [server.stdout.readline().decode().strip(), str(STREAMS), str(TOKENS), str(FLOOR_S)]
        done = subprocess.run([sys.executable, HERE / "bare_loop.py", *arguments], capture_output=True, check=True)
    finally:
        server.kill()
        server.wait()
    result = orjson.loads(done.stdout)
    print(
        f"bare loop                {result['tokens_per_s']:8,.0f}         {result['cpu_us_per_token']:8.1f}", flush=True
    )
    return float(result["cpu_us_per_token"])


def main() -> None:
    points = measure("own client", (10, 100, 400))
    at_least = points[0]
    ours, floors = [], []
    print(f"\nown client at {STREAMS} streams, in pairs with the floor", flush=True)
    for _ in range(NUM_PAIRS):
        floors.append(floor())
        ours += measure("own client", (STREAMS,))
    measure("own client, process kept at 90 % CPU by other work", (100, 400, STREAMS), busy=True)
    measure("openai SDK", (10, 50, 100), client="openai-sdk")
    run_peers((10, 100))
    costs = [point.cpu_us_per_token for point in ours]
    marginal = [(point.cpu - at_least.cpu) / (point.tokens_per_s - at_least.tokens_per_s) * 1e6 for point in ours]
    ratio = statistics.median(cost / bare for cost, bare in zip(costs, floors, strict=True))
    print(f"\nµs of CPU a token at {STREAMS} streams, medians of {NUM_PAIRS} pairs:")
    print(
        f"  whole process {statistics.median(costs):.1f}, beyond that at 10 streams {statistics.median(marginal):.1f}"
    )
    print(f"  bare loop {statistics.median(floors):.1f}; ours is {ratio:.2f} times that")


if __name__ == "__main__":
    main()
