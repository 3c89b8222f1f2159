from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aegaeon_worker.kv.block_ledger import BlockLedger


def test_blocks_fill_mapped_chunks_before_new_ones() -> None:
    ledger = BlockLedger(num_blocks=8, block_nbytes=2, chunk_nbytes=4)
    first = ledger.take(3)
    assert (first.blocks, first.new_positions) == ([0, 1, 2], [0, 1])
    assert ledger.give_back([0]) == []
    again = ledger.take(3)
    assert (again.blocks, again.new_positions) == ([0, 3, 4], [2])


def test_a_chunk_without_a_used_block_is_returned() -> None:
    ledger = BlockLedger(num_blocks=8, block_nbytes=2, chunk_nbytes=4)
    ledger.take(4)
    assert ledger.give_back([0]) == []
    assert ledger.give_back([1, 3]) == [0]
    assert ledger.used_positions() == {1}


def test_a_block_across_two_chunks_holds_both() -> None:
    ledger = BlockLedger(num_blocks=4, block_nbytes=3, chunk_nbytes=4)
    assert ledger.take(1).new_positions == [0]
    straddling = ledger.take(1)
    assert (straddling.blocks, straddling.new_positions) == ([1], [1])
    assert ledger.give_back([0]) == []
    assert sorted(ledger.give_back([1])) == [0, 1]


def test_no_new_chunk_is_mapped_while_any_mapped_one_has_room() -> None:
    ledger = BlockLedger(num_blocks=8, block_nbytes=3, chunk_nbytes=8)
    ledger.take(8)
    assert ledger.give_back([2, 3, 4, 5, 7]) == [1]
    # Block 2 is lower, but lies half on the chunk that is not mapped.
    again = ledger.take(1)
    assert (again.blocks, again.new_positions) == ([7], [])


def test_blocks_larger_than_chunks_need_several() -> None:
    ledger = BlockLedger(num_blocks=2, block_nbytes=10, chunk_nbytes=4)
    assert ledger.take(1).new_positions == [0, 1, 2]
    assert ledger.take(1).new_positions == [3, 4]


def test_wrong_use_is_refused() -> None:
    ledger = BlockLedger(num_blocks=2, block_nbytes=1, chunk_nbytes=1)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 of 2 are free"):
        ledger.take(3)
    with pytest.raises(ValueError, match="block 1 is not in use"):
        ledger.give_back([1])


class LedgerMachine(RuleBasedStateMachine):
    """Against plain sets, for blocks smaller and larger than chunks."""

    @initialize(
        num_blocks=st.integers(1, 20), block_nbytes=st.integers(1, 9), chunk=st.integers(1, 12)
    )
    def start(self, num_blocks: int, block_nbytes: int, chunk: int) -> None:
        self.ledger = BlockLedger(num_blocks, block_nbytes, chunk)
        self.chunk = chunk
        self.used: set[int] = set()
        self.mapped: set[int] = set()

    @rule(count=st.integers(0, 21))
    def take(self, count: int) -> None:
        if count > self.ledger.num_blocks - len(self.used):
            with pytest.raises(ValueError, match="are free"):
                self.ledger.take(count)
            return
        taken = self.ledger.take(count)
        assert len(taken.blocks) == count
        assert not self.used & set(taken.blocks)
        assert not self.mapped & set(taken.new_positions)
        self.used |= set(taken.blocks)
        self.mapped |= set(taken.new_positions)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        leaving = data.draw(st.sets(st.sampled_from(sorted(self.used))))
        emptied = self.ledger.give_back(leaving)
        self.used -= leaving
        assert set(emptied) <= self.mapped
        self.mapped -= set(emptied)

    @invariant()
    def chunks_are_mapped_exactly_where_blocks_are_used(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.audit()
        size = self.ledger.block_nbytes
        touched = {
            byte // self.chunk for b in self.used for byte in range(b * size, (b + 1) * size)
        }
        assert self.mapped == touched == self.ledger.used_positions()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
