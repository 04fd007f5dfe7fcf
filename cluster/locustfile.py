"""Where the locustfile of chats lies, wherever the project was installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def locustfile() -> Path:
    spec = importlib.util.find_spec("locustfiles")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "chat.py"
