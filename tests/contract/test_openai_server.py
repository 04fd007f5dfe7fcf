"""The official ``openai`` client against the engine's HTTP app."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from engine_server import EngineServer, engine_server
from openai import AsyncOpenAI, OpenAI
from tiny_model import make_tiny_served_model

CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "你好, world"}], "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_served_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[EngineServer]:
    with engine_server("--model", str(model), "--model-name", "tiny", "--dtype", "bfloat16") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EngineServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


def stats(server: EngineServer) -> dict[str, int]:
    with urllib.request.urlopen(f"{server.url}/v1/engine") as response:
        found: dict[str, int] = json.load(response)["stats"]
    return found


def await_idle(server: EngineServer, timeout_s: float = 10) -> None:
    """Nothing runs and every block is free, as the engine and its metrics say."""
    deadline = time.monotonic() + timeout_s
    while (now := stats(server))["num_running"] + now["num_waiting"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (now["num_running"], now["num_waiting"]) == (0, 0)
    assert now["num_free_blocks"] == now["num_blocks"] > 0
    with urllib.request.urlopen(f"{server.url}/metrics") as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[0] != "#")
    assert float(lines["tokenswarm_num_requests_running"]) == 0
    assert lines["tokenswarm_kv_blocks_free"] == lines["tokenswarm_kv_blocks"]


def test_streamed_and_whole_answers_are_the_same(server: EngineServer, client: OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, max_tokens=24, extra_body={"ignore_eos": True})
    stream = client.chat.completions.create(
        **CHAT, max_tokens=24, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 10
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "length"
    assert [c.choices[0].delta.role for c in chunks if c.choices][:2] == ["assistant", None]
    assert all(c.choices[0].delta.content or c.choices[0].finish_reason for c in chunks if c.choices), "an empty delta"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    timings = chunks[-1].model_extra["timings"]  # type: ignore[index]
    assert timings["prompt_ms"] > 0
    assert timings["queue_ms"] >= 0
    await_idle(server)


def test_completions_of_text_and_of_token_ids(client: OpenAI, server: EngineServer) -> None:
    body = json.dumps({"prompt": "Hello 世界"}).encode()
    request = urllib.request.Request(f"{server.url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        tokenized = json.load(response)
    assert tokenized["count"] == len(tokenized["tokens"]) > 2
    options: Any = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    of_text = client.completions.create(prompt="Hello 世界", **options)
    of_ids = client.completions.create(prompt=tokenized["tokens"], **options)
    assert of_text.choices[0].text == of_ids.choices[0].text
    assert of_text.usage == of_ids.usage
    assert of_text.usage is not None
    assert of_text.usage.prompt_tokens == tokenized["count"]


def test_stop_strings_end_the_answer_before_them(server: EngineServer, client: OpenAI) -> None:
    free = client.chat.completions.create(**CHAT, max_tokens=40, extra_body={"ignore_eos": True})
    text = free.choices[0].message.content or ""
    stop = text[12:15]
    stopped = client.chat.completions.create(**CHAT, max_tokens=40, stop=[stop], extra_body={"ignore_eos": True})
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    await_idle(server)


def test_sixteen_streams_at_once_say_what_each_says_alone(server: EngineServer, client: OpenAI) -> None:
    """Under bfloat16, where results do not depend on company."""
    asks = [f"{i} " + "word " * i for i in range(16)]

    async def together() -> list[str]:
        sdk = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)

        async def one(text: str) -> str:
            stream = await sdk.completions.create(
                model="tiny", prompt=text, max_tokens=20, temperature=0, stream=True, extra_body={"ignore_eos": True}
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        return list(await asyncio.gather(*map(one, asks)))

    alone = [
        client.completions.create(
            model="tiny", prompt=text, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
        ).choices[0].text
        for text in asks
    ]  # fmt: skip
    assert asyncio.run(together()) == alone
    await_idle(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(server: EngineServer, stream: bool) -> None:
    async def leave() -> None:
        sdk = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)

        async def ask() -> None:
            answer: Any = await sdk.completions.create(
                model="tiny", prompt="a", max_tokens=2000, stream=stream, extra_body={"ignore_eos": True}
            )
            if stream:
                async for _ in answer:
                    pass

        tasks = [asyncio.create_task(ask()) for _ in range(10)]
        for _ in range(200):
            await asyncio.sleep(0.02)
            if (await asyncio.to_thread(stats, server))["num_running"] == 10:
                break
        assert (await asyncio.to_thread(stats, server))["num_running"] == 10
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(leave())
    await_idle(server, timeout_s=5)


def test_one_request_id_for_two_live_requests(server: EngineServer, client: OpenAI) -> None:
    headers = {"X-Request-Id": "mine"}
    first = client.completions.create(
        model="tiny", prompt="a", max_tokens=300, stream=True, extra_headers=headers, extra_body={"ignore_eos": True}
    )
    second = client.completions.with_raw_response.create(model="tiny", prompt="b", max_tokens=3, extra_headers=headers)
    assert second.headers["x-request-id"] == "mine"
    assert sum(1 for _ in first) > 100


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"top_p": 0}, openai.BadRequestError, "top_p"),
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"logprobs": True}, openai.BadRequestError, "logprobs"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, openai.BadRequestError, "prompt"),
        ({"stop": ["a", "b", "c", "d", "e"]}, openai.BadRequestError, "stop"),
        ({"extra_body": {"stop_token_ids": [99999]}}, openai.BadRequestError, "stop_token_ids"),
        ({"extra_body": {"no_such_thing": 1}}, openai.BadRequestError, "no_such_thing"),
        ({"extra_body": {"min_tokens": 999}}, openai.BadRequestError, "min_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_refused_is_named(
    client: OpenAI, change: dict[str, Any], error: type[openai.APIStatusError], param: str, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{**CHAT, "max_tokens": 5, "stream": stream} | change)
    assert caught.value.body["param"] == param  # type: ignore[index,call-overload]
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index,call-overload]


def test_what_changes_nothing_is_taken(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **CHAT, max_tokens=2, user="me", store=False, n=1, presence_penalty=0, logprobs=False, metadata={"a": "b"}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 2


def test_models_and_health(server: EngineServer, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with urllib.request.urlopen(f"{server.url}/version") as response:
        assert json.load(response)["version"]


@pytest.mark.slow
def test_a_killed_step_loop_fails_who_waits_and_turns_health_red(model: Path) -> None:
    with engine_server("--model", str(model), "--model-name", "tiny") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        stream = client.completions.create(
            model="tiny", prompt="a", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        [child] = psutil.Process(server.process.pid).children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine process ended"):
            for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt="a")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{server.url}/health")
        assert caught.value.code == 503
        caught.value.close()
