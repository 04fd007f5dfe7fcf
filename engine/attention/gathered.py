"""Attention over the paged cache by gathering blocks, then two plain matrix products with a float32 softmax.

How far a query's keys are padded depends on its own position alone (``padded_length``), never on the company it is
computed in or on how its prompt was cut into chunks. Where the products are row-invariant (bfloat16 on CPUs), the same
request therefore gives bit-identical results alone and in any batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from engine.block_pool import NULL_BLOCK
from engine.kv_cache import KVCache
from engine.scheduler import ScheduledChunk


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Queries that share a padded length: one token of each of several requests, or a run of tokens of one.

    Shape: rows (num_seqs * num_queries,) into the flat step; blocks (num_seqs, blocks_each);
    mask (num_seqs, 1, num_queries, blocks_each * block_size), true where a key may be seen.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor


def padded_blocks(position: int, block_size: int) -> int:
    """Blocks that a query at ``position`` sees: its own context rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 … blocks."""
    needed = position // block_size + 1
    power = 1 << (needed - 1).bit_length()
    return power * 3 // 4 if power >= 4 and needed <= power * 3 // 4 else power


def build_groups(chunks: list[ScheduledChunk], block_size: int, device: torch.device) -> list[QueryGroup]:
    """Cut a step into groups of equal padded length."""
    singles: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    groups: list[QueryGroup] = []
    row = 0
    for chunk in chunks:
        position = chunk.request.num_computed_tokens
        end = position + chunk.num_tokens
        while position < end:
            blocks_each = padded_blocks(position, block_size)
            stop = min(end, blocks_each * block_size)
            table = _padded(chunk.request.block_table, blocks_each)
            if stop - position == 1:
                singles[blocks_each].append((row, position, table))
            else:
                groups.append(_run(row, position, stop, table, block_size, device))
            row += stop - position
            position = stop
    for blocks_each, members in singles.items():
        groups.append(_one_each(members, blocks_each * block_size, device))
    return groups


def _padded(table: list[int], length: int) -> list[int]:
    return table[:length] + [NULL_BLOCK] * (length - len(table))


def _run(row: int, position: int, stop: int, table: list[int], block_size: int, device: torch.device) -> QueryGroup:
    queries = torch.arange(position, stop)
    keys = torch.arange(len(table) * block_size)
    mask = (keys[None, :] <= queries[:, None])[None, None]
    rows = torch.arange(row, row + stop - position)
    return QueryGroup(rows.to(device), torch.tensor([table], device=device), mask.to(device))


def _one_each(members: list[tuple[int, int, list[int]]], padded_tokens: int, device: torch.device) -> QueryGroup:
    rows, positions, tables = zip(*members, strict=True)
    mask = torch.arange(padded_tokens)[None, :] <= torch.tensor(positions)[:, None]
    return QueryGroup(
        torch.tensor(rows, device=device), torch.tensor(tables, device=device), mask[:, None, None].to(device)
    )


def attend(query: torch.Tensor, cache: KVCache, layer: int, groups: list[QueryGroup], scale: float) -> torch.Tensor:
    """Causal attention of every query over its own request's cached tokens, its own included.

    Shape: query (num_tokens, num_heads, head_dim) → the same.
    """
    output = torch.empty_like(query)
    for group in groups:
        keys = cache.gather(cache.keys[layer], group.blocks)
        values = cache.gather(cache.values[layer], group.blocks)
        output[group.rows] = _attend_group(query[group.rows], keys, values, group.mask, scale)
    return output


def _attend_group(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Query heads of one KV head are folded into the query length: grouped-query attention without copies of K or V."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, num_seqs, num_keys, _ = keys.shape
    per_seq, per_kv_head = num_rows // num_seqs, num_heads // num_kv_heads
    folded = query.view(num_seqs, per_seq, num_kv_heads, per_kv_head, head_dim).permute(2, 0, 3, 1, 4)
    folded = folded.reshape(num_kv_heads, num_seqs, per_kv_head * per_seq, head_dim)
    scores = torch.matmul(folded, keys.transpose(-1, -2)).float().mul_(scale)
    scores.view(num_kv_heads, num_seqs, per_kv_head, per_seq, num_keys).masked_fill_(~mask, float("-inf"))
    result = torch.matmul(torch.softmax(scores, dim=-1).to(values.dtype), values)
    result = result.view(num_kv_heads, num_seqs, per_kv_head, per_seq, head_dim).permute(1, 3, 0, 2, 4)
    return result.reshape(num_rows, num_heads, head_dim)
