"""The scheduler without a model: a step's tokens are simply counted as computed, and sampled ones appended."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler


def make(num_blocks: int, budget: int = 64, max_num_seqs: int = 8, block_size: int = 4) -> Scheduler:
    config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, block_size=block_size)
    return Scheduler(config, BlockPool(num_blocks))


def request(name: str, prompt: int, answer: int) -> Request:
    return Request(name, [7] * prompt, prompt, SamplingParams(max_tokens=answer), arrival_ns=0)


def step(scheduler: Scheduler, budget: int, max_num_seqs: int) -> int:
    """One step as the engine would do it, with everything checked that must hold. The number of tokens computed."""
    schedule = scheduler.schedule()
    total = sum(chunk.num_tokens for chunk in schedule.chunks)
    assert total <= budget
    assert len(scheduler.running) <= max_num_seqs
    assert all(chunk.num_tokens > 0 and chunk.request in scheduler.running for chunk in schedule.chunks)
    assert len({chunk.request.request_id for chunk in schedule.chunks}) == len(schedule.chunks)
    for chunk in schedule.chunks:
        end = chunk.request.num_computed_tokens + chunk.num_tokens
        assert end <= chunk.request.num_tokens
        assert len(chunk.request.block_table) * 4 >= end
        chunk.request.num_computed_tokens = end
        if end == chunk.request.num_tokens:
            chunk.request.token_ids.append(7)
            if chunk.request.num_output_tokens >= chunk.request.params.max_tokens:
                scheduler.finish(chunk.request)
    check(scheduler)
    return total


def check(scheduler: Scheduler) -> None:
    scheduler.pool.check()
    held = [block for r in [*scheduler.running, *scheduler.waiting] for block in r.block_table]
    assert len(held) == len(set(held)), "two requests share a block"
    assert len(held) + scheduler.pool.num_free == scheduler.pool.num_blocks
    assert all(not r.block_table for r in scheduler.waiting)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 10)),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(actions, st.integers(10, 24), st.integers(1, 20), st.integers(1, 6))
def test_any_history_conserves_blocks_and_ends(
    history: list[tuple[str, int, int]], num_blocks: int, budget: int, max_num_seqs: int
) -> None:
    """Pools from one request's size up: everything that is not aborted finishes, and all blocks are free again."""
    scheduler = make(num_blocks, budget, max_num_seqs)
    for number, (action, first, second) in enumerate(history):
        alive = [*scheduler.running, *scheduler.waiting]
        if action == "add":
            scheduler.add(request(str(number), first, second))
        elif action == "abort" and alive:
            scheduler.finish(alive[first % len(alive)])
            check(scheduler)
        elif action == "step":
            step(scheduler, budget, max_num_seqs)
    steps = 0
    while scheduler.running or scheduler.waiting:
        step(scheduler, budget, max_num_seqs)
        steps += 1
        assert steps < 5000, "requests are alive, and nothing gets through"
    assert scheduler.pool.num_free == num_blocks


def test_the_youngest_is_preempted_and_the_oldest_goes_on() -> None:
    scheduler = make(num_blocks=4)  # 16 tokens
    old, young = request("old", 7, 9), request("young", 7, 9)
    scheduler.add(old)
    scheduler.add(young)
    while young.num_preemptions == 0:
        assert step(scheduler, 64, 8) > 0
    assert old.num_preemptions == 0
    assert young in scheduler.waiting
    assert young.num_computed_tokens == 0
    while scheduler.running or scheduler.waiting:
        step(scheduler, 64, 8)
    assert (old.num_output_tokens, young.num_output_tokens) == (9, 9)


def test_a_long_prompt_is_cut_into_chunks_behind_those_who_decode() -> None:
    scheduler = make(num_blocks=64, budget=10)
    scheduler.add(request("first", 3, 20))
    step(scheduler, 10, 8)
    scheduler.add(request("long", 25, 1))
    sizes = []
    for _ in range(3):
        computed = {r.request_id: r.num_computed_tokens for r in [*scheduler.running, *scheduler.waiting]}
        step(scheduler, 10, 8)
        sizes.append({r.request_id: r.num_computed_tokens - computed[r.request_id] for r in scheduler.running})
    assert sizes == [{"first": 1, "long": 9}, {"first": 1, "long": 9}, {"first": 1}]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    scheduler = make(num_blocks=4)
    for name in ("a", "b"):
        scheduler.add(request(name, 7, 9))
    while not any(r.num_preemptions for r in scheduler.waiting):
        step(scheduler, 64, 8)
    assert [r.request_id for r in scheduler.running] == ["a"]
