"""One Locust process's share of a run: its target, prompts, rows, and the gate that its users wait at.

Users are slots. They send while a level is open; when it ends they finish what is in flight and wait at the gate, so
that levels follow each other without a process or a connection being made anew.
"""

from __future__ import annotations

import gc
import logging
import secrets
from collections import Counter
from itertools import count

import gevent
from gevent.event import Event

from workers.client import Client, Wire
from workers.errors import SettingsError
from workers.health import Health
from workers.limits import check_limits
from workers.options import OPENAI_SDK, Settings
from workers.prompts import TYPICAL_RATIOS, Prompt, PromptSource, TokenRatio, measure_ratios
from workers.protocols import PROTOCOLS
from workers.records import Record
from workers.sdk_client import SdkClient
from workers.service import Service
from workers.sink import Sink
from workers.targets import Target
from workers.tokenizer import TokenCounter

logger = logging.getLogger(__name__)
_POLL_S = 0.01
AnyClient = Client | SdkClient


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
        self._num_prompts = 0
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
        service = Service(self.target, self.wire.route)
        self._model = self._model or service.first_model()
        self._prompts = PromptSource(
            self.settings.classes, self.settings.language, self.settings.seed, self.settings.worker_name,
            self._ratios(service),
        )  # fmt: skip

    def open_level(self, level: int, num_users: int) -> None:
        """Let the users send; their rows belong to ``level``.

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
        self.gate.set()

    def close_level(self, grace_s: float) -> None:
        """Hold the users at the gate, give what is in flight ``grace_s``, then cancel it; the rows become Parquet."""
        self.gate.clear()
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

    def next_prompt(self, class_name: str) -> Prompt:
        """A prompt of a class that nobody has sent yet."""
        assert self._prompts is not None
        self._num_prompts += 1
        return self._prompts.make(class_name, self._num_prompts - 1)

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

    def _record(self, prompt: Prompt, level: int, attempt: int, intended_ns: int) -> Record:
        return Record(
            run_id=self.settings.run_id,
            level=level,
            worker=self.settings.worker_name,
            request_id=next(self._request_ids),
            prompt_class=prompt.prompt_class.name,
            prompt_id=prompt.prompt_id,
            target=self.target.base_url,
            model=self._model,
            protocol=self.settings.protocol,
            attempt=attempt,
            max_tokens=prompt.prompt_class.max_tokens,
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

    def _ratios(self, service: Service) -> dict[str, TokenRatio]:
        name, seed, model = self.settings.worker_name, self.settings.seed, self._model
        try:
            return measure_ratios(lambda text: service.count_tokens(model, text), seed, name)
        except SettingsError as error:
            logger.warning("%s; prompt lengths are estimates", error)
            return dict(TYPICAL_RATIOS)
