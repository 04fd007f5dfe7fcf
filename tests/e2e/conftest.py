"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from golden import golden_server


@pytest.fixture
def golden() -> Iterator[str]:
    """Base URL of a golden server."""
    with golden_server() as url:
        yield url
