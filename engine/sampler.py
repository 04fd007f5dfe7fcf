"""From logits to the next token of each row."""

from __future__ import annotations

import torch

from engine.request import Request


def sample(logits: torch.Tensor, requests: list[Request], eos_token_ids: frozenset[int]) -> list[int | None]:
    """One token a request, or None where the logits hold a NaN.

    A sampled row depends on its own logits and its own generator alone, so a seeded request gives the same tokens in
    any company. Shape: logits (num_requests, vocab_size), float32.
    """
    for row, request in enumerate(requests):
        if request.num_output_tokens < request.params.min_tokens:
            logits[row, [*eos_token_ids, *request.params.stop_token_ids]] = float("-inf")
    tokens = logits.argmax(dim=-1)
    random_rows = [row for row, request in enumerate(requests) if not request.params.is_greedy]
    if random_rows:
        tokens[random_rows] = _race(logits[random_rows], [requests[row] for row in random_rows])
    broken = logits.isnan().any(dim=-1).tolist()
    return [None if bad else token for token, bad in zip(tokens.tolist(), broken, strict=True)]


def _race(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    """Draw from each row's distribution: the token whose exponential clock, at its probability's rate, rings first.

    Unlike ``torch.multinomial`` it never returns a token of probability zero.
    """
    temperature = logits.new_tensor([request.params.temperature for request in requests])
    probs = torch.softmax(_truncate(logits / temperature[:, None], requests), dim=-1)
    clocks = torch.empty_like(probs)
    for row, request in enumerate(requests):
        clocks[row].exponential_(generator=request.generator)
    return (probs / clocks).argmax(dim=-1)


def _truncate(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    """Keep each row's ``top_k`` likeliest tokens, and of those the fewest whose probability reaches ``top_p``."""
    if all(request.params.top_k == 0 and request.params.top_p == 1 for request in requests):
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = torch.tensor([request.params.top_k or logits.shape[-1] for request in requests], device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k[:, None], float("-inf"))
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(dim=-1) - probs
    # a row without top_p keeps all: its rounded sum may reach 1 early
    top_p = logits.new_tensor([p if (p := request.params.top_p) < 1 else float("inf") for request in requests])
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (rank > 0), float("-inf"))
    return torch.empty_like(logits).scatter_(-1, order, ordered)
