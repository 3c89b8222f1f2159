from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.pool import DevicePool

OWNERS = ("a", "b", "c")


def test_take_is_all_or_nothing() -> None:
    pool = DevicePool(4, 2 << 20)
    pool.take("a", 3)
    with pytest.raises(OutOfChunks, match=r"b needs 2 chunks of 2097152 bytes, but only 1 of 4"):
        pool.take("b", 2)
    assert pool.owned() == {"a": 3}
    assert pool.num_free == 1


def test_a_chunk_can_only_be_returned_by_its_owner_and_once() -> None:
    pool = DevicePool(4, 1)
    chunks = pool.take("a", 2)
    with pytest.raises(ValueError, match="belongs to a, not to b"):
        pool.give_back("b", chunks)
    with pytest.raises(ValueError, match="twice"):
        pool.give_back("a", [chunks[0], chunks[0]])
    pool.give_back("a", chunks)
    with pytest.raises(ValueError, match="belongs to nobody"):
        pool.give_back("a", chunks)
    pool.audit()


def test_touched_chunks_are_reused_first() -> None:
    pool = DevicePool(8, 1)
    first = pool.take("a", 3)
    pool.give_back("a", first)
    assert pool.take("b", 3) == first


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one chunk"):
        DevicePool(0, 1)


class PoolMachine(RuleBasedStateMachine):
    """Against a model that only knows who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = DevicePool(7, 3)
        self.held: dict[str, list[int]] = {owner: [] for owner in OWNERS}

    @rule(owner=st.sampled_from(OWNERS), count=st.integers(0, 9))
    def take(self, owner: str, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(OutOfChunks):
                self.pool.take(owner, count)
        else:
            self.held[owner] += self.pool.take(owner, count)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([owner for owner in OWNERS if self.held[owner]]))
        leaving = data.draw(st.sets(st.sampled_from(self.held[owner])))
        self.pool.give_back(owner, leaving)
        self.held[owner] = [chunk for chunk in self.held[owner] if chunk not in leaving]

    @invariant()
    def every_chunk_is_free_or_has_one_owner(self) -> None:
        self.pool.audit()
        taken = [chunk for chunks in self.held.values() for chunk in chunks]
        assert len(taken) == len(set(taken))
        assert self.pool.num_free == 7 - len(taken)
        assert self.pool.owned() == {o: len(c) for o, c in self.held.items() if c}


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
