"""How long and from which seed; `make fuzz` gives more time."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

#: For one test, in seconds: all of them together are bounded in CI.
SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
#: Reported when a test fails, with the number of the case: `FUZZ_CASE` begins there. The same in
#: every run, so that a gate does not change by itself; `make fuzz` draws one.
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FIRST = int(os.environ.get("FUZZ_CASE", "0"))
#: The case under way.
where = ""


def cases(name: str) -> Iterator[random.Random]:
    """One source of chance per case, until the time is over."""
    global where
    start, number = time.monotonic(), FIRST
    while time.monotonic() - start < SECONDS:
        where = f"FUZZ_SEED={SEED} FUZZ_CASE={number}"
        yield random.Random(f"{SEED} {name} {number}")
        number += 1
    print(f"{name}: {number - FIRST} cases")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with bytes flipped, cut out, doubled and put in."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        position = chance.randrange(len(out) + 1)
        length = chance.choice((1, 1, 2, 8, 64))
        match chance.randrange(4):
            case 0:
                out[position : position + length] = chance.randbytes(length)
            case 1:
                del out[position : position + length]
            case 2:
                out[position:position] = out[position : position + length]
            case _:
                out[position:position] = chance.choice(_PIECES)
    return bytes(out)


_PIECES = (
    b"\x00",
    b"\xff" * 7 + b"\x7f",
    b"\xed\xa0\x80",
    b"-1",
    b"1e999",
    b"9" * 5_000,
    b"null",
    b"[" * 2_000,
    b"{" * 2_000,
    b'{"a":' * 2_000,
    b"&a [*a]",
    b"*a",
    b"!!python/object:os.system",
    b"2001-99-99",
    b"../../etc/passwd",
    b'"',
    b"\n",
    b": ",
    b"- ",
)
