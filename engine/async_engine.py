"""The engine as the HTTP side sees it: start, generate, abort, close.

What costs time per token apart from the model – text, JSON, Parquet – stays on this side of the pipe.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from engine import engine_process, wire
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, RequestError
from engine.metrics import Metrics
from engine.sampling_params import SamplingParams
from engine.step_output import EngineStats, RequestOutput, RequestTiming
from engine.timeline import TimelineWriter

_FLUSH_INTERVAL_S = 5.0
_TOKENIZER_MODULE = "transformers.models.auto.tokenization_auto"


class _Stream:
    """One live request on this side: the caller's id, and what the loop has sent for it."""

    __slots__ = ("caller_id", "outputs")

    def __init__(self, caller_id: str) -> None:
        self.caller_id = caller_id
        self.outputs: asyncio.Queue[RequestOutput | EngineError] = asyncio.Queue()


class AsyncEngine:
    """An engine whose step loop runs elsewhere: in a process, or in a thread to measure what that would cost."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        isolation: Literal["process", "thread"] = "process",
        timeline_dir: Path | None = None,
        replica: str = "0",
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.is_alive = False
        self._isolation = isolation
        self._timeline = TimelineWriter(timeline_dir, replica) if timeline_dir else None
        self._streams: dict[str, _Stream] = {}
        self._ids = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._background: list[asyncio.Task[None]] = []
        self._stats: EngineStats | None = None

    async def start(self) -> None:
        """Load the model and begin stepping.

        Raises:
            ConfigError: the loop could not start with these settings.
        """
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self._pipe = Connection(ours.detach())
        self._launch(theirs.detach())
        self._pipe.send(self.config)
        # importing the tokenizers takes as long as loading a small model: both at once
        await asyncio.to_thread(importlib.import_module, _TOKENIZER_MODULE)
        ready = await asyncio.to_thread(self._receive)
        if not isinstance(ready, wire.Ready):
            raise _failure(ready)
        self.config, self.path, self.vocab_size = ready.config, ready.path, ready.vocab_size
        self._set_stats(ready.stats)
        self.is_alive = True
        self._reader = threading.Thread(target=self._read_forever, daemon=True, name="engine-reader")
        self._reader.start()
        if self._timeline is not None:
            self._background.append(asyncio.create_task(self._flush_forever(self._timeline)))

    async def generate(
        self, prompt_token_ids: list[int], params: SamplingParams, caller_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        """A request's outputs as they come. Leaving the iteration early aborts the request and frees its blocks.

        Raises:
            RequestError: the request can never run.
            EngineError: the loop died.
        """
        if not self.is_alive:
            raise EngineError("the engine's step loop is not running")
        request_id = f"{next(self._ids)}:{caller_id}"  # callers may repeat an id; ours are unique
        stream = self._streams[request_id] = _Stream(caller_id)
        finished = False
        try:
            self._send(wire.Add(request_id, prompt_token_ids, params))
            while not finished:
                output = await stream.outputs.get()
                if isinstance(output, EngineError):
                    finished = True
                    raise output
                finished = output.finish_reason is not None
                yield output
        finally:
            if not finished:
                self._send(wire.Abort(request_id))

    @property
    def stats(self) -> EngineStats:
        assert self._stats is not None, "the engine was not started"
        return self._stats

    async def close(self) -> None:
        """End the loop and write what the timeline still holds."""
        self.is_alive = False
        for task in self._background:
            task.cancel()
        self._hang_up()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if self._timeline is not None:
            await asyncio.to_thread(self._timeline.flush)

    def _launch(self, fd: int) -> None:
        if self._isolation == "thread":
            importlib.import_module(_TOKENIZER_MODULE)  # two threads cannot import transformers at once
            threading.Thread(target=engine_process.run, args=(Connection(fd),), daemon=True, name="engine-loop").start()
            return
        command = [sys.executable, "-m", "engine.engine_process", str(fd)]
        self._process = subprocess.Popen(command, pass_fds=[fd])
        os.close(fd)

    def _hang_up(self) -> None:
        """Shut the pipe down, which both ends notice at once; closing alone would leave our reader blocked."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def _send(self, message: wire.Add | wire.Abort) -> None:
        with suppress(OSError):  # the loop is gone; the reader tells everyone who waits
            self._pipe.send(message)

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return wire.Died("the engine process ended", is_config=False)

    def _read_forever(self) -> None:
        while True:
            message = self._receive()
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._take, message)
            if isinstance(message, wire.Died):
                return

    def _take(self, message: wire.Stepped | wire.Aborted | wire.Refused | wire.Died) -> None:
        match message:
            case wire.Stepped(outputs, row, stats):
                self._set_stats(stats)
                self.metrics.observe_step(row, sum(len(output.token_ids) for output in outputs))
                if self._timeline is not None:
                    self._timeline.add_step(row)
                for output in outputs:
                    self._deliver(output)
            case wire.Aborted(timing, stats):
                self._set_stats(stats)
                self._end(timing, "abort")
            case wire.Refused(request_id, text, param):
                if stream := self._streams.pop(request_id, None):
                    stream.outputs.put_nowait(RequestError(text, param))
            case wire.Died(text):
                self.is_alive = False
                for stream in self._streams.values():
                    stream.outputs.put_nowait(EngineError(text))
                self._streams.clear()

    def _deliver(self, output: RequestOutput) -> None:
        if stream := self._streams.get(output.request_id):
            stream.outputs.put_nowait(output)
        if output.timing is not None and output.finish_reason is not None:
            self._end(output.timing, output.finish_reason)

    def _end(self, timing: RequestTiming, finish_reason: str) -> None:
        self.metrics.observe_request(timing, finish_reason)
        stream = self._streams.pop(timing.request_id, None)
        if self._timeline is not None and stream is not None:
            self._timeline.add_request(stream.caller_id, timing, finish_reason)

    def _set_stats(self, stats: EngineStats) -> None:
        self._stats = stats
        self.metrics.set_stats(stats)

    async def _flush_forever(self, timeline: TimelineWriter) -> None:
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            await asyncio.to_thread(timeline.flush)


def _failure(message: Any) -> EngineError:
    if isinstance(message, wire.Died) and message.is_config:
        return ConfigError(message.message)
    return EngineError(getattr(message, "message", f"unexpected first message {message!r}"))
