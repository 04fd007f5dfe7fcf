"""One Locust process's share of a run: its target, prompts, rows, and the gate that its users wait at.

Users are slots. They send while a level is open; when it ends they finish what is in flight and wait at the gate, so
that levels follow each other without a process or a connection being made anew.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter

import gevent
from gevent.event import Event

from workers.client import ChatClient, InFlight
from workers.clock import Clock
from workers.errors import SettingsError
from workers.options import Settings
from workers.prompts import TYPICAL_RATIOS, Prompt, PromptSource, TokenRatio, measure_ratios
from workers.protocols import openai_chat
from workers.records import Record
from workers.service import Service
from workers.sink import Sink
from workers.targets import Target

logger = logging.getLogger(__name__)
_CLOCK_INTERVAL_S = 1.0


class Session:
    """Shared by all users of the process."""

    def __init__(self, settings: Settings, target: Target) -> None:
        self.settings = settings
        self.target = target
        self.gate = Event()
        self.in_flight = InFlight()
        self.clock = Clock()
        self.outcomes: Counter[str] = Counter()
        self.num_tokens = 0
        self.recent_ttft_ms: list[float] = []
        self.level: int | None = None
        self._sink = Sink(settings.out, settings.worker_name, self.clock.anchor_ns)
        self._model = settings.model
        self._prompts: PromptSource | None = None
        self._num_prompts = 0
        self._active: set[gevent.Greenlet] = set()
        gevent.spawn(self._keep_clock)

    def prepare(self) -> None:
        """Learn the model and how the service counts tokens; once.

        Raises:
            SettingsError: no model was given and the service lists none.
        """
        if self._prompts is not None:
            return
        service = Service(self.target)
        self._model = self._model or service.first_model()
        self._prompts = PromptSource(
            self.settings.classes, self.settings.language, self.settings.seed, self.settings.worker_name,
            self._ratios(service),
        )  # fmt: skip

    def open_level(self, level: int) -> None:
        """Let the users send; their rows belong to ``level``."""
        self.prepare()
        self._sink.open_level(level)
        self.level = level
        self.outcomes.clear()
        self.gate.set()

    def close_level(self, grace_s: float) -> None:
        """Hold the users at the gate, give what is in flight ``grace_s``, then cancel it; the rows become Parquet."""
        self.gate.clear()
        gevent.wait(list(self._active), timeout=grace_s)
        gevent.killall(list(self._active), block=True)
        while self._active:  # each user still has its row to write
            gevent.sleep(0)
        self._sink.close_level()
        self.level = None

    def make_client(self) -> ChatClient:
        return ChatClient(self.target, self.clock, self.in_flight, self.settings.request_timeout_s)

    def request(self, client: ChatClient, class_name: str, intended_ns: int) -> Record:
        """Send one prompt of a class and write its row, whatever becomes of it.

        In a greenlet of its own, so that a level's end can cancel the request and leave the user alive.
        """
        assert self._prompts is not None
        assert self.level is not None
        prompt = self._prompts.make(class_name, self._num_prompts)
        self._num_prompts += 1
        record = self._record(prompt, self.level, intended_ns)
        sending = gevent.spawn(client.run, record, prompt.text, self.settings.extra)
        self._active.add(sending)
        try:
            sending.join()
        finally:
            sending.kill(block=True)  # only when this user itself is being killed
            self._finish(record)
            self._active.discard(sending)
        return record

    def _record(self, prompt: Prompt, level: int, intended_ns: int) -> Record:
        return Record(
            run_id=self.settings.run_id,
            level=level,
            worker=self.settings.worker_name,
            request_id=uuid.uuid4().hex,
            prompt_class=prompt.prompt_class.name,
            prompt_id=prompt.prompt_id,
            target=self.target.base_url,
            model=self._model,
            protocol=openai_chat.NAME,
            max_tokens=prompt.prompt_class.max_tokens,
            intended_ns=intended_ns,
        )

    def _finish(self, record: Record) -> None:
        self._sink.write(record)
        self.outcomes[record.outcome] += 1
        self.num_tokens += record.completion_tokens or 0
        if record.outcome == "ok" and record.first_token_ns and record.sent_ns:
            self.recent_ttft_ms.append((record.first_token_ns - record.sent_ns) / 1e6)

    def _ratios(self, service: Service) -> dict[str, TokenRatio]:
        name, seed, model = self.settings.worker_name, self.settings.seed, self._model
        try:
            return measure_ratios(lambda text: service.count_tokens(model, text), seed, name)
        except SettingsError as error:
            logger.warning("%s; prompt lengths are estimates", error)
            return dict(TYPICAL_RATIOS)

    def _keep_clock(self) -> None:
        while True:
            gevent.sleep(_CLOCK_INTERVAL_S)
            self.clock.refresh()
