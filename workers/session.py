"""One Locust process's share of a run: its target, prompts, rows, and the gate that its users wait at.

Users are slots. They send while a level is open – one request after another, or in an open loop whatever arrives – and
when it ends they finish what is in flight and wait at the gate, so that levels follow each other without a process or a
connection being made anew.
"""

from __future__ import annotations

import gc
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import gevent
from gevent.event import AsyncResult, Event

from workers.arrivals import Arrivals
from workers.arrivals import shard as shard_of
from workers.client import Client, Wire
from workers.composers import check_lengths, make_composers
from workers.dispatcher import Arrival, Dispatcher
from workers.health import Health
from workers.limits import check_limits
from workers.options import OPENAI_SDK, Settings
from workers.prompts import Prompt, PromptSource
from workers.protocols import PROTOCOLS
from workers.records import Record
from workers.sdk_client import SdkClient
from workers.service import Service
from workers.sink import Sink
from workers.targets import Target
from workers.tokenizer import TokenCounter
from workers.trace import read_trace

logger = logging.getLogger(__name__)
_POLL_S = 0.01
#: Time for the users to come to the gate before the first arrival of an open loop is due.
_HEAD_START_NS = 200_000_000
AnyClient = Client | SdkClient


#: In a closed loop worker i sends the prompts i, i + 1000, i + 2000 and so on.
_STRIDE = 1000


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of so many workers this one is; of 0 if it joined when all had been shared out."""

    index: int = 0
    count: int = 1


class Session:
    """Shared by all users of the process."""

    def __init__(self, settings: Settings, target: Target) -> None:
        """
        Raises:
            SettingsError: a proxy or a tokenizer that cannot be used.
        """
        self.settings = settings
        self.target = target
        self.gate = Event()
        self.outcomes: Counter[str] = Counter()
        self.num_tokens = 0
        self.recent_ttft_ms: list[float] = []
        self.level: int | None = None
        self.wire = Wire(target, PROTOCOLS[settings.protocol], settings.request_timeout_s, settings.trust_env)
        self._counter = TokenCounter(settings.tokenizer) if settings.tokenizer else None
        self._sink = Sink(settings.out, settings.worker_name, self.wire.clock.anchor_ns)
        self._health = Health(settings.out, settings.worker_name, self.wire)
        self._model = settings.model
        self._prompts: PromptSource | None = None
        self.is_open_loop = False
        self._numbers: Iterator[int] = iter(())
        self._dispatcher: Dispatcher | None = None
        prefix = secrets.token_hex(6)
        self._request_ids = (f"{prefix}-{number:x}" for number in count())
        self._active: set[AnyClient] = set()

    def prepare(self) -> None:
        """Learn the model and how the service counts tokens; once.

        Raises:
            SettingsError: no model was given and the service lists none.
        """
        if self._prompts is not None:
            return
        logger.info("requests go %s", self.wire.route.description)
        service = Service(self.target, self.wire.route, self.wire.protocol)
        self._model = self._model or service.first_model()
        settings = self.settings
        languages = ("en", "zh") if settings.language == "both" else (settings.language,)
        composers = make_composers(service, self._model, languages, settings.seed, self._counter)
        check_lengths(settings.classes, composers, service.max_model_len(self._model))
        self._prompts = PromptSource(settings.classes, settings.mix, composers, settings.seed)
        service.close()

    def open_level(
        self,
        level: int,
        num_users: int,
        shard: Shard,
        start_unix_ns: int | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Let the users send; their rows belong to ``level``.

        With ``arrivals`` it is an open loop, whose schedule starts at ``start_unix_ns`` for all workers (None: soon).

        Raises:
            SettingsError: this machine does not allow so many connections.
        """
        check_limits(num_users)
        self.prepare()
        self._sink.open_level(level)
        self._health.open_level(level)
        self.level = level
        self.outcomes.clear()
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not walk through it while tokens come
        self._numbers = count(shard.index, _STRIDE)
        self.is_open_loop = arrivals is not None
        if arrivals is not None:
            start_ns = time.monotonic_ns() + _HEAD_START_NS
            if start_unix_ns is not None:
                start_ns = self.wire.clock.to_monotonic(start_unix_ns)
            self._dispatcher = Dispatcher(self._arrivals(arrivals, level, shard, start_ns), self._write_unsent)
        self.gate.set()

    def end_arrivals(self) -> None:
        """In an open loop: nothing further is planned, and who waited for it is free."""
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None

    def close_level(self, grace_s: float) -> None:
        """Hold the users at the gate, give what is in flight ``grace_s``, then cancel it; the rows become Parquet."""
        self.gate.clear()
        self.end_arrivals()
        with gevent.Timeout(grace_s, False):
            while self._active:
                gevent.sleep(_POLL_S)
        for client in list(self._active):
            client.cancel()
        while self._active:  # each user still has its row to write
            gevent.sleep(0)
        self._sink.close_level()
        self._health.close_level()
        self.level = None

    def make_client(self) -> AnyClient:
        return SdkClient(self.wire) if self.settings.client == OPENAI_SDK else Client(self.wire)

    def next_prompt(self) -> Prompt:
        """A prompt that nobody has sent yet."""
        assert self._prompts is not None
        assert self.level is not None
        return self._prompts.make(self.level, next(self._numbers))

    def next_arrival(self, ticket: AsyncResult) -> Arrival | None:
        """In an open loop: what this slot is to send, and when it was to leave; None at the end."""
        return self._dispatcher.next_arrival(ticket) if self._dispatcher is not None else None

    def give_back(self, ticket: AsyncResult) -> None:
        """Who waits with this ticket is to end."""
        if self._dispatcher is not None:
            self._dispatcher.give_back(ticket)

    def request(self, client: AnyClient, prompt: Prompt, attempt: int, intended_ns: int) -> Record:
        """Send a prompt and write its row, whatever becomes of it.

        The level's end cancels the request and leaves the user alive.
        """
        assert self.level is not None
        record = self._record(prompt, self.level, attempt, intended_ns)
        answer: list[str] | None = [] if self._counter else None
        self._active.add(client)
        try:
            client.run(record, prompt.text, self.settings.extra, answer)
        finally:
            if self._counter and answer and record.token_source == "chunks":
                record.completion_tokens, record.token_source = self._counter.count("".join(answer)), "tokenizer"
            self._finish(record)
            self._active.discard(client)
        return record

    def _arrivals(self, arrivals: Arrivals, level: int, shard: Shard, start_ns: int) -> Iterator[Arrival]:
        """This worker's share of the level's schedule; none for one that joined late."""
        source = self._prompts
        assert source is not None
        if not shard.count:
            return
        traced = read_trace(arrivals.path) if arrivals.kind == "trace" else None
        for number, at_s in shard_of(arrivals.times(self.settings.seed, level), shard.index, shard.count):
            if traced is None:
                prompt = source.make(level, number)
            else:
                prompt = source.make_like(level, number, traced[number].prompt_tokens, traced[number].output_tokens)
            yield Arrival(start_ns + round(at_s * 1e9), prompt)

    def _write_unsent(self, arrival: Arrival, reason: str) -> None:
        assert self.level is not None
        record = self._record(arrival.prompt, self.level, 1, arrival.due_ns)
        record.outcome, record.error = "unsent", reason
        self._finish(record)

    def _record(self, prompt: Prompt, level: int, attempt: int, intended_ns: int) -> Record:
        return Record(
            run_id=self.settings.run_id,
            level=level,
            worker=self.settings.worker_name,
            request_id=next(self._request_ids),
            prompt_class=prompt.prompt_class,
            prompt_id=prompt.prompt_id,
            target=self.target.base_url,
            model=self._model,
            protocol=self.settings.protocol,
            attempt=attempt,
            asked_tokens=prompt.asked_tokens,
            max_tokens=prompt.max_tokens,
            intended_ns=intended_ns,
        )

    def _finish(self, record: Record) -> None:
        self._sink.write(record)
        self.outcomes[record.outcome] += 1
        self.num_tokens += record.completion_tokens or 0
        if record.sent_ns:
            self._health.note_sent(record.sent_ns - record.intended_ns)
        if record.outcome == "ok" and record.first_token_ns and record.sent_ns:
            self.recent_ttft_ms.append((record.first_token_ns - record.sent_ns) / 1e6)
