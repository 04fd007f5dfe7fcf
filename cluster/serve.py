"""Engine replicas that serve until they are told to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from cluster import ray_cluster
from cluster.interrupts import deferred
from cluster.replicas import serving
from cluster.settings import ReplicaSettings

_TICK_S = 0.2


def run_serve(settings: ReplicaSettings, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve until SIGINT (130) or SIGTERM (0); the exit code.

    Raises:
        UsageError: the engine cannot start with these settings.
    """
    with (
        ray_cluster.connected(num_cpus=settings.replicas * (settings.config.threads or 1)),
        serving(settings, host, port) as url,
        deferred() as interrupts,
    ):
        say(f"ready {url}")
        while not interrupts:
            time.sleep(_TICK_S)
    return 0 if interrupts.signal == signal.SIGTERM else 130
