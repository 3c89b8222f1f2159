"""KV blocks in host memory, in slabs shared by the workers of a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from aegaeon_worker.device.interface import HostPinning
from aegaeon_worker.kv.errors import KvMemoryError, OutOfHostBlocks
from aegaeon_worker.kv.place import BlockRun, HostBlock, KvPlace, runs_of
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.kv.slab import Forget, Kept, Slab
from aegaeon_worker.kv.slab_locks import SlabLocks
from aegaeon_worker.kv.slab_memory import SlabMemory
from aegaeon_worker.kv.slab_reader import SlabReader
from aegaeon_worker.kv.stamps import BlockStamps


class HostSlabs:
    """``num_slabs`` slabs in one sparse file; each belongs to one worker at a time, or to none.

    Who owns which is in ``SlabLocks``, so that a dead worker's slabs are free at once. A slab holds
    blocks of one size and goes back when its last block is freed.

    All workers map all slabs. What an owner publishes, others may copy without asking, as long as
    they check with ``holds`` before and after that it is still the same; see ``BlockStamps``.

    Blocks may be kept: free for whoever needs room, with bytes that are good to read until then. A
    slab with none but kept blocks belongs to nobody, so that keeping takes nothing from anyone.
    Slabs without such bytes are taken before others, then those left the longest time ago.
    """

    def __init__(
        self,
        directory: Path,
        num_slabs: int,
        slab_nbytes: int,
        pinning: HostPinning | None = None,
    ) -> None:
        """Create or join the node's slab file in ``directory``.

        ``pinning`` makes slabs fast to copy from and to; where it really pins, it allocates them.
        ``SharedMemoryFull`` if the directory cannot hold all slabs; ``KvMemoryError`` if another
        worker of the node uses other numbers.
        """
        self.directory = directory
        self._memory = SlabMemory(directory, num_slabs, slab_nbytes, pinning)
        self.num_slabs = num_slabs
        self.slab_nbytes = slab_nbytes
        self._slabs: dict[int, Slab] = {}
        # Those without an own block in use that have kept ones, unless somebody has taken them.
        self._left: dict[int, Slab] = {}
        self._locks = SlabLocks(self._memory.fd)
        self._stamps = BlockStamps(directory)

    @property
    def owned(self) -> frozenset[int]:
        """Slabs that this worker owns."""
        return frozenset(self._slabs)

    @property
    def kept_nbytes(self) -> int:
        """Bytes of blocks that this worker keeps, as far as it knows."""
        slabs = [*self._slabs.values(), *self._left.values()]
        return sum(len(slab.kept) * slab.block_nbytes for slab in slabs)

    def require_block(self, block_nbytes: int) -> None:
        """Raise ``KvMemoryError`` unless a slab holds at least one block of this size."""
        if block_nbytes > self.slab_nbytes:
            raise KvMemoryError(
                f"one KV block of {block_nbytes} bytes does not fit into a slab of "
                f"{self.slab_nbytes} bytes; raise cpu_slab_size_bytes"
            )

    def take(self, block_nbytes: int, count: int, *, spare: bool = False) -> list[HostBlock]:
        """Hand out ``count`` blocks: all of them, or ``OutOfHostBlocks`` and none.

        ``spare`` if they are only to be kept: then no slab is taken of the half of the node's that
        are free last.
        """
        self.require_block(block_nbytes)
        taken: list[HostBlock] = []
        self._take_free(self._of_size(block_nbytes), count, taken)
        plenty = len(taken) == count or self._locks.most_are_free(self.num_slabs)
        if not plenty:
            self._take_kept(self._of_size(block_nbytes), count, taken)
        while len(taken) < count and (plenty or not spare):
            owned = self._own_another(block_nbytes)
            if owned is None:
                break
            found = len(taken)
            self._take_free([owned], count, taken)
            if len(taken) == found:
                self._take_kept([owned], count, taken)
            plenty = not spare or self._locks.most_are_free(self.num_slabs)
        self._take_kept(self._of_size(block_nbytes), count, taken)
        if len(taken) < count:
            self.give_back(taken)
            raise OutOfHostBlocks(
                f"no room for {count} KV blocks of {block_nbytes} bytes in "
                f"{self.num_slabs} slabs of {self.slab_nbytes} bytes"
            )
        return taken

    def give_back(self, blocks: Iterable[HostBlock]) -> None:
        """Free blocks; a slab whose last block is freed goes back to the node."""
        blocks = list(blocks)
        self._withdraw(blocks)
        for block in blocks:
            slab = self._slabs.get(block.slab)
            if slab is None:
                raise ValueError(f"{block} is not in use by this worker")
            slab.give_back(block.index)
            self._leave_if_unused(slab)

    def keep(self, blocks: Sequence[HostBlock], content: int, forget: Forget) -> None:
        """Free complete blocks whose bytes are worth reading again, until ``forget`` is told."""
        try:
            self.publish(blocks, content)
        except OutOfHostBlocks:
            self.give_back(blocks)
            for block in blocks:
                forget(block)
            return
        for block in blocks:
            slab = self._slabs[block.slab]
            slab.keep(block.index, Kept(content, forget))
            self._leave_if_unused(slab)

    def kept_place(self, blocks: Sequence[HostBlock], block_nbytes: int) -> KvPlace:
        """Kept blocks as a place to be read like another worker's: they may be gone at any time."""
        for slab in {block.slab for block in blocks}:
            self._stamps.note_use(slab)
        known = self._left | self._slabs
        runs = runs_of((block, known[block.slab].generations[block.index]) for block in blocks)
        return KvPlace(len(blocks) * BLOCK_TOKENS, block_nbytes, runs)

    def revive(self, block: HostBlock) -> bool:
        """Use a kept block again, bytes and all; false if its slab is not this worker's now."""
        slab = self._slabs.get(block.slab)
        return slab is not None and slab.revive(block.index)

    def forget_taken(self) -> None:
        """Tell those who kept blocks in slabs that others have taken meanwhile."""
        for number, slab in list(self._left.items()):
            if not self._is_untouched(slab):
                del self._left[number]
                slab.forget_kept()

    def drop_kept(self, forget: Forget) -> None:
        """Free what was kept for one, who is not told."""
        for slab in self._slabs.values():
            self._withdraw(slab.drop_kept(forget))
        for number, slab in list(self._left.items()):
            slab.drop_kept(forget)
            if not slab.kept:
                del self._left[number]

    def give_back_all(self) -> None:
        """Free whatever is in use still: those who used it are gone."""
        self.give_back([HostBlock(n, index) for n, s in self._slabs.items() for index in s.used])

    def view(self, first: HostBlock, count: int, block_nbytes: int) -> torch.Tensor:
        """The bytes of ``count`` consecutive blocks, uint8; to be read only in others' slabs."""
        start = first.slab * self.slab_nbytes + first.index * block_nbytes
        return self._memory.data[start : start + count * block_nbytes]

    def offset_of(self, view: torch.Tensor) -> int:
        """Where the bytes of a ``view`` begin, counted from the start of all slabs."""
        return view.data_ptr() - self._memory.address

    def bytes_at(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes that another rank of this worker's engine owns, by ``offset_of`` there."""
        return self._memory.data[offset : offset + nbytes]

    def publish(self, blocks: Sequence[HostBlock], content: int) -> tuple[BlockRun, ...]:
        """Let other workers read complete blocks in use, until these are given back.

        Those that may be read already stay as they are. ``content`` says what the bytes mean:
        readers must expect the same. ``OutOfHostBlocks`` if the file system is full.
        """
        new = BlockStamps.new_generation()
        stamped = [(b, self._slabs[b.slab].generations.get(b.index, new)) for b in blocks]
        runs = runs_of(stamped)
        for run in runs:
            if run.generation == new:
                try:
                    self._stamps.set(run, content)
                except OSError as error:
                    raise OutOfHostBlocks(f"no room to publish {len(blocks)} KV blocks") from error
                for block in run.blocks:
                    self._slabs[run.slab].generations[block.index] = new
        return runs

    def holds(self, place: KvPlace, content: int) -> bool:
        """Whether all of the place is published as such at this moment, by any worker.

        Its memory exists then, so that it may be read, and stays readable whatever its owner does.
        """
        return all(
            run.slab < self.num_slabs
            and (run.first_block + run.num_blocks) * place.block_nbytes <= self.slab_nbytes
            and self._stamps.match(run, content)
            for run in place.runs
        )

    def reader(self) -> SlabReader:
        """Reads what is published here, by any worker, on another thread than this one's."""
        return SlabReader(self.directory, self._memory.address, self.num_slabs, self.slab_nbytes)

    def audit(self) -> dict[int, int]:
        """Blocks in use by block size; ``AssertionError`` if a slab's books are wrong."""
        used: dict[int, int] = {}
        for slab in self._slabs.values():
            slab.audit(self.slab_nbytes // slab.block_nbytes)
            used[slab.block_nbytes] = used.get(slab.block_nbytes, 0) + len(slab.used)
        if both := self._slabs.keys() & self._left.keys():
            raise AssertionError(f"slabs owned and left: {sorted(both)}")
        return used

    def close(self) -> None:
        """Give up every slab; its views must never be touched again."""
        self._memory.close()
        self._stamps.close()
        self._slabs.clear()
        self._left.clear()

    def _withdraw(self, blocks: Iterable[HostBlock]) -> None:
        """Let readers of published blocks know before the blocks are handed out again."""
        owned = [block for block in blocks if block.slab in self._slabs]
        published = [b for b in owned if b.index in self._slabs[b.slab].generations]
        for run in runs_of((block, 0) for block in published):
            self._stamps.clear(run)
            for block in run.blocks:
                del self._slabs[run.slab].generations[block.index]

    def _of_size(self, block_nbytes: int) -> list[Slab]:
        return [s for _, s in sorted(self._slabs.items()) if s.block_nbytes == block_nbytes]

    def _take_free(self, slabs: Iterable[Slab], count: int, taken: list[HostBlock]) -> None:
        for slab in slabs:
            while slab.free and len(taken) < count:
                if not self._memory.extend(slab.number, (slab.free[0] + 1) * slab.block_nbytes):
                    break
                taken.append(slab.take())

    def _take_kept(self, slabs: Iterable[Slab], count: int, taken: list[HostBlock]) -> None:
        found: list[HostBlock] = []
        for slab in slabs:
            while slab.kept and len(taken) + len(found) < count:
                found.append(slab.reclaim())
        self._withdraw(found)
        taken += found

    def _own_another(self, block_nbytes: int) -> Slab | None:
        """Become the owner of a slab in which the least is lost."""

        def loss(number: int) -> tuple[int, int]:
            left = self._left.get(number)
            if left is not None and left.block_nbytes == block_nbytes and left.free:
                return (0, 0)
            return (0, 0) if self._stamps.is_empty(number) else (1, self._stamps.age_order(number))

        others = [number for number in range(self.num_slabs) if number not in self._slabs]
        for number in sorted(others, key=loss):
            if self._locks.lock(number):
                slab = self._return_to(number, block_nbytes)
                if slab is None:
                    self._locks.unlock(number)
                return slab
        return None

    def _return_to(self, number: int, block_nbytes: int) -> Slab | None:
        """Take up a slab just locked, as it was left or afresh; None if its memory has no room."""
        slab = self._left.pop(number, None)
        if slab is not None and self._is_untouched(slab) and slab.block_nbytes == block_nbytes:
            self._slabs[number] = slab
            return slab
        if slab is not None:
            slab.forget_kept()
        self._stamps.clear_slab(number)
        if not self._memory.extend(number, block_nbytes):
            return None
        slab = self._slabs[number] = Slab(number, block_nbytes, self.slab_nbytes // block_nbytes)
        return slab

    def _leave_if_unused(self, slab: Slab) -> None:
        """A slab without a block in use goes back to the node; what is kept there stays."""
        if slab.used or slab.number not in self._slabs:
            return
        del self._slabs[slab.number]
        if slab.kept:
            self._left[slab.number] = slab
        else:
            self._stamps.clear_slab(slab.number)
        self._locks.unlock(slab.number)

    def _is_untouched(self, slab: Slab) -> bool:
        """Whether nobody has owned a slab since it was left: a new owner clears all stamps."""
        index, kept = next(iter(slab.kept.items()))
        run = BlockRun(slab.number, slab.generations[index], index, 1)
        return self._stamps.match(run, kept.content)
