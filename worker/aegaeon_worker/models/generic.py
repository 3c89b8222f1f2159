"""Any causal LM of ``transformers`` that attends through its attention interface."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

import torch
from transformers import PreTrainedModel

from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.generic_shards import ModuleShards
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.linear import use_cpu_linear
from aegaeon_worker.models.paged.step import PagedPass
from aegaeon_worker.models.parameters import bind_parameters, move_computed_buffers
from aegaeon_worker.models.probe import AttentionFacts
from aegaeon_worker.parallel.collectives import Collectives
from aegaeon_worker.weights.layout import Stage, WeightLayout
from aegaeon_worker.weights.stage_gate import StageGate


class GenericModel:
    """A ``ServedModel`` over an unmodified ``transformers`` module."""

    #: Attention here is planned on the host.
    decode_step = None

    def __init__(
        self,
        module: PreTrainedModel,
        layout: WeightLayout,
        ties: Mapping[str, str],
        facts: AttentionFacts,
        shards: ModuleShards,
        collectives: Collectives,
        *,
        dtype: torch.dtype,
        max_model_len: int,
    ) -> None:
        """``module``, ``layout`` and ``facts`` are those of one rank."""
        self._module = module
        self._ties = ties
        self._facts = facts
        self._shards = shards
        self._collectives = collectives
        self.layout = layout
        self.kv_shape = KvShape(
            len(facts.windows), facts.num_kv_heads, facts.head_dim, dtype, shards.kv_pieces
        )
        self.vocab_size = int(module.config.get_text_config().vocab_size)
        self.max_model_len = max_model_len

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See ``ServedModel``; ``tensors`` has the names of the layout."""
        bind_parameters(self._module, tensors, self._ties)
        device = next(iter(tensors.values())).device
        move_computed_buffers(self._module, device)
        if device.type == "cpu" and self.kv_shape.dtype == torch.float32:
            use_cpu_linear(self._module, self._facts.shared_inputs)
        self._shards.hook(self._module, self._collectives, self.vocab_size)

    def use_gate(self, gate: StageGate) -> None:
        """See ``ServedModel``."""
        for stage in self.layout.stages:
            for name in _entrances(stage):
                self._module.get_submodule(name).register_forward_pre_hook(
                    lambda *_, stage=stage.name: gate.wait(stage)
                )

    @torch.inference_mode()
    def forward(self, step: StepInput) -> torch.Tensor:
        """See ``ServedModel``."""
        output = self._module(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.logit_rows,
            paged_pass=PagedPass(step, self._facts.windows, masked=self._facts.masked),
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def _entrances(stage: Stage) -> set[str]:
    """The modules whose calls come first in a stage: its layer, or whatever owns its tensors."""
    owners = [slot.spec.name.split(".")[:-1] for slot in stage.slots]
    if not stage.name.startswith("layer."):
        return {".".join(owner) for owner in owners}
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*owners, strict=False))
    return {".".join(parts[0] for parts in shared)}
