"""KV of token prefixes that several sequences have in common, now or one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from aegaeon_worker.kv.block_ledger import BlockLedger
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import HostBlock
from aegaeon_worker.kv.prefix_index import BlockUsers, HostRun, PrefixIndex
from aegaeon_worker.kv.prefix_use import PrefixUse
from aegaeon_worker.kv.sequence import SequenceKv
from aegaeon_worker.kv.shape import BLOCK_TOKENS


class PrefixCache:
    """Who uses which block of one model, and what is in the blocks that nobody uses.

    Only full blocks are shared. A sequence writes behind its stored tokens alone, and what it
    takes over counts as stored, so no block is written once others can find it.
    """

    def __init__(
        self, ledger: BlockLedger, slabs: HostSlabs, host_nbytes: int, content: int
    ) -> None:
        """``host_nbytes`` are those of a block in host memory; ``content`` says what is in it."""
        self._ledger = ledger
        self._slabs = slabs
        self._host_nbytes = host_nbytes
        self._content = content
        self._index = PrefixIndex()
        self._device: BlockUsers[int] = BlockUsers()
        self._host: BlockUsers[HostBlock] = BlockUsers()
        self._use = PrefixUse()

    @property
    def use(self) -> PrefixUse:
        """How much it helps, and what it occupies on the device."""
        resting = self._ledger.num_resting * self._ledger.block_nbytes
        return self._use + PrefixUse(device_bytes=resting)

    @property
    def num_host_blocks(self) -> int:
        """Host blocks in use."""
        return len(self._host)

    def hold_device(self, blocks: Sequence[int]) -> None:
        """A sequence uses device blocks, fresh or found."""
        for block in blocks:
            if not self._device[block] and self._index.on_device(block) is not None:
                self._ledger.wake(block)
            self._device.hold([block])

    def let_go_device(self, blocks: Sequence[int], *, keep: bool) -> list[int]:
        """A sequence needs blocks no more; returns the chunk positions without a used block.

        To ``keep`` is to leave blocks that can be found where they are. A prefix's last blocks rest
        first, because they are of no use without its first ones.
        """
        free = []
        for block in self._device.let_go(reversed(blocks)):
            found = self._index.on_device(block)
            if found is not None and keep:
                self._ledger.rest(block)
                continue
            if found is not None:
                self._index.forget_device(found)
            free.append(block)
        return self._ledger.give_back(free)

    def evict_device(self, blocks: Iterable[int]) -> list[int]:
        """Free resting blocks; returns the chunk positions without a used block."""
        blocks = list(blocks)
        for block in blocks:
            found = self._index.on_device(block)
            assert found is not None
            self._index.forget_device(found)
        return self._ledger.give_back(blocks)

    def take_new_host(self, count: int, *, spare: bool = False) -> list[HostBlock]:
        """Host blocks for a sequence to use; as ``HostSlabs.take``."""
        taken = self._slabs.take(self._host_nbytes, count, spare=spare)
        self._host.hold(taken)
        return taken

    def take_host(self, kv: SequenceKv, upto: int, *, spare: bool) -> list[int]:
        """Give a sequence a host block for each of its first ``upto`` blocks that has none.

        Where the device block has a copy already, it is shared. Returns the indexes of those that
        are to be copied. ``OutOfHostBlocks`` and no change without room.
        """
        first = len(kv.host_blocks)
        shared = {}
        for index in range(first, min(upto, kv.entered)):
            found = self._index.on_device(kv.device_blocks[index])
            if found is not None and found.host is not None and self._hold_host(found.host):
                shared[index] = found.host
        missing = [index for index in range(first, upto) if index not in shared]
        try:
            taken = self.take_new_host(len(missing), spare=spare)
        except BaseException:
            self.let_go_host(list(shared.values()), keep=True)
            raise
        fresh = dict(zip(missing, taken, strict=True))
        kv.host_blocks.extend((shared | fresh)[index] for index in range(first, upto))
        return missing

    def enter_host(self, kv: SequenceKv, first: int) -> None:
        """The host copy of the blocks from index ``first`` on is complete, or will soon be."""
        for index in range(first, min(kv.entered, kv.saved_tokens // BLOCK_TOKENS)):
            found = self._index.on_device(kv.device_blocks[index])
            if found is not None and found.host is None:
                self._index.enter_host(found, kv.host_blocks[index])

    def let_go_host(self, blocks: Sequence[HostBlock], *, keep: bool) -> None:
        """As ``let_go_device``; no copy to the blocks is under way."""
        free, kept = [], []
        for block in self._host.let_go(reversed(blocks)):
            found = self._index.on_host(block)
            if found is not None and keep:
                kept.append(block)
                continue
            if found is not None:
                self._index.forget_host(found)
            free.append(block)
        self._slabs.give_back(free)
        self._slabs.keep(kept, self._content, self._forget_host)

    def share(self, kv: SequenceKv) -> list[int]:
        """Let a sequence go on with device blocks that hold the KV of its next tokens.

        They replace blocks that it has not written, and blocks that its host copy was made from.
        Returns the chunk positions without a used block.
        """
        keys = kv.keys
        if keys is None or kv.comes:
            return []
        last = keys.num_reusable
        if not kv.resident:
            last = max(last, min(kv.num_full, keys.num_full))
        index = min(len(kv.device_blocks), kv.num_full)
        if index >= last:
            return []
        if not kv.looked_up:
            kv.looked_up = True
            self._use += PrefixUse(queried_tokens=keys.num_tokens)
        replaced = []
        while index < last and (block := self._usable(kv, index)) is not None:
            self.hold_device([block])
            replaced += kv.device_blocks[index : index + 1]
            kv.device_blocks[index : index + 1] = [block]
            index += 1
        self._take_over(kv, index)
        return self.let_go_device(replaced, keep=False)

    def on_host(self, kv: SequenceKv) -> HostRun | None:
        """Blocks in host memory with the KV of a sequence's next tokens, held until ``adopt``."""
        keys = kv.keys
        if keys is None or kv.comes or kv.num_tokens % BLOCK_TOKENS:
            return None
        run = HostRun()
        for index in range(kv.num_full, keys.num_reusable):
            found = self._index.find(keys[index])
            if found is None or found.device is not None or found.host is None:
                break
            run.keys.append(found.key)
            run.blocks.append(found.host)
            (run.held if self._hold_host(found.host) else run.left).append(found.host)
        if not run.blocks:
            return None
        run.place = self._slabs.kept_place(run.left, self._host_nbytes)
        if self._slabs.holds(run.place, self._content):
            return run
        self._miss(run)
        return self.on_host(kv)

    def give_up(self, run: HostRun) -> None:
        """A run is not used after all."""
        self.let_go_host(run.held, keep=True)

    def adopt(self, kv: SequenceKv, run: HostRun) -> None:
        """A run has been copied to the sequence's own blocks, and all copies are complete.

        Without effect if somebody else has taken its host memory meanwhile.
        """
        if not self._slabs.holds(run.place, self._content):
            self._miss(run)
            return
        first = kv.num_full
        for index, key in enumerate(run.keys, first):
            self._index.enter_device(key, kv.device_blocks[index])
        self._take_over(kv, first + len(run.keys))
        self.give_up(run)

    def enter(self, kv: SequenceKv) -> None:
        """Let others find what a sequence has stored since the last call."""
        if kv.keys is None:
            return
        first, last = kv.entered, min(kv.num_full, kv.keys.num_full)
        if last <= first:
            return
        for index in range(first, last):
            found = self._index.find(kv.keys[index])
            if found is not None and found.device is None:
                # Computed once more, and perhaps rounded otherwise than what is in host memory.
                self._index.forget_host(found)
            self._index.enter_device(kv.keys[index], kv.device_blocks[index])
        kv.entered = last
        self.enter_host(kv, first)

    def enter_restored(self, kv: SequenceKv, first: int) -> None:
        """A sequence's host copy is on the device again, from block index ``first`` on."""
        if kv.keys is None:
            return
        for index in range(first, min(kv.entered, len(kv.host_blocks))):
            found = self._index.on_host(kv.host_blocks[index])
            if found is not None and found.key == kv.keys[index]:
                self._index.enter_device(found.key, kv.device_blocks[index])

    def withdraw(self, kv: SequenceKv, first: int) -> None:
        """Nobody is to find a sequence's blocks from index ``first`` on any more.

        ``ValueError`` and no change if others use one of them already. No host copy of it is left.
        """
        blocks = kv.device_blocks[first : kv.entered]
        if any(self._device[block] > 1 for block in blocks):
            raise ValueError("tokens in blocks that other sequences use cannot be taken back")
        for block in blocks:
            self._hide(block)
        kv.entered = min(kv.entered, first)

    def distrust(self, kv: SequenceKv) -> None:
        """A sequence has failed: others are not to find what it has stored."""
        for block in kv.device_blocks[: kv.entered]:
            self._hide(block)
        kv.keys = None

    def drop_kept(self) -> None:
        """Nothing of what nobody uses is kept in host memory."""
        self._slabs.drop_kept(self._forget_host)

    def audit(self, device: Counter[int], host: Counter[HostBlock]) -> None:
        """Raise ``AssertionError`` unless users, ledger and index agree.

        ``device`` and ``host`` are how many sequences list each block.
        """
        self._index.audit()
        self._device.audit(device)
        self._host.audit(host)
        resting = self._ledger.longest_resting(self._ledger.num_resting)
        unknown = [block for block in resting if self._index.on_device(block) is None]
        both = [block for block in resting if self._device[block]]
        if unknown or both or len(self._device) + len(resting) != self._ledger.num_used:
            raise AssertionError(f"used: {sorted(self._device)}, kept: {resting}")

    def _usable(self, kv: SequenceKv, index: int) -> int | None:
        """The device block to use for a sequence's block of this index."""
        assert kv.keys is not None
        found = self._index.find(kv.keys[index])
        if found is None:
            return None
        if index * BLOCK_TOKENS < kv.num_tokens:
            same = kv.host_blocks[index : index + 1] == [found.host]
            return found.device if same and not kv.resident else None
        return found.device

    def _take_over(self, kv: SequenceKv, upto: int) -> None:
        """A sequence's first ``upto`` blocks hold what their keys say."""
        gained = upto * BLOCK_TOKENS - kv.num_tokens
        if gained > 0:
            kv.num_tokens += gained
            kv.reused_tokens += gained
            self._use += PrefixUse(reused_tokens=gained)
        kv.entered = max(kv.entered, upto)

    def _hold_host(self, block: HostBlock) -> bool:
        """Use a host block with its bytes; false if its slab is not this worker's at the moment."""
        if not self._host[block] and not self._slabs.revive(block):
            return False
        self._host.hold([block])
        return True

    def _hide(self, block: int) -> None:
        found = self._index.on_device(block)
        if found is not None:
            self._index.forget_host(found)
            self._index.forget_device(found)

    def _miss(self, run: HostRun) -> None:
        """Others have taken what was to be read."""
        self.give_up(run)
        for block in run.left:
            self._forget_host(block)
        self._slabs.forget_taken()

    def _forget_host(self, block: HostBlock) -> None:
        found = self._index.on_host(block)
        if found is not None:
            self._index.forget_host(found)
