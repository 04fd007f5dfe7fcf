"""What the interpreter lock costs: the engine's step loop in the HTTP side's process, or in one of its own.

usage: bench_gil.py [STREAMS,…] [SECONDS] [MODEL]
Each arrangement serves the model to Locust users in another process, in turn; prints tokens/s and TPOT. The faster the
model's steps, the more of the lock both sides want: the demo model's take 20 ms and more, those of MODEL "tiny", made
here, about 2.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Literal, cast
from urllib.error import URLError

import pyarrow.parquet as pq
import uvicorn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.demo_model import ensure_demo_model
from engine.server.app import build_app

ROOT = Path(__file__).parents[1]
LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "chat.py"), "--headless", "--ignore-eos"]


async def serve(isolation: Literal["process", "thread"], port: int, model: str) -> None:
    engine = AsyncEngine(EngineConfig(model, threads=1), isolation=isolation)
    await engine.start()
    try:
        await uvicorn.Server(uvicorn.Config(build_app(engine, "m"), port=port, log_level="error")).serve()
    finally:
        await engine.close()


def measure(isolation: str, streams: int, seconds: int, model: str) -> tuple[float, float]:
    """Tokens/s and median TPOT in ms."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "serve", isolation, str(port), model])
    url = f"http://127.0.0.1:{port}"
    try:
        await_health(url)
        with tempfile.TemporaryDirectory() as folder:
            options = ["--host", url, "-u", str(streams), "-r", str(streams), "-t", f"{seconds}s", "--seed", "1"]
            out = Path(folder) / "run"
            subprocess.run([*LOCUST, *options, "--out", str(out)], check=True, capture_output=True)
            return summarize(out)
    finally:
        server.terminate()
        server.wait(20)


def summarize(out: Path) -> tuple[float, float]:
    [file] = out.rglob("part-*.parquet")
    rows = [row for row in pq.read_table(file, partitioning=None).to_pylist() if row["outcome"] == "ok"]
    first, last = min(row["sent_ns"] for row in rows), max(row["last_token_ns"] for row in rows)
    tpot = [(r["last_token_ns"] - r["first_token_ns"]) / (r["completion_tokens"] - 1) / 1e6 for r in rows]
    return sum(row["completion_tokens"] for row in rows) / (last - first) * 1e9, statistics.median(tpot)


def await_health(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except (URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"{url} did not become healthy")


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(cast(Literal["process", "thread"], sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
        return
    levels = [int(level) for level in (sys.argv[1] if len(sys.argv) > 1 else "1,16,64").split(",")]
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as folder:
        compare(levels, seconds, tiny_model(Path(folder)) if sys.argv[3:] == ["tiny"] else "demo")


def tiny_model(folder: Path) -> str:
    """Two layers of width 64 behind the demo model's tokenizer."""
    AutoTokenizer.from_pretrained(ensure_demo_model()).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, max_position_embeddings=2048, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def compare(levels: list[int], seconds: int, model: str) -> None:
    print("streams | process tokens/s, TPOT ms | thread tokens/s, TPOT ms | process / thread")
    for streams in levels:
        process, thread = (measure(isolation, streams, seconds, model) for isolation in ("process", "thread"))
        ratio = process[0] / thread[0]
        print(f"{streams} | {process[0]:.1f}, {process[1]:.1f} | {thread[0]:.1f}, {thread[1]:.1f} | {ratio:.2f}")


if __name__ == "__main__":
    main()
