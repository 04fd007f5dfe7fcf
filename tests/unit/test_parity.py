"""The engine's greedy tokens are transformers' own, and do not depend on company, chunks or preemption."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tiny_model import VOCAB_SIZE, make_tiny_llama

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams

NUM_NEW_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0, ignore_eos=True)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def prompts() -> list[list[int]]:
    """24 prompts of 1 to 600 tokens, block and chunk edges among them."""
    rng = random.Random(7)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129, 200, 255, 257, 300, 400, 511, 512, 600]
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def run_together(engine: LLMEngine, requests: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    tokens: dict[str, list[int]] = {str(i): [] for i in range(len(requests))}
    for i, prompt in enumerate(requests):
        engine.add_request(str(i), prompt, params)
    while engine.has_unfinished():
        for output in engine.step().outputs:
            tokens[output.request_id] += output.token_ids
    engine.check_integrity()
    return list(tokens.values())


def run_one_by_one(engine: LLMEngine, requests: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [run_together(engine, [prompt], params)[0] for prompt in requests]


def transformers_greedy(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_NEW_TOKENS, min_new_tokens=NUM_NEW_TOKENS,
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ],
    ids=["untied", "tied", "llama3-rope", "linear-rope"],
)
def test_parity_with_transformers(tmp_path: Path, changes: dict[str, object]) -> None:
    model = make_tiny_llama(tmp_path, **changes)
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="float32", threads=1, max_num_batched_tokens=64))
    assert run_together(engine, prompts()) == [transformers_greedy(model, prompt) for prompt in prompts()]


def test_parity_under_preemption(tmp_path: Path) -> None:
    """A pool that holds hardly more than the longest request: the young are preempted and lose nothing."""
    model = make_tiny_llama(tmp_path, seed=1)
    engine = LLMEngine(
        EngineConfig(str(tmp_path), dtype="float32", threads=1, max_num_batched_tokens=64, num_kv_blocks=40)
    )
    assert run_together(engine, prompts()) == [transformers_greedy(model, prompt) for prompt in prompts()]
    assert engine.stats().num_preemptions_total > 0


@pytest.mark.parametrize("budget", [64, 7])
def test_parity_bfloat16_together_and_alone(tmp_path: Path, budget: int) -> None:
    make_tiny_llama(tmp_path, seed=2, dtype=torch.bfloat16)
    together = LLMEngine(EngineConfig(str(tmp_path), dtype="bfloat16", threads=1, max_num_batched_tokens=budget))
    alone = LLMEngine(EngineConfig(str(tmp_path), dtype="bfloat16", threads=1, max_num_batched_tokens=1024))
    assert run_together(together, prompts()) == run_one_by_one(alone, prompts())


def test_parity_of_seeded_sampling_in_any_company(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, seed=3, dtype=torch.bfloat16)
    params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, top_k=50, seed=11, ignore_eos=True)
    engine = LLMEngine(EngineConfig(str(tmp_path), dtype="bfloat16", threads=1, max_num_batched_tokens=64))
    together, alone = run_together(engine, prompts()[:12], params), run_one_by_one(engine, prompts()[:12], params)
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 12
