"""One request with its whole story: ``python -m workers.probe URL``; ``tokenswarm probe`` runs it."""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import uuid  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

import orjson  # noqa: E402

from workers.client import Client, Wire  # noqa: E402
from workers.errors import SettingsError  # noqa: E402
from workers.protocols import PROTOCOLS  # noqa: E402
from workers.records import Record  # noqa: E402
from workers.service import Service  # noqa: E402
from workers.targets import resolve_target  # noqa: E402


def main() -> int:
    """0 for a whole answer, 1 for any other outcome, 2 for settings that cannot work."""
    options = _parse()
    try:
        if options.timeout <= 0:
            raise SettingsError(f"timeout is {options.timeout:g}; it must be above 0")
        if options.max_tokens < 1:
            raise SettingsError(f"max-tokens is {options.max_tokens}; it must be at least 1")
        target = resolve_target(options.url)
        wire = Wire(target, PROTOCOLS[options.protocol], options.timeout, options.trust_env)
    except SettingsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    record, text = probe(wire, options.model or _first_model(wire), options)
    _show(wire, record, text, options.json)
    return 0 if record.outcome == "ok" else 1


def probe(wire: Wire, model: str, options: argparse.Namespace) -> tuple[Record, str]:
    """Send one prompt; its row and the text of the answer."""
    record = Record(
        "probe", 0, "probe", uuid.uuid4().hex, "short", "probe", wire.target.base_url, model, wire.protocol.name,
        max_tokens=options.max_tokens, intended_ns=time.monotonic_ns(),
    )  # fmt: skip
    answer: list[str] = []
    client = Client(wire)
    client.run(record, options.prompt, {}, answer)
    client.close()
    return record, "".join(answer)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.probe", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", default="")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--prompt", default="Say hello.")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--protocol", default="openai-chat", choices=PROTOCOLS)
    parser.add_argument("--trust-env", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _first_model(wire: Wire) -> str:
    """Where the service does not tell its models, the request itself shows what is wrong."""
    service = Service(wire.target, wire.route, wire.protocol)
    try:
        return service.first_model()
    except SettingsError:
        return "unknown"
    finally:
        service.close()


def _show(wire: Wire, record: Record, text: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(asdict(record) | {"text": text}, option=orjson.OPT_INDENT_2) + b"\n")
        return
    for name, value in _story(wire, record, text):
        if value is not None:
            sys.stdout.write(f"{name:<22}{value}\n")


def _story(wire: Wire, record: Record, text: str) -> list[tuple[str, Any]]:
    chunks = len(record.chunk_ns or [])
    return [
        ("outcome", record.outcome),
        ("error", record.error),
        ("target", f"{record.target}{wire.protocol.path}"),
        ("route", wire.route.description),
        ("model", record.model),
        ("HTTP status", record.http_status),
        ("name looked up in", _ms(record.dns_ns)),
        ("connected in", _ms(record.connect_ns)),
        ("TLS in", _ms(record.tls_ns)),
        ("first byte after", _between(record.sent_ns, record.first_byte_ns)),
        ("TTFT", _between(record.sent_ns, record.first_token_ns)),
        ("of it in a queue", _ms(record.server_queue_ns)),
        ("of it in prefill", _ms(record.server_prefill_ns)),
        ("E2E", _between(record.sent_ns, record.last_token_ns)),
        ("tokens in", record.prompt_tokens),
        (
            "tokens out",
            record.completion_tokens and f"{record.completion_tokens} ({record.token_source}), {chunks} chunks",
        ),
        ("finish reason", record.finish_reason),
        ("clock", record.clock_source and f"{record.clock_source}, off by at most {_ms(record.clock_error_ns)}"),
        ("text", text or None),
    ]


def _between(start_ns: int | None, end_ns: int | None) -> str | None:
    return None if start_ns is None or end_ns is None else _ms(end_ns - start_ns)


def _ms(ns: int | None) -> str | None:
    return None if ns is None else f"{ns / 1e6:.3f} ms"


if __name__ == "__main__":
    sys.exit(main())
