"""What not every release understands, and which of it this release does.

Plain Python, so that policy code can use it. Numbers equal those of the contract's `Capability`,
which documents each; `aegaeon.rpc.needs` says which fields need which.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Capability(enum.IntEnum):
    """Something that an end must know before it may be asked for it."""

    GROUPED_SUBMISSIONS = 1
    CONSTRAINTS = 2
    PROMPT_LOGPROBS = 3
    PREFIX_ISOLATION = 4
    TOOL_PARSERS = 5
    KV_FETCH = 6
    TENSOR_PARALLELISM = 7
    KV_OFFERS = 8


Capabilities = frozenset[Capability]
NO_CAPABILITIES: Capabilities = frozenset()

#: Of this release's scheduler.
OF_SCHEDULER: Capabilities = frozenset(Capability)
#: Of this release's workers, as far as a scheduler must know of it.
OF_WORKER: Capabilities = frozenset(
    {
        Capability.CONSTRAINTS,
        Capability.PROMPT_LOGPROBS,
        Capability.KV_FETCH,
        Capability.TENSOR_PARALLELISM,
        Capability.KV_OFFERS,
    }
)

_KNOWN_NUMBERS = frozenset(Capability)


def from_numbers(numbers: Iterable[int]) -> Capabilities:
    """What an end has told; numbers of later releases mean nothing here, and nobody needs them."""
    return frozenset(Capability(number) for number in numbers if number in _KNOWN_NUMBERS)


def named(capabilities: Iterable[Capability]) -> str:
    """Their names, for people."""
    return ", ".join(sorted(capability.name for capability in capabilities))
