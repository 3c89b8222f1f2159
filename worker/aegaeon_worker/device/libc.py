"""The memory calls that Python's ``mmap`` module lacks, with ``errno`` checked."""

from __future__ import annotations

import ctypes
import mmap
import os

HUGE_PAGE_NBYTES = 2 << 20

#: Advice of Linux 5.14: fault all pages of a mapping in at once, to be read or written.
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MOVE = 1 | 2 | 4  # MAYMOVE | FIXED | DONTUNMAP

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _failure(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


def _check(call: str, result: int) -> None:
    if result != 0:
        raise _failure(call)


def map_private(nbytes: int) -> int:
    """Reserve inaccessible private addresses, aligned to huge pages; return the first one."""
    padded = nbytes + HUGE_PAGE_NBYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    raw = _libc.mmap(None, padded, 0, flags, -1, 0)
    if raw == _MAP_FAILED:
        raise _failure(f"mmap of {padded} bytes")
    base = -(-raw // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
    if base > raw:
        unmap(raw, base - raw)
    if raw + padded > base + nbytes:
        unmap(base + nbytes, raw + padded - base - nbytes)
    return int(base)


def map_file(fd: int, offset: int, nbytes: int, *, writable: bool) -> int:
    """Map part of a file, shared with every other process that maps it."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, fd, offset)
    if address == _MAP_FAILED:
        raise _failure(f"mmap of {nbytes} file bytes")
    return int(address)


def map_file_at(address: int, fd: int, nbytes: int) -> None:
    """Replace a mapping by the beginning of a file, shared with others who map it."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_SHARED | _MAP_FIXED | _MAP_NORESERVE
    if _libc.mmap(address, nbytes, protection, flags, fd, 0) != address:
        raise _failure(f"mmap of {nbytes} file bytes")


def unmap(address: int, nbytes: int) -> None:
    """Give up a mapping."""
    _check(f"munmap of {nbytes} bytes", _libc.munmap(address, nbytes))


def move_pages(source: int, target: int, nbytes: int) -> None:
    """Move private pages to ``target``, replacing its mapping; ``source`` stays reserved."""
    moved = _libc.mremap(source, nbytes, nbytes, _MREMAP_MOVE, target)
    if moved != target:
        raise _failure(f"mremap of {nbytes} bytes")


def allow_access(address: int, nbytes: int) -> None:
    """Make a mapping readable and writable."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    _check("mprotect", _libc.mprotect(address, nbytes, protection))


def forbid_writes(address: int, nbytes: int) -> None:
    """Make a mapping readable only."""
    _check("mprotect", _libc.mprotect(address, nbytes, mmap.PROT_READ))


def forbid_access(address: int, nbytes: int) -> None:
    """Make every touch of a mapping fault."""
    _check("mprotect", _libc.mprotect(address, nbytes, 0))


def advise(address: int, nbytes: int, advice: int) -> bool:
    """Advise the kernel about a mapping; false if it does not know that advice."""
    return bool(_libc.madvise(address, nbytes, advice) == 0)
