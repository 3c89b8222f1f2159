"""The whole stack under measurement: client, scheduler process, worker process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon import LLMService, NodeConfig, Request
from aegaeon.model_spec import ModelSpec
from benchmarks.workload import Run


@dataclass(frozen=True)
class NodeSizes:
    """Memory of a benchmark's node, in bytes."""

    device_bytes: int
    model_cache_bytes: int
    cpu_num_slabs: int = 4
    cpu_slab_bytes: int = 64 << 20


def start_service(models: Sequence[ModelSpec], sizes: NodeSizes) -> LLMService:
    """One node with one worker, as children of this process."""
    return LLMService(
        [
            NodeConfig(
                node_id="node_0",
                num_prefill_engines=0,
                num_decode_engines=0,
                num_engines=1,
                cpu_num_slabs=sizes.cpu_num_slabs,
                cpu_slab_size_bytes=sizes.cpu_slab_bytes,
                model_cache_size=sizes.model_cache_bytes,
                cached_models=list(models),
                device_memory_bytes=sizes.device_bytes,
            )
        ]
    )


class WholeStack:
    """All prompts as concurrent requests of one `LLMService.serve`."""

    name = "aegaeon, whole stack"

    def __init__(self, service: LLMService, model: ModelSpec) -> None:
        self._service = service
        self._model = model

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Run:
        """Serve every prompt at once."""
        start = time.perf_counter()
        requests = [
            Request(
                model=self._model,
                arrival_time=start,
                request_id=number,
                prompt_token_ids=prompt,
                decode_tokens=new_tokens,
                ignore_eos=True,
            )
            for number, prompt in enumerate(prompts)
        ]
        tokens = []
        for output in self._service.serve(requests):
            if isinstance(output, BaseException):
                raise output
            tokens.append([step.new_token_id for step in output])
        return Run(time.perf_counter() - start, tokens)
