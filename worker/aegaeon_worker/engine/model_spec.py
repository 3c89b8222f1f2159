"""A model as it is named, and what its files say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class ModelSpec:
    """A model as the scheduler names it; ``dtype`` of None means the device's best."""

    name: str
    path: Path
    dtype: torch.dtype | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    #: Objectives in ns, which the worker only keeps for a scheduler that has lost them.
    ttft_slo_ns: int = 0
    tpot_slo_ns: int = 0
    #: Sequences share the KV of common prefixes.
    prefix_caching: bool = True
    #: What gateways need, kept as well.
    tool_parser: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """What a model's files say; sizes in bytes, lengths in tokens."""

    fingerprint: str
    packed_bytes: int
    kv_block_bytes: int
    kv_block_tokens: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
