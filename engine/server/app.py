"""The OpenAI-compatible HTTP app over one engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from engine.async_engine import AsyncEngine
from engine.errors import EngineError
from engine.sampling_params import SamplingParams
from engine.server import errors
from engine.server.errors import ApiError, to_api_error
from engine.server.generation import TextDelta, TextGenerator, load_tokenizer
from engine.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, TokenizeRequest
from engine.server.stream import DONE, ChunkWriter, Envelope, usage_of, whole_answer

_DEFAULT_COMPLETION_TOKENS = 16
RequestId = Annotated[str | None, Header(alias="X-Request-Id")]


def build_app(engine: AsyncEngine, model_name: str) -> FastAPI:
    """The app over a started engine."""
    app = FastAPI(title="tokenswarm engine", version=version("tokenswarm"))
    for kind in (ApiError, EngineError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, errors.handle)
    _add_status_routes(app, engine, model_name)
    _add_generation_routes(app, engine, model_name, TextGenerator(engine, load_tokenizer(engine.path)))
    return app


def _add_status_routes(app: FastAPI, engine: AsyncEngine, model_name: str) -> None:
    model = {
        "id": model_name,
        "object": "model",
        "owned_by": "tokenswarm",
        "max_model_len": engine.config.max_model_len,
    }

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if engine.is_alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version("tokenswarm")}

    @app.get("/v1/engine")
    async def show_engine() -> dict[str, Any]:
        return {"model": model_name, "settings": asdict(engine.config), "stats": asdict(engine.stats)}

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{model_id:path}")
    async def show_model(model_id: str) -> dict[str, Any]:
        _require_model(model_id, model_name)
        return model


def _add_generation_routes(app: FastAPI, engine: AsyncEngine, model_name: str, generator: TextGenerator) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, x_request_id: RequestId = None) -> Response:
        _require_model(body.model, model_name)
        token_ids = await generator.encode_chat([message.plain() for message in body.messages])
        params = body.sampling_params(max_tokens=max(1, (engine.config.max_model_len or 0) - len(token_ids)))
        return await _answer(request, generator, body, token_ids, params, x_request_id)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request, x_request_id: RequestId = None) -> Response:
        _require_model(body.model, model_name)
        prompt = body.single_prompt
        token_ids = await generator.encode(prompt) if isinstance(prompt, str) else prompt
        params = body.sampling_params(max_tokens=_DEFAULT_COMPLETION_TOKENS)
        return await _answer(request, generator, body, token_ids, params, x_request_id)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        if body.messages is not None:
            token_ids = await generator.encode_chat([message.plain() for message in body.messages])
        else:
            token_ids = await generator.encode(body.prompt or "")
        return {"count": len(token_ids), "max_model_len": engine.config.max_model_len, "tokens": token_ids}


def _require_model(asked: str, served: str) -> None:
    if asked != served:
        message = f"model {asked!r} does not exist; this server has {served!r}"
        raise ApiError(404, message, "invalid_request_error", "model", "model_not_found")


async def _answer(
    request: Request,
    generator: TextGenerator,
    body: GenerationRequest,
    token_ids: list[int],
    params: SamplingParams,
    caller_id: str | None,
) -> Response:
    request_id = caller_id or uuid.uuid4().hex
    envelope = Envelope.make(request_id, body.model, isinstance(body, ChatRequest))
    deltas = generator.generate(token_ids, params, body.stops, request_id)
    headers = {"X-Request-Id": request_id}
    if not body.stream:
        answer = await _collect_unless_gone(request, envelope, deltas)
        return Response(orjson.dumps(answer), media_type="application/json", headers=headers)
    # the first delta is awaited here, so that a request the engine refuses is still an HTTP error
    first = await anext(deltas)
    headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    events = _events(ChunkWriter(envelope), first, deltas, body.include_usage)
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _events(
    writer: ChunkWriter, first: TextDelta, rest: AsyncGenerator[TextDelta, None], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    timing = first.timing
    try:
        async with aclosing(rest) as deltas:
            yield writer.content(first.text, first.finish_reason)
            async for delta in deltas:
                timing = delta.timing
                yield writer.content(delta.text, delta.finish_reason)
        if include_usage and timing is not None:
            yield writer.usage(usage_of(timing))
        yield DONE
    except EngineError as error:
        yield b"data: " + orjson.dumps(to_api_error(error).body) + b"\n\n"


async def _collect_unless_gone(
    request: Request, envelope: Envelope, deltas: AsyncGenerator[TextDelta, None]
) -> dict[str, Any]:
    """The whole answer. A client that goes away ends the work; the framework does this for streams only."""

    async def collect() -> dict[str, Any]:
        texts = []
        async with aclosing(deltas) as source:
            async for delta in source:
                texts.append(delta.text)
                if delta.finish_reason is not None and delta.timing is not None:
                    return whole_answer(envelope, "".join(texts), delta.finish_reason, delta.timing)
        raise EngineError("the engine ended without a finish reason")

    work = asyncio.create_task(collect())
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ApiError(499, "the client closed the connection", "invalid_request_error")
        return work.result()
    finally:
        gone.cancel()
        work.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
