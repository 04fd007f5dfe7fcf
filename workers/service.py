"""What a service tells about itself before a run: its models, and how it counts tokens."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import orjson

from workers.errors import SettingsError
from workers.route import Route
from workers.targets import Target

_TIMEOUT_S = 10.0
_FAILURES = (URLError, OSError, HTTPException, ValueError, KeyError, TypeError, IndexError)


class _NoRedirects(HTTPRedirectHandler):
    """A redirect could carry the key to another host; it is an error instead."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Service:
    """Small questions to a target, answered without streaming."""

    def __init__(self, target: Target, route: Route) -> None:
        self._target = target
        self._opener = build_opener(ProxyHandler({target.scheme: route.proxy} if route.proxy else {}), _NoRedirects())

    def first_model(self) -> str:
        """The first model that the service lists.

        Raises:
            SettingsError: it lists none.
        """
        try:
            return str(self._ask(f"{self._target.base_url}/models")["data"][0]["id"])
        except _FAILURES as error:
            raise SettingsError(
                f"{self._target.base_url}/models does not tell a model ({error}); give one with --model"
            ) from error

    def count_tokens(self, model: str, text: str) -> int:
        """Tokens of a one-message chat with this text, the chat template's included.

        Asked of ``/tokenize`` (vLLM, tokenswarm's engine), else read off the usage of a one-token answer.

        Raises:
            SettingsError: the service tells neither.
        """
        messages = [{"role": "user", "content": text}]
        try:
            return int(self._ask(f"{self._target.origin}/tokenize", {"model": model, "messages": messages})["count"])
        except _FAILURES:
            pass
        body = {"model": model, "messages": messages, "max_tokens": 1}
        try:
            return int(self._ask(f"{self._target.base_url}/chat/completions", body)["usage"]["prompt_tokens"])
        except _FAILURES as error:
            raise SettingsError(f"{self._target.base_url} tells no token counts: {error}") from error

    def _ask(self, url: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "tokenswarm"}
        if self._target.key:
            headers["Authorization"] = f"Bearer {self._target.key}"
        request = Request(url, orjson.dumps(body) if body else None, headers)
        with self._opener.open(request, timeout=_TIMEOUT_S) as response:
            return orjson.loads(response.read())
