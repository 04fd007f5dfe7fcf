"""What a sweep will do: levels from their text, and the time they take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import UsageError
from cluster.plan import MAX_CONCURRENCY, make_levels, parse_concurrency, remaining_s


def test_concurrency_keeps_the_order_given() -> None:
    assert parse_concurrency("8, 1,2,2") == (8, 1, 2, 2)


@given(st.lists(st.integers(1, MAX_CONCURRENCY), min_size=1))
def test_concurrency_reads_what_it_is_given(users: list[int]) -> None:
    assert parse_concurrency(",".join(map(str, users))) == tuple(users)


@pytest.mark.parametrize("text", ["0", "abc", "1,,2", "", "-1", "1.5", "1e3", "²", f"{MAX_CONCURRENCY + 1}"])
def test_concurrency_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="whole number from 1"):
        parse_concurrency(text)


def test_levels_are_numbered_from_zero() -> None:
    levels = make_levels((1, 4), warmup_s=1, measure_s=8, grace_s=30)
    assert [(level.level, level.users, level.measure_s) for level in levels] == [(0, 1, 8), (1, 4, 8)]


@pytest.mark.parametrize(
    ("warmup_s", "measure_s", "grace_s", "name"),
    [(-1, 8, 30, "warmup"), (1, 0, 30, "duration"), (1, 8, -1, "grace"), (float("nan"), 8, 30, "warmup")],
)
def test_times_out_of_bounds_are_refused(warmup_s: float, measure_s: float, grace_s: float, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        make_levels((1,), warmup_s, measure_s, grace_s)


def test_remaining_time_counts_down_to_zero() -> None:
    levels = make_levels((1, 2, 4), warmup_s=2, measure_s=8, grace_s=30)
    assert remaining_s(levels, 0, 0) == pytest.approx(3 * levels[0].planned_s)
    assert remaining_s(levels, 2, 4) == pytest.approx(levels[2].planned_s - 4)
    assert remaining_s(levels, 2, 1000) == 0
