"""The endpoint that ``tokenswarm serve`` gives: official client, plain Locust, clients that go away, clean end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from command import Command, parquet_rows, run
from openai import OpenAI

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]
NUM_KV_BLOCKS = 512
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    command = _serve(tmp_path_factory.mktemp("serve"))
    yield command
    command.end()


def _serve(folder: Path) -> Command:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = Command(folder, "serve", "--port", port, "--num-kv-blocks", str(NUM_KV_BLOCKS), "--threads", "1")
    command.wait_until(lambda: "ready http://" in command.stdout)
    command.note_family()
    return command


@pytest.fixture(scope="module")
def url(server: Command) -> str:
    (line,) = server.stdout.splitlines()
    return line.removeprefix("ready ")


def _gauges(url: str) -> dict[str, float]:
    with urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^tokenswarm_(\w+) (\S+)$", text, re.MULTILINE)}


def _assert_idle(url: str, within_s: float = 5) -> None:
    deadline = time.monotonic() + within_s
    while (gauges := _gauges(url))["num_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gauges["num_requests_running"] == gauges["num_requests_waiting"] == 0
    assert gauges["kv_blocks_free"] == gauges["kv_blocks"] == NUM_KV_BLOCKS


def test_openai_client_gets_the_same_answer_streamed_and_whole(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    whole = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    stream = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 12
    _assert_idle(url)


def test_stream_is_not_buffered(url: str) -> None:
    """First and last token of 100 arrive apart by at least half of what the whole takes."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    sent = time.monotonic()
    stream = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=100, stream=True, extra_body={"ignore_eos": True}
    )
    arrivals = [time.monotonic() for chunk in stream if chunk.choices]
    assert len(arrivals) > 50
    assert arrivals[-1] - arrivals[0] > 0.5 * (arrivals[-1] - sent)


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_goes_away_frees_its_blocks(url: str, stream: bool) -> None:
    body = json.dumps({"model": "demo", "messages": HELLO, "stream": stream, "max_tokens": 3000, "ignore_eos": True})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        deadline = time.monotonic() + 5
        while not _gauges(url)["num_requests_running"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _gauges(url)["kv_blocks_free"] < NUM_KV_BLOCKS
    _assert_idle(url)


def test_plain_locust_leaves_a_row_for_each_request_it_counts(url: str, tmp_path: Path) -> None:
    locust = [
        sys.executable, "-m", "locust", "-f", str(REPOSITORY / "locustfiles" / "chat.py"), "--headless", "-u", "8",
        "-r", "8", "-t", "10s", "--host", url, "--max-tokens", "16", "--out", "rows", "--json",
    ]  # fmt: skip
    done = subprocess.run(locust, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert sum(entry["num_requests"] for entry in counted) > 8
    assert sum(entry["num_failures"] for entry in counted) == 0
    num_rows = parquet_rows(tmp_path / "rows", "requests/*/*/*.parquet")
    assert num_rows == sum(entry["num_requests"] for entry in counted)
    _assert_idle(url)


def test_engine_that_cannot_start_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """A folder that looks like a model and is none. Runs beside the other server: two commands on one machine."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["BertModel"]}')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = run(tmp_path, "serve", "--model", "./model", "--port", port)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "config.json" in last


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0)])
def test_server_ends_when_told(server: Command, number: int, code: int) -> None:
    assert server.signal_and_wait(number) == code
    assert server.survivors() == []
