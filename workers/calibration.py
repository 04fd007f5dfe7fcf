"""What ``tokenswarm calibrate`` found of this machine, kept for every later report. Gevent-free."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import orjson


def path() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "tokenswarm" / "calibration.json"


def machine() -> dict[str, Any]:
    """What must be the same for a calibration to hold."""
    return {
        "host": platform.node(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def save(result: dict[str, Any]) -> None:
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(orjson.dumps({"machine": machine()} | result, option=orjson.OPT_INDENT_2))
    os.replace(unfinished, target)


def load() -> dict[str, Any] | None:
    """The calibration of this machine; None where there is none, or it was made on another."""
    try:
        result: dict[str, Any] = orjson.loads(path().read_bytes())
        return result if result["machine"] == machine() else None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def brief() -> dict[str, Any] | None:
    """What a run's manifest says of it: when it was made, and the load up to which results may be trusted."""
    result = load()
    return None if result is None else {name: result.get(name) for name in ("created_unix_ns", "client", "trusted")}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
