"""Where requests go: base URL, key, model. Gevent-free.

Base URLs are taken as people write them: with or without ``/v1``, with a trailing slash, or with the whole path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from workers.errors import SettingsError

_KEY_VARIABLES = ("TAOTOKEN_API_KEY", "OPENAI_API_KEY")
_ENDPOINTS = ("/chat/completions", "/completions", "/messages")
_VERSIONED = re.compile(r"/v\d+$")


@dataclass(frozen=True, slots=True)
class Target:
    """A service. ``prefix`` is the path up to and with the version, such as ``/v1``; the key never shows in a repr."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str | None = field(default=None, repr=False)

    @property
    def base_url(self) -> str:
        return f"{self.origin}{self.prefix}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"


def resolve_target(url: str, environment: Mapping[str, str] | None = None) -> Target:
    """The target of a URL, its key from the environment.

    Raises:
        SettingsError: the URL is none, or the key cannot go into a header.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{url!r} has a port that is none; ports go from 1 to 65535") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{url!r} is no URL; give http://HOST:PORT or https://HOST, with or without /v1")
    port = port or (443 if parts.scheme == "https" else 80)
    key = _key(os.environ if environment is None else environment)
    return Target(parts.scheme, parts.hostname, port, _prefix(parts.path), key)


def _prefix(path: str) -> str:
    path = path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    return path if _VERSIONED.search(path) else f"{path}/v1"


def _key(environment: Mapping[str, str]) -> str | None:
    for name in _KEY_VARIABLES:
        key = environment.get(name, "").strip()
        if key:
            if not key.isascii() or not key.isprintable():
                raise SettingsError(f"{name} holds a character that no header can carry; copy the key again")
            return key
    return None
