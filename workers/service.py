"""What a service tells about itself before a run: its models, and how it counts tokens."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

import orjson

from workers.errors import SettingsError
from workers.protocols import WireProtocol
from workers.route import Route
from workers.targets import Target

_TIMEOUT_S = 10.0
_FAILURES = (OSError, HTTPException, ValueError, KeyError, TypeError, IndexError)


class Service:
    """Small questions to a target, answered without streaming."""

    def __init__(self, target: Target, route: Route, protocol: WireProtocol) -> None:
        self._target = target
        self._protocol = protocol
        self._listed: list[dict[str, Any]] | None = None
        self._route = route
        self._connection: HTTPConnection | None = None

    def first_model(self) -> str:
        """The first model that the service lists.

        Raises:
            SettingsError: it lists none.
        """
        try:
            return str(self._models()[0]["id"])
        except _FAILURES as error:
            raise SettingsError(
                f"{self._target.base_url}/models does not tell a model ({error}); give one with --model"
            ) from error

    def max_model_len(self, model: str) -> int | None:
        """Tokens of the model's context, where the service tells (vLLM, tokenswarm's engine)."""
        try:
            return next(int(entry["max_model_len"]) for entry in self._models() if entry["id"] == model)
        except (*_FAILURES, StopIteration):
            return None

    def tokenize(self, model: str, text: str) -> int:
        """Tokens of a prompt with this text, the chat template's included, without asking for an answer.

        ``/tokenize`` (vLLM, tokenswarm's engine) or, of Anthropic's protocol, ``/messages/count_tokens``.

        Raises:
            SettingsError: the service does not count.
        """
        messages = [{"role": "user", "content": text}]
        try:
            if self._protocol.name == "anthropic-messages":
                url = f"{self._target.base_url}/messages/count_tokens"
                return int(self._ask(url, {"model": model, "messages": messages})["input_tokens"])
            prompt = {"messages": messages} if self._protocol.name == "openai-chat" else {"prompt": text}
            return int(self._ask(f"{self._target.origin}/tokenize", {"model": model} | prompt)["count"])
        except _FAILURES as error:
            raise SettingsError(f"{self._target.origin} does not count tokens ({error})") from error

    def usage(self, model: str, text: str) -> int:
        """Tokens of a prompt with this text, read off the usage of a one-token answer.

        Raises:
            SettingsError: the service does not tell.
        """
        body = orjson.loads(self._protocol.body(model, text, 1, {}))
        del body["stream"]
        body.pop("stream_options", None)
        try:
            usage = self._ask(f"{self._target.base_url}{self._protocol.path}", body)["usage"]
            return int(usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"])
        except _FAILURES as error:
            raise SettingsError(f"{self._target.base_url} tells no token counts: {error}") from error

    def _models(self) -> list[dict[str, Any]]:
        if self._listed is None:
            listed: list[dict[str, Any]] = self._ask(f"{self._target.base_url}/models")["data"]
            self._listed = listed
        return self._listed

    def _ask(self, url: str, body: dict[str, Any] | None = None) -> Any:
        """One request over a connection that is kept; a redirect, which could carry the key elsewhere, is an error."""
        pairs = (line.partition(": ") for line in self._headers().splitlines())
        headers = {name: value for name, _, value in pairs}
        path = url if self._route.path_prefix else url.removeprefix(self._target.origin)
        is_kept = self._connection is not None
        try:
            return self._exchange(path, body, headers)
        except (OSError, HTTPException):
            self.close()
            if not is_kept:
                raise
        return self._exchange(path, body, headers)  # the service had closed the kept connection

    def _exchange(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
        if self._connection is None:
            self._connection = self._connect()
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, None if body is None else orjson.dumps(body), headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        return orjson.loads(answer)

    def _connect(self) -> HTTPConnection:
        route = self._route
        kind = HTTPSConnection if route.is_tls else HTTPConnection
        connection = kind(route.host, route.port, timeout=_TIMEOUT_S)
        if route.tunnel_request:
            pairs = (line.partition(": ") for line in route.headers.splitlines())
            connection.set_tunnel(self._target.host, self._target.port, {name: value for name, _, value in pairs})
        return connection

    def _headers(self) -> str:
        own = "Content-Type: application/json\r\nUser-Agent: tokenswarm\r\n"
        proxy = "" if self._route.tunnel_request else self._route.headers
        return own + proxy + self._protocol.headers(self._target.key)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
