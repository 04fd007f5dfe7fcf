"""Faults that must stay with the request that has them, and settings that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_parity import GREEDY, prompts, run_one_by_one, run_together
from tiny_model import make_tiny_llama

from engine.config import EngineConfig
from engine.errors import ConfigError, RequestError
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LLMEngine:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_llama(folder, dtype=torch.bfloat16)
    return LLMEngine(EngineConfig(str(folder), dtype="bfloat16", threads=1, num_kv_blocks=64, max_model_len=640))


def test_a_nan_fails_its_own_request_and_no_later_one(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path)
    with torch.no_grad():
        model.model.embed_tokens.weight[77] = float("nan")
    model.save_pretrained(tmp_path)
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="float32", threads=1, num_kv_blocks=8))
    engine.add_request("bad", [5, 77, 6], GREEDY)
    engine.add_request("good", [5, 7, 6], GREEDY)
    reasons = {}
    while engine.has_unfinished():
        reasons |= {output.request_id: output.finish_reason for output in engine.step().outputs}
    assert reasons == {"bad": "error", "good": "length"}
    for _ in range(10):  # more than the pool's blocks: each of them is used again
        assert len(run_together(engine, [[5, 7, 6]])[0]) == GREEDY.max_tokens


def test_a_seeded_request_keeps_its_tokens_beside_others_of_other_settings(engine: LLMEngine) -> None:
    plain = SamplingParams(max_tokens=20, temperature=1.5, seed=3, ignore_eos=True)
    narrow = SamplingParams(max_tokens=20, temperature=0.7, top_p=0.5, top_k=9, seed=4, ignore_eos=True)
    [alone] = run_one_by_one(engine, prompts()[4:5], plain)
    engine.add_request("narrow", prompts()[5], narrow)
    engine.add_request("plain", prompts()[4], plain)
    beside: list[int] = []
    while engine.has_unfinished():
        for output in engine.step().outputs:
            beside += output.token_ids if output.request_id == "plain" else []
    assert beside == alone


def test_a_temperature_near_zero_is_greedy(engine: LLMEngine) -> None:
    cold = SamplingParams(max_tokens=12, temperature=1e-40, ignore_eos=True)
    assert run_one_by_one(engine, prompts()[:3], cold) == run_one_by_one(engine, prompts()[:3])


def test_a_pool_of_three_blocks_serves_thirty_requests_and_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="float32", threads=1, num_kv_blocks=3))
    assert engine.max_model_len == 48
    with pytest.raises(RequestError, match="at most 47"):
        engine.add_request("large", [5] * 48, GREEDY)
    answers = run_together(engine, [[5 + i] * 30 for i in range(30)])
    assert [len(tokens) for tokens in answers] == [12] * 30
    assert engine.stats().num_free_blocks == 3


def test_an_answer_ends_where_the_context_ends(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="float32", threads=1, num_kv_blocks=3))
    long = SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True)
    assert len(run_together(engine, [[5] * 40], long)[0]) == 8


@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "finished"])
def test_abort_in_every_state_twice(engine: LLMEngine, state: str) -> None:
    engine.add_request("x", [5] * (600 if state == "prefilling" else 20), GREEDY)
    for _ in range({"waiting": 0, "prefilling": 1, "running": 3, "finished": 50}[state]):
        if engine.has_unfinished():
            engine.step()
    assert (engine.abort("x") is not None) == (state != "finished")
    assert engine.abort("x") is None
    assert engine.stats().num_free_blocks == engine.num_kv_blocks
    engine.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], GREEDY, "prompt"),
        ([5] * 640, GREEDY, "prompt"),
        ([512], GREEDY, "prompt"),
        ([-1], GREEDY, "prompt"),
        ([5], SamplingParams(stop_token_ids=(512,)), "stop_token_ids"),
    ],
)
def test_requests_that_can_never_run(engine: LLMEngine, prompt: list[int], params: SamplingParams, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        engine.add_request("x", prompt, params)
    assert caught.value.param == param
    assert not engine.has_unfinished()


@pytest.mark.parametrize(
    "change",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1},
     {"top_k": -1}, {"min_tokens": 17}],
)  # fmt: skip
def test_sampling_values_out_of_bounds(change: dict[str, float]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**change)  # type: ignore[arg-type]
    assert caught.value.param in change


def test_min_tokens_holds_the_end_back(tmp_path: Path) -> None:
    """With every token an end token, an answer is one token long; min_tokens makes it longer."""
    make_tiny_llama(tmp_path, eos_token_id=list(range(1, 500)))
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="float32", threads=1))
    for min_tokens in (0, 7):
        params = SamplingParams(max_tokens=50, temperature=0, min_tokens=min_tokens)
        [answer] = run_together(engine, [[500]], params)
        assert len(answer) >= max(1, min_tokens)
        assert all(token in (0, *range(500, 512)) for token in answer[:min_tokens])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "./nowhere"}, "does not exist"),
        ({"model": "."}, "config.json"),
        ({"device": "abacus"}, "abacus"),
        ({"dtype": "int3"}, "int3"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"num_kv_blocks": -1}, "num_kv_blocks is -1"),
        ({"max_model_len": 5000}, "4096"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LLMEngine(EngineConfig(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config", ['{"model_type": "nope"}', '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}']
)
def test_models_that_are_not_supported(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=r"nope|GPT2LMHeadModel"):
        LLMEngine(EngineConfig(str(tmp_path)))
