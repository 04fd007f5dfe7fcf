"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from golden import golden_server


@pytest.fixture(scope="session")
def golden() -> Iterator[str]:
    """Base URL of a golden server."""
    with golden_server() as url:
        yield url
