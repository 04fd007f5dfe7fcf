"""Storage of keys and values in blocks, one pair of tensors a layer."""

from __future__ import annotations

import torch


class KVCache:
    """Keys and values of all layers.

    Shape of each tensor: (num_kv_heads, num_blocks + 1, block_size, head_dim). Heads come first so that gathering
    blocks of many sequences yields (num_kv_heads, num_seqs, tokens, head_dim) in one copy, ready for a batched product.
    A masked position still meets the value, and a NaN there would not stay masked: all values are zero at first, block
    0's for ever, and a block's again when it is handed to the next request.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_kv_heads, num_blocks + 1, block_size, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def clear(self, blocks: torch.Tensor) -> None:
        """Forget the values that blocks hold from their last owner. Shape: blocks (num_blocks,)."""
        for values in self.values:
            values.index_fill_(1, blocks, 0)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put new tokens into their slots.

        Shape: slots (num_tokens,), block_id * block_size + offset; key and value (num_tokens, num_kv_heads, head_dim).
        """
        for cache, new in ((self.keys[layer], key), (self.values[layer], value)):
            cache.flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))

    def gather(self, cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """The tokens of some block tables, side by side.

        Shape: blocks (num_seqs, blocks_each) → (num_kv_heads, num_seqs, blocks_each * block_size, head_dim).
        """
        num_seqs, blocks_each = blocks.shape
        block_size, head_dim = cache.shape[2:]
        return cache.index_select(1, blocks.flatten()).view(-1, num_seqs, blocks_each * block_size, head_dim)
