"""Which blocks of the node's slabs hold published KV, for all workers to see."""

from __future__ import annotations

import os
import secrets
import struct
from pathlib import Path

from aegaeon_worker.kv.place import BlockRun

_STAMP = struct.Struct("<QQ")


class BlockStamps:
    """A generation and a content number per block, both 0 while the block is not published.

    A reader compares a block's stamp before and after it copies the block. The owner stamps a block
    once its bytes are complete and clears the stamp before it hands the block out again, so equal
    stamps mean that the bytes in between were those published. Nobody waits for anybody.

    One file per slab: whoever becomes its owner empties the file first, which clears what an owner
    that died has left. Generations are random numbers of 64 bits, so that they repeat neither
    within an owner's life nor across restarts. Stamps go through system calls instead of a mapping:
    these order them with the copies around them, and a full file system is an error and no signal.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fds: dict[int, int] = {}

    @staticmethod
    def new_generation() -> int:
        """A number for blocks that are published together."""
        return 1 + secrets.randbelow((1 << 64) - 1)

    def set(self, run: BlockRun, content: int) -> None:
        """Stamp blocks of an own slab; ``OSError`` if the file system is full."""
        self._write(run.slab, run.first_block, _STAMP.pack(run.generation, content), run.num_blocks)

    def clear(self, run: BlockRun) -> None:
        """Clear stamps of an own slab."""
        self._write(run.slab, run.first_block, bytes(_STAMP.size), run.num_blocks)

    def clear_slab(self, slab: int) -> None:
        """Clear all stamps of a slab that has become an own one."""
        os.ftruncate(self._fd(slab), 0)

    def match(self, run: BlockRun, content: int) -> bool:
        """Whether every block of the run, in anybody's slab, has this stamp."""
        expected = _STAMP.pack(run.generation, content) * run.num_blocks
        offset = run.first_block * _STAMP.size
        found = os.pread(self._fd(run.slab), len(expected), offset)
        return run.generation != 0 and found == expected

    def is_empty(self, slab: int) -> bool:
        """Whether nobody has left anything to read in a slab."""
        if slab in self._fds:
            return os.fstat(self._fds[slab]).st_size == 0
        path = self._path(slab)
        return not path.exists() or path.stat().st_size == 0

    def age_order(self, slab: int) -> int:
        """Lower for a slab whose readable blocks were left or read by their owner longer ago."""
        return os.fstat(self._fd(slab)).st_mtime_ns

    def note_use(self, slab: int) -> None:
        """What was left in a slab has been of use."""
        os.utime(self._fd(slab))

    def close(self) -> None:
        """Close the files; what is stamped stays stamped."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _write(self, slab: int, first_block: int, stamp: bytes, count: int) -> None:
        data = stamp * count
        written = os.pwrite(self._fd(slab), data, first_block * _STAMP.size)
        if written < len(data):  # the next byte finds the file system full, and says so
            os.pwrite(self._fd(slab), data[written:], first_block * _STAMP.size + written)

    def _path(self, slab: int) -> Path:
        return self._directory / f"stamps-{slab}"

    def _fd(self, slab: int) -> int:
        if slab not in self._fds:
            self._fds[slab] = os.open(
                self._path(slab), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        return self._fds[slab]
