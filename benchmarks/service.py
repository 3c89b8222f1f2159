"""The whole stack under measurement: client, scheduler process, worker process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from aegaeon import LLMService, NodeConfig, Request, StepOutput
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
        outputs = self._serve(prompts, new_tokens, start)
        seconds = time.perf_counter() - start
        return Run(seconds, [[step.new_token_id for step in output] for output in outputs])

    def step_ms(self, prompts: list[list[int]], new_tokens: int) -> list[float]:
        """Serve every prompt at once: times between steps in which all of them got a token, as the
        scheduler heard of them."""
        outputs = self._serve(prompts, new_tokens, time.perf_counter())
        tokens = Counter(step.received_unix_ns for output in outputs for step in output)
        return [
            (after - before) / 1e6
            for before, after in pairwise(sorted(tokens))
            if tokens[before] == tokens[after] == len(prompts)
        ]

    def _serve(
        self, prompts: list[list[int]], new_tokens: int, start: float
    ) -> list[list[StepOutput]]:
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
        outputs = []
        for output in self._service.serve(requests):
            if isinstance(output, BaseException):
                raise output
            outputs.append(output)
        return outputs
