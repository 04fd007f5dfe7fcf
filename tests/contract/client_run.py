"""Runs requests with the real client in a process that gevent has patched; prints the rows as JSON lines.

usage: client_run.py URL PROTOCOL MODEL[,MODEL…] COUNT TIMEOUT_S own|own-without-epoll|openai-sdk

COUNT requests of each model, all at once, a connection each. A row has the text of its answer as ``text``.
"""

from gevent import monkey

monkey.patch_all()
import sys  # noqa: E402
from dataclasses import asdict  # noqa: E402

import gevent  # noqa: E402
import orjson  # noqa: E402

from workers import client  # noqa: E402
from workers.client import Client, Wire  # noqa: E402
from workers.protocols import PROTOCOLS  # noqa: E402
from workers.records import Record  # noqa: E402
from workers.sdk_client import SdkClient  # noqa: E402
from workers.targets import resolve_target  # noqa: E402

url, protocol, names, num_each, timeout_s = sys.argv[1:6]
models, count = names.split(","), int(num_each)
kind = sys.argv[6]
client.HAS_EPOLL = kind != "own-without-epoll"
make_client = SdkClient if kind == "openai-sdk" else Client
wire = Wire(resolve_target(url), PROTOCOLS[protocol], float(timeout_s))
records = [
    Record("run", 0, "w0", f"{protocol}/{model}/{i}", "short", f"w0-{i}", url, model, protocol, max_tokens=3)
    for model in models
    for i in range(count)
]
answers: list[list[str]] = [[] for _ in records]
gevent.joinall(
    [
        gevent.spawn(make_client(wire).run, record, "hello", {}, answer)
        for record, answer in zip(records, answers, strict=True)
    ],
    raise_error=True,
)
for record, answer in zip(records, answers, strict=True):
    sys.stdout.buffer.write(orjson.dumps(asdict(record) | {"text": "".join(answer)}) + b"\n")
