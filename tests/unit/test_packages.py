"""Each top-level package imports from this repository, not from something of the same name elsewhere on the path."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["engine", "workers", "analysis", "cluster", "locustfiles"])
def test_package_is_ours(name: str) -> None:
    assert Path(import_module(name).__file__ or "").parent == ROOT / name
