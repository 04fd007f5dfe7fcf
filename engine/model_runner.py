"""Runs a schedule on the device: tensors in, sampled tokens out."""

from __future__ import annotations

import torch

from engine.attention.gathered import build_groups
from engine.block_pool import NULL_BLOCK
from engine.kv_cache import KVCache
from engine.models.decoder import Decoder, Step
from engine.request import Request
from engine.sampler import sample
from engine.scheduler import ScheduledChunk


class ModelRunner:
    """Holds the model and its KV cache."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, block_size: int, device: torch.device, eos: frozenset[int]
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._block_size = block_size
        self._device = device
        self._eos = eos

    @torch.inference_mode()
    def run(self, chunks: list[ScheduledChunk]) -> list[tuple[Request, int | None]]:
        """Compute the chunks; the next token of each request whose last known token is among them (None: NaN)."""
        if new_blocks := [block for chunk in chunks for block in chunk.new_blocks]:
            self._cache.clear(self._tensor(new_blocks))
        logits = self._decoder.forward(self._build(chunks), self._cache)
        requests = [chunk.request for chunk in chunks if _ends_at_last_token(chunk)]
        return list(zip(requests, sample(logits, requests, self._eos), strict=True))

    def _build(self, chunks: list[ScheduledChunk]) -> Step:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sample_rows: list[int] = []
        for chunk in chunks:
            request = chunk.request
            span = range(request.num_computed_tokens, request.num_computed_tokens + chunk.num_tokens)
            token_ids += request.token_ids[span.start : span.stop]
            positions += span
            slots += [self._slot(request, position) for position in span]
            if _ends_at_last_token(chunk):
                sample_rows.append(len(token_ids) - 1)
        return Step(
            self._tensor(token_ids),
            self._tensor(positions),
            self._tensor(slots),
            build_groups(chunks, self._block_size, self._device),
            self._tensor(sample_rows),
        )

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self._device)

    def _slot(self, request: Request, position: int) -> int:
        block = request.block_table[position // self._block_size]
        assert block != NULL_BLOCK
        return block * self._block_size + position % self._block_size


def _ends_at_last_token(chunk: ScheduledChunk) -> bool:
    return chunk.request.num_computed_tokens + chunk.num_tokens == chunk.request.num_tokens
