"""Rank 0's books stay right when another rank is lost in the middle of a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.interface import CopyLane
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.parallel.mirrored_device import MirroredDevice

CHUNK = 2 << 20


class Ranks:
    """The other ranks, which can be lost and then given up."""

    closed = False
    lost = False

    def send(self, frame: bytes) -> None:
        if self.lost:
            raise GroupBroken("rank 1 is gone")


@pytest.fixture
def own() -> Iterator[CpuDevice]:
    device = CpuDevice(4 * CHUNK, CHUNK)
    yield device
    device.close()


def mirrored(own: CpuDevice) -> tuple[MirroredDevice, Ranks]:
    ranks = Ranks()
    # No copies here, which is what slabs are for.
    return MirroredDevice(own, cast(HostSlabs, None), cast(Followers, ranks)), ranks


def test_a_change_that_a_lost_rank_interrupts_has_not_happened(own: CpuDevice) -> None:
    device, ranks = mirrored(own)
    held = device.reserve("kv", 4 * CHUNK, CopyLane.KV)
    held.map([0, 1])
    ranks.lost = True
    for change in (lambda: held.map([2]), lambda: held.unmap([0]), held.release):
        with pytest.raises(GroupBroken):
            change()
        assert held.mapped == {0, 1}
    with pytest.raises(GroupBroken):
        device.reserve("more", CHUNK, CopyLane.WEIGHTS)
    # So all of it can be given back once the group is given up.
    ranks.closed = True
    held.unmap([0, 1])
    held.release()
    assert own.pool.num_free == 4
