"""What the commands are told, checked before anything is started."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cluster.errors import UsageError
from cluster.plan import Level, at_rates, make_levels, parse_concurrency, parse_rates
from engine.config import EngineConfig
from engine.errors import ConfigError
from workers.arrivals import parse_arrivals
from workers.options import check_client
from workers.prompt_classes import parse_classes, parse_mix
from workers.prompts import LANGUAGES
from workers.targets import resolve_target

ENGINE_TARGET = "engine"


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Engine replicas. ``threads=None`` shares the cores among them and leaves one to the load side.

    Raises:
        UsageError: a number is out of its bounds, or the model is a folder that holds none.
    """

    config: EngineConfig
    replicas: int = 1
    gpus_per_replica: float = 0

    def __post_init__(self) -> None:
        require_at_least("replicas", self.replicas, 1)
        require_at_least("gpus-per-replica", self.gpus_per_replica, 0)
        _require_model(self.config.model)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """A sweep over ``concurrency`` (closed loop), or over ``rate`` (open loop) if that is given.

    Raises:
        UsageError, SettingsError: a value cannot work; nothing was started or written.
    """

    concurrency: str = ""
    rate: str = ""
    process: str = "poisson"
    max_in_flight: int = 256
    target: str = ENGINE_TARGET
    model: str = ""
    workers: int = 2
    warmup_s: float = 2.0
    duration_s: float = 8.0
    grace_s: float = 30.0
    mix: str = "short=0.6,medium=0.3,long=0.1"
    prompt_tokens: str = ""
    max_tokens: str = ""
    language: str = "both"
    seed: int = 0
    collect_rows: bool = False
    ray_address: str | None = None
    protocol: str = "openai-chat"
    client: str = "own"
    tokenizer: str = ""
    request_timeout_s: float = 120.0
    ignore_eos: bool = False
    continuous_usage: bool = False
    trust_env: bool = False
    obey_retry_after: bool = False
    replicas: ReplicaSettings = field(default_factory=lambda: ReplicaSettings(engine_config()))

    def __post_init__(self) -> None:
        require_at_least("workers", self.workers, 1)
        require_at_least("max-in-flight", self.max_in_flight, self.workers)
        if bool(self.concurrency) == bool(self.rate):
            raise UsageError(
                "give either --concurrency (closed loop) or --rate (open loop), such as --concurrency 1,2,4,8"
            )
        parse_mix(self.mix)
        parse_classes(self.prompt_tokens, self.max_tokens)
        if self.language not in LANGUAGES:
            raise UsageError(f"language {self.language!r} is unknown; choose one of {', '.join(LANGUAGES)}")
        if not 0 < self.request_timeout_s < float("inf"):
            raise UsageError(f"request-timeout is {self.request_timeout_s:g} s; it must be above 0")
        check_client(self.client, self.protocol, self.continuous_usage)
        if self.is_engine and self.protocol == "anthropic-messages":
            raise UsageError("the engine does not speak anthropic-messages; choose openai-chat or openai-completions")
        if not self.is_engine:
            resolve_target(self.target)
        _ = self.levels

    @property
    def is_engine(self) -> bool:
        return self.target == ENGINE_TARGET

    @property
    def is_open_loop(self) -> bool:
        return bool(self.rate)

    @property
    def levels(self) -> tuple[Level, ...]:
        times = self.warmup_s, self.duration_s, self.grace_s
        if not self.is_open_loop:
            return make_levels(parse_concurrency(self.concurrency), *times)
        rates = parse_rates(self.rate)
        levels = at_rates(make_levels([self.max_in_flight] * len(rates), *times), rates, self.process)
        for level in levels:
            parse_arrivals(level.arrivals or "")
        return levels

    def as_json(self) -> dict[str, Any]:
        """For the manifest; holds no secrets."""
        settings = asdict(self)
        if not self.is_engine:
            del settings["replicas"]
        return settings


def engine_config(threads: int | None = None, replicas: int = 1, **options: Any) -> EngineConfig:
    """The engine's settings, with the threads that this machine has to spare.

    Raises:
        UsageError: a value is out of its bounds.
    """
    spare = max(1, (num_cores() - 1) // max(replicas, 1))
    try:
        return EngineConfig(threads=spare if threads is None else threads, **options)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require_at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise UsageError(f"{name} is {value:g}; it must be at least {least:g}")


def require_free_port(host: str, port: int) -> None:
    """Raises UsageError if nothing can listen there."""
    if not 1 <= port <= 65535:
        raise UsageError(f"port is {port}; ports go from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port} ({error.strerror}); end what uses it, or choose another with --port"
            ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _require_model(model: str) -> None:
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") != 1
    if model == "demo" or not looks_like_path:
        return
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        missing = "has no config.json" if folder.is_dir() else "is no folder"
        raise UsageError(f"model {model!r} {missing}; give 'demo', a Hugging Face folder, or a hub id such as ORG/NAME")
