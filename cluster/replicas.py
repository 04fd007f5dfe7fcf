"""Engine replicas behind one OpenAI-compatible endpoint: Ray Serve in HAProxy mode, where replicas speak HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from cluster import ray_cluster  # noqa: F401  which sets Serve's environment before Serve is imported
from cluster.errors import RunError, UsageError
from cluster.settings import ReplicaSettings
from engine.config import EngineConfig
from engine.errors import ConfigError

import ray  # isort: skip
from ray import serve  # isort: skip

_REFUSED = "X-Tokenswarm-Refused"
_START_TIMEOUT_S = 300.0
#: The waiting queue lives in the engine, where the scheduler sees it; Serve must never hold a request back.
_MAX_ONGOING_REQUESTS = 100_000
_OPENER = build_opener(ProxyHandler({}))
_APP = "tokenswarm"
_QUIET = {"log_level": "ERROR", "enable_access_log": False}


class EngineReplica:
    """One engine and its HTTP app. An engine that cannot start is told to whoever asks, not retried for ever."""

    async def __init__(self, config: EngineConfig, timeline_dir: Path | None) -> None:  # type: ignore[misc]  # Serve awaits it
        from engine.async_engine import AsyncEngine
        from engine.server.app import build_app

        name = str(serve.get_replica_context().rank.rank)
        self._engine = AsyncEngine(config, timeline_dir=timeline_dir, replica=name)
        self._is_refused = False
        try:
            await self._engine.start()
            self._app: Any = build_app(self._engine, config.model)
        except ConfigError as error:
            self._is_refused = True
            self._app = _refusing_app(str(error))

    def __serve_build_asgi_app__(self) -> Any:
        return self._app

    async def check_health(self) -> None:
        if not self._is_refused and not self._engine.is_alive:
            raise RuntimeError("the engine's step loop is not running")

    async def __del__(self) -> None:
        await self._engine.close()


def _refusing_app(message: str) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    app = FastAPI()

    @app.get("/health")
    async def health() -> PlainTextResponse:
        return PlainTextResponse(message, status_code=503, headers={_REFUSED: "1"})

    return app


@contextmanager
def serving(
    settings: ReplicaSettings, host: str, port: int, timeline_dir: Path | None = None, is_own_cluster: bool = True
) -> Iterator[str]:
    """Within it, replicas answer at the URL it gives; after it, they are gone and their timelines written.

    Raises:
        UsageError: the engine cannot start with these settings, or the cluster lacks what they ask for.
        RunError: the replicas did not come up.
    """
    _require_gpus(settings)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    is_up = False
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=_QUIET)
        serve.run(_application(settings, timeline_dir), name=_APP, route_prefix="/", logging_config=_QUIET)
        _await_health(url)
        is_up = True
        yield url
    finally:
        if not is_own_cluster:
            serve.shutdown()
        elif is_up:
            serve.delete(_APP)  # replicas end in order; Serve itself goes with the cluster


def _application(settings: ReplicaSettings, timeline_dir: Path | None) -> serve.Application:
    deployment = serve.deployment(
        serve.ingress()(EngineReplica),
        name="engine",
        num_replicas=settings.replicas,
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10,
        ray_actor_options={"num_cpus": settings.config.threads or 1, "num_gpus": settings.gpus_per_replica},
    )
    return deployment.bind(settings.config, timeline_dir)


def _require_gpus(settings: ReplicaSettings) -> None:
    wanted, there = settings.gpus_per_replica * settings.replicas, ray.cluster_resources().get("GPU", 0)
    if wanted > there:
        raise UsageError(
            f"{settings.replicas} replicas with {settings.gpus_per_replica:g} GPU each need {wanted:g}; Ray sees "
            f"{there:g}; lower --replicas or --gpus-per-replica"
        )


def _await_health(url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with _OPENER.open(f"{url}/health", timeout=10):
                return
        except HTTPError as error:
            with error:
                if error.headers.get(_REFUSED):
                    raise UsageError(error.read().decode()) from None
        except (URLError, OSError):
            pass
        time.sleep(0.05)
    raise RunError(f"{url}/health did not answer within {_START_TIMEOUT_S:g} s")
