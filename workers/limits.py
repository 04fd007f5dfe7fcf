"""What this machine allows a load process, looked at before the start and not found out in the middle. Gevent-free."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from workers.errors import SettingsError

#: Descriptors that a process needs beside its connections.
_SPARE_FILES = 128
#: Ports that other programs on this machine may be using.
_SPARE_PORTS = 256
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_limits(num_connections: int) -> None:
    """Make room for so many connections to one address, or say what is in the way.

    Raises:
        SettingsError: the limit of open files or the range of local ports is too small.
    """
    _raise_file_limit(num_connections + _SPARE_FILES)
    ports = num_ports()
    if ports is not None and num_connections > ports - _SPARE_PORTS:
        raise SettingsError(
            f"{num_connections} connections to one address need as many local ports; {_PORT_RANGE} allows {ports}. "
            "Widen it (sysctl net.ipv4.ip_local_port_range), or use load workers on more machines"
        )


def num_ports() -> int | None:
    """Local ports for outgoing connections; None where the system does not tell."""
    try:
        first, last = _PORT_RANGE.read_text().split()
    except (OSError, ValueError):
        return None
    return int(last) - int(first) + 1


def core_warning(num_processes: int) -> str | None:
    """What to say if load processes would share cores; None if each can have one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if num_processes <= cores:
        return None
    return f"{num_processes} load processes share {cores} cores; each should have one, or its own lag enters the load"


def _raise_file_limit(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SettingsError(
            f"{needed - _SPARE_FILES} connections need {needed} open files; this process may have {hard} at most. "
            f"Raise it (ulimit -n {needed}), or use more load workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
