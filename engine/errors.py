"""What the engine raises: a setting it cannot start with, or a request it can never run."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """A setting or a model the engine cannot start with."""


class RequestError(EngineError, ValueError):
    """A request that can never run; ``param`` names the field at fault where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
