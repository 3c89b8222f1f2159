"""Which version of the contract this release speaks, and which it gets on with.

The contract only grows, and unknown fields are ignored, so that neighbours understand each other:
an upgrade may begin with the scheduler or with a worker. What a client may send only to a scheduler
that understands it is among the contract's capabilities, which the client asks for.
"""

from __future__ import annotations

from aegaeon.errors import ErrorReason, PreconditionError

#: Grows with every release that adds something which the other end must know of.
CONTRACT_VERSION = 1

#: Versions that the two ends may differ by.
_SKEW = 1


def check_version(theirs: int, *, peer: str, ours: int = CONTRACT_VERSION) -> None:
    """Raise PreconditionError for a peer of a version that is too old, too new, or none."""
    if theirs >= 1 and abs(theirs - ours) <= _SKEW:
        return
    older, newer = ("it", "this release") if theirs < ours else ("this release", "it")
    raise PreconditionError(
        f"the {peer} speaks contract version {theirs}, and this is version {ours}, which gets on "
        f"with {max(1, ours - _SKEW)} to {ours + _SKEW}: {older} is too old for {newer}; upgrade "
        "one release at a time",
        reason=ErrorReason.CONTRACT_MISMATCH,
        metadata={"ours": ours, "theirs": theirs},
    )
