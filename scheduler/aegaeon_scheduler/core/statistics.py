"""Counters since start or reset."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """What `GetRuntime` counts."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    rejected: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    #: Of those, tokens whose KV was there already.
    cached_tokens: int = 0
    #: What was expected of the engines that were chosen.
    expected_cached_tokens: int = 0
    #: Requests that went to another engine than otherwise because it keeps more of their prompts,
    #: by engine, and those that did not because it was too busy.
    prefix_followed: Counter[str] = field(default_factory=Counter)
    prefix_passed_over: int = 0
    recovered: int = 0
    handed_off: int = 0
    #: Of those, without their KV.
    recomputed: int = 0
    stolen_batches: int = 0
    stolen_sequences: int = 0
    #: As workers measured it, summed.
    hand_off_time_ns: int = 0
    import_time_ns: int = 0
    imported_bytes: int = 0
    #: Sequences whose KV came from another node, in whole or in part, and what came.
    fetched: int = 0
    fetch_time_ns: int = 0
    fetched_bytes: int = 0
    fetch_interruptions: int = 0
    routed_by_node: Counter[str] = field(default_factory=Counter)
    placed_by_node: Counter[str] = field(default_factory=Counter)
    evicted_by_node: Counter[str] = field(default_factory=Counter)
