"""Decode steps that all ranks record and replay alike."""

from __future__ import annotations

import torch

from aegaeon_worker.engine.decode_steps import DecodeSteps, StepOrder
from aegaeon_worker.engine.execution import GraphRecorder
from aegaeon_worker.models.interface import ServedModel
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.parallel.frames import order_frame
from aegaeon_worker.parallel.mirrored_model import MirroredModel


class MirroredSteps(DecodeSteps):
    """Rank 0's. A step that goes on from tokens chosen in steps needs no word about them: every
    rank has them on its device. Those that rank 0 has chosen alone it sends from device to device.
    """

    def __init__(
        self,
        served: ServedModel,
        kv: torch.Tensor,
        recorder: GraphRecorder,
        max_batch: int,
        *,
        followers: Followers,
        communicator: Communicator,
    ) -> None:
        assert isinstance(served, MirroredModel)
        assert served.decode_step is not None
        super().__init__(
            served.decode_step,
            kv,
            recorder,
            max_batch=max_batch,
            max_tokens=served.max_model_len,
            vocab_size=served.vocab_size,
        )
        self._number = served.number
        self._followers = followers
        self._communicator = communicator
        self._told = True

    def apply(self, order: StepOrder) -> None:
        """See ``DecodeSteps``; on all ranks."""
        self._followers.send(order_frame(self._number, order, with_tokens=not self._told))
        if not self._told:
            self._communicator.send_from_first(self._tokens)
            self._told = True
        super().apply(order)

    def _chosen_here(self) -> None:
        self._told = False


class FollowingSteps(DecodeSteps):
    """Another rank's."""

    def follow(self, order: StepOrder, communicator: Communicator, *, with_tokens: bool) -> None:
        """Do what rank 0 does."""
        if with_tokens:
            communicator.send_from_first(self._tokens)
        self.apply(order)
