"""Errors in OpenAI's form."""

from __future__ import annotations

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from engine.errors import EngineError, RequestError


class ApiError(Exception):
    """What a client is told: an HTTP status and OpenAI's error object."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def to_api_error(error: Exception) -> ApiError:
    """The API error that a failure inside a handler becomes."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), "invalid_request_error", error.param)
    if isinstance(error, EngineError):
        return ApiError(503, str(error), "service_unavailable_error")
    return ApiError(500, f"{type(error).__name__}: {error}", "internal_server_error")


async def handle(_: Request, error: Exception) -> Response:
    """Exception handler of the app: every failure leaves in the same form."""
    if isinstance(error, RequestValidationError):
        api_error = _from_validation(error)
    elif isinstance(error, HTTPException):
        api_error = ApiError(error.status_code, str(error.detail), "invalid_request_error")
    else:
        api_error = to_api_error(error)
    return Response(orjson.dumps(api_error.body), api_error.status, media_type="application/json")


def _from_validation(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON", "invalid_request_error")
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"parameter {param} is unknown", "invalid_request_error", param)
    return ApiError(400, f"{param or 'body'}: {first['msg']}", "invalid_request_error", param)
