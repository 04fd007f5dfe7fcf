"""The options that tokenswarm adds to the locust command, and their checked form."""

from __future__ import annotations

import argparse
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.arrivals import Arrivals, parse_arrivals
from workers.errors import SettingsError
from workers.prompt_classes import PromptClass, parse_classes, parse_mix
from workers.prompts import LANGUAGES
from workers.protocols import PROTOCOLS

CLIENTS = OWN, OPENAI_SDK = "own", "openai-sdk"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a load worker sends, and where its rows go."""

    model: str
    mix: dict[str, float]
    classes: dict[str, PromptClass]
    language: str
    arrivals: Arrivals | None
    out: Path
    run_id: str
    seed: int
    worker_name: str
    request_timeout_s: float
    extra: dict[str, Any]
    protocol: str
    client: str
    tokenizer: str
    trust_env: bool
    obey_retry_after: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options on Locust's parser. The key comes from the environment alone."""
    group = parser.add_argument_group("tokenswarm")
    group.add_argument("--model", default="", help="model name; default: the first the service lists")
    group.add_argument(
        "--mix", default="short=0.6,medium=0.3,long=0.1", help="share of each prompt class (default: %(default)s)"
    )
    group.add_argument(
        "--prompt-tokens",
        default="",
        help="tokens of a prompt: a length, or short=32,medium=128,long=512 (default); lengths are numbers, "
        "uniform:16:64, normal:128:20, lognormal:512:0.5 or trace:FILE",
    )
    group.add_argument(
        "--max-tokens", default="", help="tokens of an answer: a length, or short=32,medium=48,long=64 (default)"
    )
    group.add_argument(
        "--arrivals", default="",
        help="open loop: requests come at their times, whoever is still being answered, such as poisson:50, "
        "constant:50, gamma:50:2, ramp:10:100:60, steps:10,20,40:30, day:10:100:600 or trace:FILE:20; the users are "
        "the most that may be in flight (default: closed loop, one request in flight a user)",
    )  # fmt: skip
    group.add_argument("--language", default="both", choices=LANGUAGES, help="language of the prompts")
    group.add_argument("--out", default="", help="directory of this run; must not exist (default: runs/<time>)")
    group.add_argument("--run-id", default="", help="name of this run (default: the name of its directory)")
    group.add_argument(
        "--seed", type=int, default=None, help="the same seed gives the same prompts (default: one of its own each run)"
    )
    group.add_argument("--worker-name", default="", help="name of this worker in the rows (default: its index)")
    group.add_argument("--request-timeout", type=float, default=120.0, help="seconds until a request is given up")
    group.add_argument(
        "--ignore-eos", action="store_true", default=False,
        help="ask for answers of full length (vLLM and tokenswarm's engine take ignore_eos)",
    )  # fmt: skip
    group.add_argument("--protocol", default="openai-chat", choices=PROTOCOLS, help="what the service speaks")
    group.add_argument(
        "--client", default=OWN, choices=CLIENTS,
        help="own: times from the kernel; openai-sdk: times as an application sees them through the official SDK",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer", default="",
        help="tokenizer.json, its folder or a hub name: counts tokens where the service does not tell",
    )  # fmt: skip
    group.add_argument(
        "--continuous-usage", action="store_true", default=False,
        help="ask for the tokens of each chunk (vLLM and SGLang take continuous_usage_stats)",
    )  # fmt: skip
    group.add_argument("--trust-env", action="store_true", default=False, help="take proxies from the environment")
    group.add_argument(
        "--obey-retry-after", action="store_true", default=False,
        help="wait as a 429 or 503 asks, and try again; each attempt is a row",
    )  # fmt: skip


def read_options(options: argparse.Namespace, default_worker: str) -> Settings:
    """The checked form of the options.

    Raises:
        SettingsError: one of them cannot work.
    """
    if options.request_timeout <= 0:
        raise SettingsError(f"request-timeout is {options.request_timeout:g}; it must be above 0")
    check_client(options.client, options.protocol, options.continuous_usage)
    out = Path(options.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}")
    return Settings(
        model=options.model,
        mix=parse_mix(options.mix),
        classes=parse_classes(options.prompt_tokens, options.max_tokens),
        language=options.language,
        arrivals=parse_arrivals(options.arrivals) if options.arrivals else None,
        out=out,
        run_id=options.run_id or out.name,
        seed=options.seed if options.seed is not None else secrets.randbelow(2**31),
        worker_name=options.worker_name or default_worker,
        request_timeout_s=options.request_timeout,
        extra=_extra(options),
        protocol=options.protocol,
        client=options.client,
        tokenizer=options.tokenizer,
        trust_env=options.trust_env,
        obey_retry_after=options.obey_retry_after,
    )


def check_client(client: str, protocol: str, continuous_usage: bool) -> None:
    """
    Raises:
        SettingsError: these do not go together.
    """
    if client not in CLIENTS:
        raise SettingsError(f"client {client!r} is unknown; choose one of {', '.join(CLIENTS)}")
    if client == OPENAI_SDK and protocol != "openai-chat":
        raise SettingsError(f"client openai-sdk speaks openai-chat, not {protocol}; leave out one of the two")
    if continuous_usage and protocol == "anthropic-messages":
        raise SettingsError("continuous-usage is of OpenAI's protocols; anthropic-messages has none")


def _extra(options: argparse.Namespace) -> dict[str, Any]:
    """Members of a request beyond its protocol's own."""
    extra: dict[str, Any] = {}
    if options.ignore_eos:
        extra["ignore_eos"] = True
    if options.continuous_usage:
        extra["stream_options"] = {"continuous_usage_stats": True}
    return extra
