"""The way to a target: straight, or through a proxy where the environment names one and that was asked for.

Gevent-free.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from workers.errors import SettingsError
from workers.targets import Target


@dataclass(frozen=True, slots=True)
class Route:
    """Where the socket goes, and what has to be said there."""

    host: str
    port: int
    is_tls: bool
    #: Whose certificate is expected.
    server_name: str
    #: What stands before the path of a request: empty, or the origin for a proxy that forwards plain requests.
    path_prefix: str = ""
    #: Header lines for a proxy.
    headers: str = field(default="", repr=False)
    #: What asks a proxy for a tunnel.
    tunnel_request: bytes = field(default=b"", repr=False)
    description: str = ""


def find_route(target: Target, trust_env: bool) -> Route:
    """The route to a target; proxy variables count only with ``trust_env``.

    Raises:
        SettingsError: the proxy of the environment is of a kind that is not spoken.
    """
    is_tls = target.scheme == "https"
    proxy = _proxy_for(target)
    if not proxy or not trust_env:
        ignored = f"; the proxy {_without_credentials(proxy)} of the environment is not used (--trust-env)"
        described = f"straight to {target.authority}" + (ignored if proxy else "")
        return Route(target.host, target.port, is_tls, target.host, description=described)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    parts = urlsplit(proxy)
    if parts.scheme != "http" or not parts.hostname:
        raise SettingsError(f"proxy {_without_credentials(proxy)!r}: only http:// proxies are spoken")
    authorization = _authorization(parts.username, parts.password)
    host, port = parts.hostname, parts.port or 80
    described = f"through the proxy {host}:{port} to {target.authority}"
    if not is_tls:
        return Route(host, port, False, target.host, target.origin, authorization, description=described)
    place = f"{f'[{target.host}]' if ':' in target.host else target.host}:{target.port}"
    tunnel = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}\r\n".encode()
    return Route(host, port, True, target.host, "", authorization, tunnel, described)


def _proxy_for(target: Target) -> str | None:
    proxies = getproxies_environment()
    if not proxies or proxy_bypass(f"{target.host}:{target.port}", proxies):
        return None
    return proxies.get(target.scheme) or proxies.get("all")


def _authorization(user: str | None, password: str | None) -> str:
    if not user:
        return ""
    secret = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return f"Proxy-Authorization: Basic {secret}\r\n"


def _without_credentials(proxy: str | None) -> str:
    return (proxy or "").rpartition("@")[2] if "@" in (proxy or "") else (proxy or "")
