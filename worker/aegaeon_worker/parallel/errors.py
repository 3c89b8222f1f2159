"""Errors of groups of ranks."""

from __future__ import annotations


class GroupBroken(Exception):  # noqa: N818 (names a state that callers handle, not a fault)
    """A rank of the engine is gone, hung or out of step: nothing more can run before the ranks
    have found together again.

    It is no `AegaeonError`, since no model and no sequence is at fault: who handles the errors of
    those must not take it for one.
    """
