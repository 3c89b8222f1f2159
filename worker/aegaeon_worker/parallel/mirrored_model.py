"""A model of rank 0 whose passes all ranks make together."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from aegaeon_worker.models.interface import DecodeStep, ServedModel, StepInput
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.parallel.frames import Kind, object_frame, step_frame
from aegaeon_worker.weights.stage_gate import StageGate


class MirroredModel:
    """See ``ServedModel``."""

    def __init__(self, name: str, number: int, own: ServedModel, followers: Followers) -> None:
        """``number`` names the model in this group."""
        self._name = name
        self.number = number
        self._own = own
        self._followers = followers
        self.layout = own.layout
        self.kv_shape = own.kv_shape
        self.vocab_size = own.vocab_size
        self.max_model_len = own.max_model_len

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See ``ServedModel``; the other ranks bind their own, whose ranges they have by now."""
        self._followers.send(object_frame(Kind.INSTALL, model=self._name, number=self.number))
        self._own.bind(tensors)

    def use_gate(self, gate: StageGate) -> None:
        """See ``ServedModel``."""
        self._own.use_gate(gate)

    @property
    def decode_step(self) -> DecodeStep | None:
        """See ``ServedModel``: rank 0's part, see ``MirroredSteps``."""
        return self._own.decode_step

    def forward(self, step: StepInput) -> torch.Tensor:
        """See ``ServedModel``; the logits are complete on rank 0, which chooses the tokens.

        ``GroupBroken`` for any error: the other ranks are in the middle of the pass then.
        """
        self._followers.send(step_frame(self.number, step))
        try:
            return self._own.forward(step)
        except GroupBroken:
            raise
        except Exception as error:
            raise GroupBroken(
                f"rank 0 failed in a pass: {type(error).__name__}: {error}"
            ) from error
