"""A decoder-only transformer of Llama's shape over flat steps: every row is one token of some request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.attention.gathered import QueryGroup, attend
from engine.kv_cache import KVCache
from engine.linear import Linear

GetWeight = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What of a checkpoint's config the decoder needs."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float
    tied_embeddings: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The tensors of one step. Shape: token_ids, positions, slots (num_tokens,); sample_rows (num_samples,)."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: list[QueryGroup]
    sample_rows: torch.Tensor


class DecoderLayer:
    """Attention and gated MLP, each behind a norm and added to the residual; q/k/v and gate/up fused."""

    def __init__(self, index: int, shape: DecoderShape, get: GetWeight) -> None:
        prefix = f"model.layers.{index}."
        attention = [get(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv"]
        self._index = index
        self._shape = shape
        self._input_norm = get(f"{prefix}input_layernorm.weight")
        self._qkv = Linear(torch.cat(attention))
        self._output = Linear(get(f"{prefix}self_attn.o_proj.weight"))
        self._mlp_norm = get(f"{prefix}post_attention_layernorm.weight")
        self._gate_up = Linear(torch.cat([get(f"{prefix}mlp.{name}_proj.weight") for name in ("gate", "up")]))
        self._down = Linear(get(f"{prefix}mlp.down_proj.weight"))

    def __call__(
        self, hidden: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], cache: KVCache, step: Step
    ) -> torch.Tensor:
        hidden = hidden + self._attention(rms_norm(hidden, self._input_norm, self._shape.norm_eps), rope, cache, step)
        gate, up = self._gate_up(rms_norm(hidden, self._mlp_norm, self._shape.norm_eps)).chunk(2, dim=-1)
        return hidden + self._down(F.silu(gate) * up)

    def _attention(
        self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], cache: KVCache, step: Step
    ) -> torch.Tensor:
        shape = self._shape
        heads = self._qkv(x).view(len(x), shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        rotated, value = heads.split([shape.num_heads + shape.num_kv_heads, shape.num_kv_heads], dim=1)
        query, key = rotate(rotated, *rope).split([shape.num_heads, shape.num_kv_heads], dim=1)
        cache.write(self._index, step.slots, key, value)
        attended = attend(query, cache, self._index, step.groups, shape.head_dim**-0.5)
        return self._output(attended.view(len(x), -1))


class Decoder:
    """The whole model: token ids in, logits of the sampled rows out.

    Source of the layer's form: Touvron et al., LLaMA (2023), and ``transformers``' Llama, whose results it reproduces.
    """

    def __init__(self, shape: DecoderShape, get: GetWeight, rope: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.shape = shape
        self._embedding = get("model.embed_tokens.weight")
        self._cos, self._sin = (table.to(self._embedding.dtype).unsqueeze(1) for table in rope)
        self._layers = [DecoderLayer(index, shape, get) for index in range(shape.num_layers)]
        self._norm = get("model.norm.weight")
        self._head = Linear(self._embedding if shape.tied_embeddings else get("lm_head.weight"))

    def forward(self, step: Step, cache: KVCache) -> torch.Tensor:
        """Write the step's keys and values and return float32 logits. Shape: (num_samples, vocab_size)."""
        hidden = F.embedding(step.token_ids, self._embedding)
        rope = self._cos[step.positions], self._sin[step.positions]
        for layer in self._layers:
            hidden = layer(hidden, rope, cache, step)
        return self._head(rms_norm(hidden[step.sample_rows], self._norm, self.shape.norm_eps)).float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm, computed in float32 and scaled in the model's type. Shape: (rows, hidden) → the same."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves paired. Shape: x (rows, heads, head_dim), cos and sin (rows, 1, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rope_tables(inverse_frequency: torch.Tensor, scaling: float, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions in float32. Shape: inverse_frequency (head_dim / 2,) → (length, head_dim)."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequency.float())
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scaling, angles.sin() * scaling
