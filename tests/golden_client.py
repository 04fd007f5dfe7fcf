"""Runs the real client in a process of its own, as a load worker does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY = "golden-secret"


def run_client(
    url: str,
    models: str,
    count: int = 1,
    timeout_s: float = 10,
    protocol: str = "openai-chat",
    client: str = "own",
) -> list[dict[str, Any]]:
    """The rows of ``count`` requests of each model (comma-separated), all at once."""
    script = Path(__file__).parent / "contract" / "client_run.py"
    command = [sys.executable, str(script), url, protocol, models, str(count), str(timeout_s), client]
    environment = os.environ | {"OPENAI_API_KEY": KEY}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == count * len(models.split(","))
    return rows
