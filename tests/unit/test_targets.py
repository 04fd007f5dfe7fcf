"""Base URLs as people write them, and keys that stay where they are."""

from __future__ import annotations

import pytest

from workers.errors import SettingsError
from workers.targets import resolve_target


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("https://taotoken.net/api", "https://taotoken.net/api/v1"),
        ("https://h/openai/v1", "https://h/openai/v1"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_base_url(url: str, base_url: str) -> None:
    assert resolve_target(url, {}).base_url == base_url


def test_the_key_comes_from_the_environment_and_is_not_shown() -> None:
    target = resolve_target("http://h", {"TAOTOKEN_API_KEY": " sk-first\n", "OPENAI_API_KEY": "sk-second"})
    assert target.key == "sk-first"
    assert "sk-first" not in repr(target)
    assert resolve_target("http://h", {"OPENAI_API_KEY": "sk-second"}).key == "sk-second"
    assert resolve_target("http://h", {}).key is None


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:99999", "http://h:x"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(SettingsError):
        resolve_target(url, {})


def test_a_key_that_no_header_carries() -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        resolve_target("http://h", {"OPENAI_API_KEY": "sk-密钥"})
