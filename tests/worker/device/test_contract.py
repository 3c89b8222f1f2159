"""What every device promises, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.interface import CopyLane, Device, VirtualRange
from tests.worker.device.makers import CHUNK, KINDS, opened

LANE = CopyLane.WEIGHTS


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param, 4) as device:
        yield device


def pattern(seed: int, nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def read(device: Device, source: VirtualRange, offset: int, nbytes: int) -> torch.Tensor:
    """Bytes of a range, after everything queued before."""
    target = torch.empty(nbytes, dtype=torch.uint8)
    device.fence_copies()
    device.copy_out(source, offset, target)
    device.synchronize(CopyLane.KV)
    return target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_compute_after_a_mark_sees_what_was_copied_in_before_it(
    device: Device, dtype: torch.dtype
) -> None:
    target = device.reserve("a", 2 * CHUNK, LANE)
    view = target.tensor(256, dtype, (8, 4))
    assert view.device.type == device.torch_device.type
    target.map([0, 1])
    source = torch.arange(32).to(dtype).view(8, 4)
    device.copy_in(target, 256, source)
    mark = device.mark(LANE)
    mark.wait()
    doubled = view * 2
    assert torch.equal(doubled.cpu(), source * 2)
    device.synchronize(LANE)
    assert mark.done


def test_kv_that_compute_wrote_goes_out_and_comes_back_for_later_compute(device: Device) -> None:
    target = device.reserve("a", CHUNK, CopyLane.KV)
    target.map([0])
    view = target.tensor(0, torch.int32, (1024,))
    host = torch.zeros(1024, dtype=torch.int32)
    for value in range(1, 4):
        view.fill_(value)
        device.fence_copies()
        device.copy_out(target, 0, host)
        device.fence_compute()
        view.zero_()
        device.fence_copies()
        device.copy_in(target, 0, host)
        device.fence_compute()
        assert view.unique().tolist() == [value]


def test_what_went_out_may_come_in_elsewhere_at_once(device: Device) -> None:
    source = device.reserve("a", CHUNK, CopyLane.KV)
    target = device.reserve("b", CHUNK, CopyLane.KV)
    source.map([0])
    target.map([0])
    source.tensor(0, torch.uint8, (CHUNK,)).fill_(7)
    host = torch.zeros(CHUNK, dtype=torch.uint8)
    device.fence_copies()
    device.copy_out(source, 0, host)
    device.fence_copies()
    device.copy_in(target, 0, host)
    device.synchronize(CopyLane.KV)
    assert target.tensor(0, torch.uint8, (CHUNK,)).unique().tolist() == [7]


def test_both_lanes_may_be_busy_at_once(device: Device) -> None:
    weights = device.reserve("w", CHUNK, CopyLane.WEIGHTS)
    kv = device.reserve("kv", CHUNK, CopyLane.KV)
    weights.map([0])
    kv.map([0])
    sources = pattern(1, CHUNK), pattern(2, CHUNK)
    device.copy_in(weights, 0, sources[0])
    device.copy_in(kv, 0, sources[1])
    device.synchronize(CopyLane.KV)
    assert torch.equal(kv.tensor(0, torch.uint8, (CHUNK,)).cpu(), sources[1])
    device.synchronize(CopyLane.WEIGHTS)
    assert torch.equal(weights.tensor(0, torch.uint8, (CHUNK,)).cpu(), sources[0])


def test_bytes_survive_neighbours_coming_and_going(device: Device) -> None:
    kept = device.reserve("kept", 2 * CHUNK, CopyLane.KV)
    other = device.reserve("other", 4 * CHUNK, LANE)
    kept.map([1])
    data = pattern(1, CHUNK)
    device.copy_in(kept, CHUNK, data)
    for _ in range(3):
        other.map([0, 2, 3])
        other.tensor(0, torch.uint8, (CHUNK,)).fill_(255)
        assert torch.equal(read(device, kept, CHUNK, CHUNK), data)
        device.synchronize(LANE)
        other.unmap([0, 2, 3])


def test_addresses_stay_the_same_whatever_chunks_are_behind_them(device: Device) -> None:
    first, second = device.reserve("a", 4 * CHUNK, LANE), device.reserve("b", 4 * CHUNK, LANE)
    view = first.tensor(CHUNK, torch.uint8, (CHUNK,))
    for seed in range(3):
        first.map([1, 3])
        data = pattern(seed, CHUNK)
        device.copy_in(first, CHUNK, data)
        device.mark(LANE).wait()
        assert torch.equal(view.cpu(), data)
        assert first.tensor(CHUNK, torch.uint8, (1,)).data_ptr() == view.data_ptr()
        device.synchronize(LANE)
        first.unmap([1, 3])
        second.map([seed])


def test_mapping_is_all_or_nothing_when_chunks_run_out(device: Device) -> None:
    first = device.reserve("first", 3 * CHUNK, LANE)
    second = device.reserve("second", 3 * CHUNK, LANE)
    first.map([0, 1, 2])
    with pytest.raises(OutOfChunks):
        second.map([0, 1])
    assert second.mapped == frozenset()
    assert device.pool.owned() == {"first": 3}


@pytest.mark.parametrize("positions", [[3], [-1], [0], [1, 1]])
def test_wrong_positions_are_refused_and_change_nothing(
    device: Device, positions: list[int]
) -> None:
    target = device.reserve("a", 3 * CHUNK, LANE)
    target.map([0])
    with pytest.raises(ValueError, match="position"):
        target.map(positions)
    assert target.mapped == {0}
    with pytest.raises(ValueError, match="not mapped"):
        target.unmap([0, 2])
    assert target.mapped == {0}


def test_two_ranges_cannot_share_a_name_until_the_first_is_released(device: Device) -> None:
    first = device.reserve("a", CHUNK, LANE)
    with pytest.raises(ValueError, match="reserved already"):
        device.reserve("a", CHUNK, LANE)
    first.release()
    first.release()
    device.reserve("a", CHUNK, LANE)


def test_bytes_outside_a_range_are_refused(device: Device) -> None:
    target = device.reserve("a", CHUNK, LANE)
    target.map([0])
    with pytest.raises(ValueError, match="outside a"):
        target.tensor(CHUNK - 4, torch.float32, (2,))
    with pytest.raises(ValueError, match="outside a"):
        device.copy_in(target, CHUNK - 4, torch.zeros(2))
    with pytest.raises(ValueError, match="outside a"):
        device.copy_out(target, CHUNK - 4, torch.zeros(2))


def test_closing_gives_everything_back_and_twice_is_harmless(device: Device) -> None:
    device.reserve("a", 2 * CHUNK, LANE).map([0, 1])
    device.close()
    device.close()
    assert device.pool.num_free == device.pool.num_chunks


class RangeMachine(RuleBasedStateMachine):
    """Random mapping of two ranges over one small pool; every mapped byte keeps its value."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.opened = opened(self.kind, 3)
        self.device = self.opened.__enter__()
        self.ranges = {name: self.device.reserve(name, 3 * CHUNK, LANE) for name in ("a", "b")}
        self.stamps: dict[tuple[str, int], int] = {}
        self.next_stamp = 1

    @rule(name=st.sampled_from(["a", "b"]), positions=st.sets(st.integers(0, 2), min_size=1))
    def map(self, name: str, positions: set[int]) -> None:
        target = self.ranges[name]
        if positions & target.mapped:
            with pytest.raises(ValueError, match="mapped already"):
                target.map(positions)
        elif len(positions) > self.device.pool.num_free:
            with pytest.raises(OutOfChunks):
                target.map(positions)
        else:
            target.map(positions)
            for position in positions:
                self.stamps[name, position] = self.next_stamp
                self.ends(name, position).fill_(self.next_stamp)
                self.next_stamp += 1

    @precondition(lambda self: self.stamps)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        name, position = data.draw(st.sampled_from(sorted(self.stamps)))
        self.device.synchronize(LANE)
        self.ranges[name].unmap([position])
        del self.stamps[name, position]

    def ends(self, name: str, position: int) -> torch.Tensor:
        words = self.ranges[name].tensor(position * CHUNK, torch.int64, (CHUNK // 8,))
        return words[:: CHUNK // 8 - 1]

    @invariant()
    def mapped_bytes_are_unchanged_and_the_ledger_agrees(self) -> None:
        for (name, position), stamp in self.stamps.items():
            assert self.ends(name, position).tolist() == [stamp, stamp]
        self.device.pool.audit()
        for name, target in self.ranges.items():
            assert target.mapped == {position for owner, position in self.stamps if owner == name}
            assert self.device.pool.owned().get(name, 0) == len(target.mapped)

    def teardown(self) -> None:
        self.opened.__exit__(None, None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_mapping_keeps_every_mapped_byte(kind: str) -> None:
    class Machine(RangeMachine):
        pass

    Machine.kind = kind
    case = Machine.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
    case("runTest").runTest()
