"""Runs requests with the real client in a process that gevent has patched; prints the rows as JSON lines.

usage: client_run.py URL MODEL[,MODEL…] COUNT TIMEOUT_S   (COUNT requests of each model, all at once, a connection each)
"""

from gevent import monkey

monkey.patch_all()
import sys  # noqa: E402

import gevent  # noqa: E402
import orjson  # noqa: E402

from workers.client import ChatClient, InFlight  # noqa: E402
from workers.clock import Clock  # noqa: E402
from workers.records import Record  # noqa: E402
from workers.targets import resolve_target  # noqa: E402

url, models, count, timeout_s = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4])
target, clock, in_flight = resolve_target(url), Clock(), InFlight()
records = [
    Record("run", 0, "w0", f"{model}-{i}", "short", f"w0-{i}", url, model, "openai-chat", max_tokens=3)
    for model in models
    for i in range(count)
]
clients = [ChatClient(target, clock, in_flight, timeout_s) for _ in records]
gevent.joinall(
    [gevent.spawn(client.run, record, "hello", {}) for client, record in zip(clients, records, strict=True)],
    raise_error=True,
)
for record in records:
    sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
