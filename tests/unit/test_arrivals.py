"""Arrival processes: one global schedule, the right distribution, traces as they are, bad input by name."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workers.arrivals import parse_arrivals, shard
from workers.errors import SettingsError
from workers.trace import read_trace

PROCESSES = ["constant:50", "poisson:50", "gamma:50:2", "ramp:10:100:60", "steps:10,20,40:30", "day:10:100:600"]


def take(text: str, num: int, seed: int = 0, level: int = 0) -> list[float]:
    return list(itertools.islice(parse_arrivals(text).times(seed, level), num))


@given(st.sampled_from(PROCESSES), st.integers(1, 20), st.integers(0, 2**31))
def test_shards_are_the_schedule_without_gaps_or_doubles(text: str, num_workers: int, seed: int) -> None:
    times = take(text, 300, seed)
    whole = list(enumerate(times))
    shares = [list(shard(iter(times), index, num_workers)) for index in range(num_workers)]
    assert sorted(itertools.chain(*shares)) == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", PROCESSES)
def test_times_rise_and_depend_on_seed_and_level_alone(text: str) -> None:
    times = take(text, 1000)
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert times == take(text, 1000)
    if not text.startswith("constant"):
        assert times != take(text, 1000, seed=1)
        assert times != take(text, 1000, level=1)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(take("poisson:50", 5000))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 50)).pvalue > 0.01


def test_gamma_gaps_have_the_asked_mean_and_variation() -> None:
    gaps = np.diff(take("gamma:50:2", 50_000))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.05)


def test_constant_does_not_drift() -> None:
    assert take("constant:30", 3001)[3000] == pytest.approx(100)


def test_changing_rates() -> None:
    ramp = np.array(take("ramp:10:100:60", 8000))
    assert (ramp < 6).sum() == pytest.approx(6 * 14.5, rel=0.25)
    assert ((ramp > 54) & (ramp < 60)).sum() == pytest.approx(6 * 95.5, rel=0.12)
    assert ((ramp > 60) & (ramp < 70)).sum() == pytest.approx(1000, rel=0.1), "it stays where it arrived"
    steps = np.array(take("steps:10,20,40:30", 3000))
    counts = np.histogram(steps, [0, 30, 60, 90])[0]
    assert counts == pytest.approx([300, 600, 1200], rel=0.15)
    day = np.array(take("day:10:100:600", 60_000))
    assert (np.abs(day - 300) < 10).sum() == pytest.approx(2000, rel=0.1), "noon"
    assert parse_arrivals("day:10:100:600").mean_rate == 55


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,879,55
"""


def test_a_trace_is_replayed_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert [(r.prompt_tokens, r.output_tokens) for r in read_trace(str(path))] == [(374, 44), (396, 109), (879, 55)]
    assert take(f"trace:{path}", 9) == pytest.approx([0, 4.314579, 4.541977], abs=1e-6)
    assert take(f"trace:{path}:20", 9) == pytest.approx([0, 4.314579 / 20, 4.541977 / 20], abs=1e-6)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no column"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "no column generatedtokens"),
        ("timestamp,prompt_tokens,output_tokens\n", "holds no requests"),
        ("timestamp,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n", "line 3: '4' lies before"),
        ("timestamp,prompt_tokens,output_tokens\nsoon,1,1\n", "line 2: 'soon' is no time"),
        ("timestamp,prompt_tokens,output_tokens\n1,many,1\n", "line 2: prompt_tokens is 'many'"),
        ("timestamp,prompt_tokens,output_tokens\n1,1\n", "line 2: output_tokens is ''"),
    ],
)
def test_bad_traces(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(SettingsError, match=says):
        parse_arrivals(f"trace:{path}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poisson:0", "above 0"),
        ("poisson:-5", "above 0"),
        ("constant:nan", "above 0"),
        ("poisson:fast", "'fast' is no number"),
        ("poisson", "no number"),
        ("poisson:1:2", "takes a rate"),
        ("gamma:5", "coefficient of variation"),
        ("ramp:1:2", "two rates"),
        ("steps:1,2", "seconds of each"),
        ("weibull:5", "unknown"),
        ("trace:/nowhere.csv:2", "/nowhere.csv"),
    ],
)
def test_bad_processes(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parse_arrivals(text)
