"""Nodes and requests that are cheap to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aegaeon import NodeConfig, Request, StepOutput
from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec

MIB = 1 << 20
#: Two chunks of the device pool: the weights of one tiny model, and KV.
ONE_MODEL_BYTES = 64 * MIB


def tiny_node(models: Sequence[ModelSpec], **overrides: Any) -> NodeConfig:
    """A node of one engine whose device holds one tiny model at a time."""
    fields: dict[str, Any] = {
        "node_id": "node_0",
        "num_prefill_engines": 0,
        "num_decode_engines": 0,
        "num_engines": 1,
        "cpu_num_slabs": 4,
        "cpu_slab_size_bytes": 4 * MIB,
        "model_cache_size": 64 * MIB,
        "device_memory_bytes": ONE_MODEL_BYTES,
        "cached_models": list(models),
    }
    return NodeConfig(**{**fields, **overrides})


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths, one block and several, all different."""
    return [
        [(seed * 131 + number * 17 + position * 7) % 500 + 5 for position in range(1 + 9 * number)]
        for number in range(count)
    ]


def ask(model: ModelSpec | str, prompt: Sequence[int], new_tokens: int, **fields: Any) -> Request:
    """A request that ends only at its length, unless ``fields`` say otherwise."""
    return Request(
        model=model,
        arrival_time=0.0,
        request_id=0,
        prompt_token_ids=prompt,
        decode_tokens=new_tokens,
        **{"ignore_eos": True, **fields},
    )


def tokens_of(output: list[StepOutput] | AegaeonError) -> list[int]:
    """The token ids of a request that ended well."""
    if isinstance(output, AegaeonError):
        raise output
    return [step.new_token_id for step in output]
