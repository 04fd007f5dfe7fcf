"""Reference-counted blocks of the KV cache. Block 0 is the null block: always zero, never handed out."""

from __future__ import annotations

from collections import deque

NULL_BLOCK = 0


class BlockPool:
    """Hands out ``num_blocks`` block ids, 1 … ``num_blocks``, and takes each back exactly once per reference."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(1, num_blocks + 1))
        self._references = [0] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each.

        Raises:
            IndexError: fewer are free; ask ``can_allocate`` first.
        """
        if count > len(self._free):
            raise IndexError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        """One more reference to each block in use."""
        for block in blocks:
            self._require_used(block)
            self._references[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Give one reference of each block back.

        Raises:
            ValueError: a block has no reference left (a double free).
        """
        for block in blocks:
            self._require_used(block)
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """Every block is either free once or referenced."""
        free = set(self._free)
        used = {block for block, count in enumerate(self._references) if count > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & used, "a block is free and in use"
        assert len(free) + len(used) == self.num_blocks, "a block is lost"
        assert NULL_BLOCK not in free | used, "the null block was handed out"

    def _require_used(self, block: int) -> None:
        if not 1 <= block <= self.num_blocks or self._references[block] == 0:
            raise ValueError(f"block {block} is not in use: freed twice, or never allocated")
