"""Which tokens of which requests the next step computes.

The schedule is vLLM V1's: a step hands out a token budget, first to running requests in order of arrival, then to
waiting ones if nobody had to be preempted. A prompt longer than what is left of the budget is computed in chunks. When
blocks run out, the youngest running request gives all of its back and is recomputed later, so the oldest always gets
through: with a pool that holds any single request, every request finishes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """The next ``num_tokens`` uncomputed tokens of a request, and the blocks it was given for them."""

    request: Request
    num_tokens: int
    new_blocks: list[int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one step computes, and how many requests were preempted to make room."""

    chunks: list[ScheduledChunk]
    num_preempted: int


class Scheduler:
    """Keeps the waiting queue and the running list; owns every request's block table."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._config = config

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> Schedule:
        """Hand out the token budget; block tables grow to hold what is scheduled."""
        budget = self._config.max_num_batched_tokens
        chunks: list[ScheduledChunk] = []
        num_preempted = 0
        # running shrinks from its young end while we walk from its old end; admitted ones come behind both
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = self._chunk_size(request, budget)
            num_preempted += self._make_room(request, count)
            if index >= len(self.running):  # the request itself was the youngest
                break
            chunks.append(self._take(request, count))
            budget -= count
            index += 1
        while self.waiting and budget > 0 and num_preempted == 0 and len(self.running) < self._config.max_num_seqs:
            request = self.waiting[0]
            count = self._chunk_size(request, budget)
            if not self.pool.can_allocate(self._missing_blocks(request, count)):
                break
            self.running.append(self.waiting.popleft())
            chunks.append(self._take(request, count))
            budget -= count
        return Schedule(chunks, num_preempted)

    def finish(self, request: Request) -> None:
        """Take a request out, whichever state it is in, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request)

    def _chunk_size(self, request: Request, budget: int) -> int:
        return min(request.num_tokens - request.num_computed_tokens, budget)

    def _missing_blocks(self, request: Request, count: int) -> int:
        num_needed = -(-(request.num_computed_tokens + count) // self._config.block_size)
        return max(0, num_needed - len(request.block_table))

    def _make_room(self, request: Request, count: int) -> int:
        """Preempt the youngest until ``count`` tokens of ``request`` fit or it was preempted itself."""
        num_preempted = 0
        while not self.pool.can_allocate(self._missing_blocks(request, count)):
            victim = self.running.pop()
            self._release(victim)
            victim.num_computed_tokens = 0
            victim.num_preemptions += 1
            self.waiting.appendleft(victim)
            num_preempted += 1
            if victim is request:
                break
        return num_preempted

    def _take(self, request: Request, count: int) -> ScheduledChunk:
        new_blocks = self.pool.allocate(self._missing_blocks(request, count))
        request.block_table += new_blocks
        return ScheduledChunk(request, count, new_blocks)

    def _release(self, request: Request) -> None:
        self.pool.free(request.block_table)
        request.block_table = []
