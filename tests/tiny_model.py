"""Tiny models with seeded random weights, in Hugging Face layout, for tests that need a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.demo_model import ensure_demo_model

VOCAB_SIZE = 512


def make_tiny_llama(
    folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> LlamaForCausalLM:
    """Write a two-layer Llama with grouped-query attention and return transformers' model of it."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**settings | changes)).to(dtype).eval()
    model.save_pretrained(folder)
    return model


def make_tiny_served_model(folder: Path) -> Path:
    """A tiny Llama with the demo model's tokenizer, so that it can be served."""
    from transformers import AutoTokenizer

    make_tiny_llama(folder, vocab_size=8192)
    AutoTokenizer.from_pretrained(ensure_demo_model()).save_pretrained(folder)
    return folder
