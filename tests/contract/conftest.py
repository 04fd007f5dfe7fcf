"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from golden import golden_server


@pytest.fixture(scope="session")
def golden() -> Iterator[str]:
    """Base URL of a golden server."""
    with golden_server() as url:
        yield url


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate authority that the client trusts, and beside it the server's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return folder / "authority.pem"
