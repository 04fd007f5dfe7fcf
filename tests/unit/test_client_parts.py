"""Small parts of the client: routes and proxies, Retry-After, limits, tokenizers, options that exclude each other."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from workers import limits
from workers.errors import SettingsError
from workers.options import check_client
from workers.retry_after import retry_after_ns
from workers.route import find_route
from workers.targets import resolve_target
from workers.tokenizer import TokenCounter

NOW = 1_764_547_200.0  # 2025-12-01 00:00:00 UTC


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("0", 0),
        ("Mon, 01 Dec 2025 00:00:30 GMT", 30),
        ("Sun, 30 Nov 2025 00:00:00 GMT", 0),
        ("1e9", 86_400),
        ("-3", 0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_ns(value, NOW) == (None if seconds is None else seconds * 1e9)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@proxy.example:3128")
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")


@pytest.mark.usefixtures("proxy")
def test_proxies_count_only_when_asked_for() -> None:
    target = resolve_target("https://model.example/v1", {})
    straight = find_route(target, trust_env=False)
    assert (straight.host, straight.port, straight.tunnel_request) == ("model.example", 443, b"")
    assert "not used" in straight.description
    through = find_route(target, trust_env=True)
    assert (through.host, through.port, through.server_name) == ("proxy.example", 3128, "model.example")
    assert through.tunnel_request.startswith(b"CONNECT model.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in through.tunnel_request
    for route in (straight, through):
        assert "p%40ss" not in route.description + repr(route)
    plain = find_route(resolve_target("http://model.example:8000", {}), trust_env=True)
    assert (plain.host, plain.path_prefix, plain.is_tls) == ("proxy.example", "http://model.example:8000", False)
    assert find_route(resolve_target("http://inside.example", {}), trust_env=True).host == "inside.example"


def test_a_proxy_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://proxy.example:1080")
    with pytest.raises(SettingsError, match="only http:// proxies"):
        find_route(resolve_target("http://model.example", {}), trust_env=True)


def test_more_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: raised.append(limit))
    limits.check_limits(100)
    assert not raised
    limits.check_limits(500)
    assert raised == [(628, 1024)]
    with pytest.raises(SettingsError, match="ulimit -n 1128"):
        limits.check_limits(1000)


def test_more_connections_than_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (tmp_path / "range").write_text("40000\t40999\n")
    monkeypatch.setattr(limits, "_PORT_RANGE", tmp_path / "range")
    limits.check_limits(700)
    with pytest.raises(SettingsError, match="allows 1000"):
        limits.check_limits(800)


def test_a_tokenizer_counts_whole_texts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        assert TokenCounter(str(source)).count("a b c a") == 4
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"broken\.json"):
        TokenCounter(str(tmp_path / "broken.json"))


@pytest.mark.parametrize(
    ("client", "protocol", "continuous", "says"),
    [
        ("curl", "openai-chat", False, "curl"),
        ("openai-sdk", "openai-completions", False, "openai-sdk speaks"),
        ("own", "anthropic-messages", True, "has none"),
    ],
)
def test_what_does_not_go_together(client: str, protocol: str, continuous: bool, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        check_client(client, protocol, continuous)
