"""What one rank holds for a group: its part of weights and KV, on its device."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from aegaeon.errors import AegaeonError
from aegaeon_worker.device.interface import CopyLane, CopyMark, Device, VirtualRange
from aegaeon_worker.engine.execution import GraphRecorder
from aegaeon_worker.engine.loading import ModelPreparer, PreparedModel
from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.engine.packers import Packers
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.shape import kv_range
from aegaeon_worker.models.interface import ServedModel
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.frames import (
    Frame,
    Kind,
    StepFrame,
    number_frame,
    object_frame,
    read_order,
)
from aegaeon_worker.parallel.last_resort import within
from aegaeon_worker.parallel.link import Link
from aegaeon_worker.parallel.mirrored_device import LANES
from aegaeon_worker.parallel.mirrored_steps import FollowingSteps
from aegaeon_worker.weights.resident import weights_range
from aegaeon_worker.weights.stage_gate import StageGate
from aegaeon_worker.weights.weight_file import WeightFile

logger = logging.getLogger(__name__)

#: Time for what a device still has to do when a group ends, in seconds.
_DEVICE_S = 20.0


@dataclass(frozen=True)
class _Range:
    own: VirtualRange
    lane: CopyLane


@dataclass
class _Model:
    """A model that can run here; ``number`` names it in steps."""

    number: int
    served: ServedModel
    weights: WeightFile
    kv: torch.Tensor
    gate: StageGate
    decode: FollowingSteps | None = None
    """As on rank 0, from when it is bound."""


class RankShare:
    """Takes the frames of one group in their order; a context that gives everything back.

    Any error is a ``GroupBroken``: a rank that could not do what the others did is out of step.
    """

    def __init__(
        self,
        device: Device,
        slabs: HostSlabs,
        preparer: ModelPreparer,
        link: Link,
        communicator: Communicator,
        recorder: GraphRecorder | None,
        max_batch_sequences: int,
    ) -> None:
        self._ranks = communicator.ranks
        self._communicator = communicator
        self._recorder = recorder
        self._max_batch_sequences = max_batch_sequences
        self._device = device
        self._slabs = slabs
        self._preparer = preparer
        self._link = link
        self._packers = Packers()
        self._ranges: dict[int, _Range] = {}
        self._numbers: dict[str, int] = {}
        self._prepared: dict[str, PreparedModel] = {}
        # By the number in steps, and by those of its two ranges.
        self._models: dict[int, _Model] = {}
        self._owners: dict[int, _Model] = {}
        self._marks: deque[tuple[CopyMark, int]] = deque()
        self._takers: dict[Kind, Callable[[Frame], None]] = {
            Kind.RESERVE: self._reserve,
            Kind.RELEASE: self._release,
            Kind.MAP: self._map,
            Kind.UNMAP: self._unmap,
            Kind.COPY_WEIGHTS: self._copy_weights,
            Kind.COPY_IN: self._copy_in,
            Kind.COPY_OUT: self._copy_out,
            Kind.FENCE_COPIES: lambda _: self._device.fence_copies(),
            Kind.FENCE_COMPUTE: lambda _: self._device.fence_compute(),
            Kind.MARK: self._mark,
            Kind.PREPARE: self._prepare,
            Kind.INSTALL: self._install,
            # Behind a preparation that may be under way.
            Kind.DROP: lambda frame: self._packers.submit(self._drop, frame.fields()["model"]),
            Kind.STEP: self._step,
            Kind.DECODE: self._decode,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._packers.close()
        with within(_DEVICE_S, "the device hangs after the group has ended"):
            for lane in CopyLane:
                self._device.synchronize(lane)
        while self._models:
            self._models.popitem()[1].weights.release()
        self._owners.clear()
        for reserved in self._ranges.values():
            reserved.own.release()
        for name in list(self._prepared):
            self._drop(name)

    def restrict(self, num_chunks: int) -> None:
        """Offer as much device memory as every rank has."""
        self._device.pool.restrict(num_chunks)

    def take(self, frame: Frame) -> None:
        """Do what rank 0 does."""
        try:
            self._takers[frame.kind](frame)
        except GroupBroken:
            raise
        except Exception as error:
            reason = f"{frame.kind.name}: {type(error).__name__}: {error}"
            raise GroupBroken(reason) from error

    def tell_reached(self) -> bool:
        """Tell of marks whose copies are complete; whether there are others."""
        while self._marks and self._marks[0][0].done:
            self._link.send(number_frame(Kind.REACHED, [self._marks.popleft()[1]]))
        return bool(self._marks)

    # Memory

    def _reserve(self, frame: Frame) -> None:
        fields = frame.fields()
        lane = LANES[fields["lane"]]
        own = self._device.reserve(fields["name"], fields["nbytes"], lane)
        self._ranges[fields["number"]] = _Range(own, lane)
        self._numbers[fields["name"]] = fields["number"]

    def _release(self, frame: Frame) -> None:
        (number,) = frame.numbers()
        reserved = self._ranges.pop(number)
        self._device.synchronize(reserved.lane)
        reserved.own.release()
        del self._numbers[reserved.own.name]
        model = self._owners.pop(number, None)
        if model is not None and reserved.lane is CopyLane.WEIGHTS:
            del self._models[model.number]
            model.weights.release()

    def _map(self, frame: Frame) -> None:
        number, *positions = frame.numbers()
        self._ranges[number].own.map(positions)

    def _unmap(self, frame: Frame) -> None:
        number, *positions = frame.numbers()
        reserved = self._ranges[number]
        self._device.synchronize(reserved.lane)
        reserved.own.unmap(positions)
        if reserved.lane is CopyLane.WEIGHTS:
            self._owners[number].gate.reset()

    def _copy_weights(self, frame: Frame) -> None:
        number, start, end = frame.numbers()
        model = self._owners[number]
        self._device.copy_in(self._ranges[number].own, start, model.weights.data[start:end])
        arriving = [s for s in model.served.layout.stages if start <= s.start and s.end <= end]
        model.gate.hold(arriving, self._device.mark(CopyLane.WEIGHTS))

    def _copy_in(self, frame: Frame) -> None:
        number, offset, place, nbytes = frame.numbers()
        view = self._slabs.bytes_at(place + self._piece(number) * nbytes, nbytes)
        self._device.copy_in(self._ranges[number].own, offset, view)

    def _copy_out(self, frame: Frame) -> None:
        number, offset, place, nbytes = frame.numbers()
        pieces = self._owners[number].served.kv_shape.pieces
        if self._ranks.rank * pieces % self._ranks.size:
            return  # the rank before this one has the same piece, and writes it
        view = self._slabs.bytes_at(place + self._piece(number) * nbytes, nbytes)
        self._device.copy_out(self._ranges[number].own, offset, view)

    def _piece(self, number: int) -> int:
        """Which piece of every block is this rank's."""
        return self._ranks.piece(self._owners[number].served.kv_shape.pieces)

    def _mark(self, frame: Frame) -> None:
        lane, number = frame.numbers()
        self._marks.append((self._device.mark(LANES[lane]), number))

    # Models

    def _prepare(self, frame: Frame) -> None:
        fields = frame.fields()
        dtype = fields["dtype"]
        spec = ModelSpec(
            fields["name"],
            Path(fields["path"]),
            None if dtype is None else getattr(torch, dtype),
            fields["max_model_len"],
            fields["trust_remote_code"],
        )
        self._packers.submit(self._prepare_on_thread, spec)

    def _prepare_on_thread(self, spec: ModelSpec) -> None:
        error = ""
        try:
            self._prepared[spec.name] = self._preparer.prepare(spec, lambda *_: None)
        except AegaeonError as known:
            error = str(known)
        except Exception as unknown:
            logger.exception("%s: opening it failed", spec.name)
            error = f"{spec.name}: opening it failed: {type(unknown).__name__}: {unknown}"
        with contextlib.suppress(GroupBroken):  # the thread that receives finds out as well
            self._link.send(object_frame(Kind.PREPARED, model=spec.name, error=error))

    def _install(self, frame: Frame) -> None:
        fields = frame.fields()
        name, number = fields["model"], fields["number"]
        prepared = self._prepared.pop(name)
        weights = self._numbers[weights_range(name)]
        blocks = self._numbers[kv_range(name)]
        served = prepared.served
        kv = served.kv_shape.tensor_over(self._ranges[blocks].own, self._device.pool.nbytes)
        model = _Model(number, served, prepared.weights, kv, StageGate(served.layout))
        self._models[number] = self._owners[weights] = self._owners[blocks] = model
        own = self._ranges[weights].own
        served.bind(
            {
                slot.spec.name: own.tensor(slot.offset, slot.spec.dtype, slot.spec.shape)
                for slot in served.layout.slots()
            }
        )
        served.use_gate(model.gate)
        model.decode = self._decode_steps(served, kv)

    def _decode_steps(self, served: ServedModel, kv: torch.Tensor) -> FollowingSteps | None:
        if self._recorder is None or served.decode_step is None:
            return None
        return FollowingSteps(
            served.decode_step,
            kv,
            self._recorder,
            max_batch=self._max_batch_sequences,
            max_tokens=served.max_model_len,
            vocab_size=served.vocab_size,
        )

    def _drop(self, name: str) -> None:
        prepared = self._prepared.pop(name, None)
        if prepared is not None:
            prepared.weights.release()

    def _step(self, frame: Frame) -> None:
        step = StepFrame(frame)
        model = self._models[step.model]
        model.served.forward(step.input(model.kv))

    def _decode(self, frame: Frame) -> None:
        number, order, with_tokens = read_order(frame)
        model = self._models[number]
        assert model.decode is not None
        if order.replays:
            # Weights may arrive later here than on rank 0, and what is recorded does not stop.
            model.gate.wait_all()
        model.decode.follow(order, self._communicator, with_tokens=with_tokens)
