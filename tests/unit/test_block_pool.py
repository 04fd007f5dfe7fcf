"""Blocks are handed out once, given back once, and never lost."""

from __future__ import annotations

import pytest

from engine.block_pool import NULL_BLOCK, BlockPool


def test_every_block_once_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert NULL_BLOCK == 0
    assert not pool.can_allocate(1)
    with pytest.raises(IndexError):
        pool.allocate(1)


def test_a_double_free_raises() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(blocks)
    for stranger in (NULL_BLOCK, 3, -1):
        with pytest.raises(ValueError, match="not in use"):
            pool.free([stranger])
    pool.check()
    assert pool.num_free == 2


def test_a_shared_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.free(blocks)
    assert pool.num_free == 0
    pool.free(blocks)
    assert pool.num_free == 1
    pool.check()
