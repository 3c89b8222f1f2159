"""The models of this worker: being packed, or ready to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from aegaeon.errors import AegaeonError, EngineError, PreconditionError
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.decode_steps import DecodeSteps
from aegaeon_worker.engine.events import (
    Event,
    LoadedModel,
    LoadProgress,
    ModelFailed,
    ModelLoaded,
    ModelUnloaded,
)
from aegaeon_worker.engine.execution import Execution, GraphRecorder
from aegaeon_worker.engine.loading import ModelPreparer, PreparedModel
from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.engine.packers import Packers
from aegaeon_worker.engine.prefill_pace import PrefillPace
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.models.interface import ServedModel
from aegaeon_worker.weights.resident import ResidentWeights

logger = logging.getLogger(__name__)

Publish = Callable[[Event], None]


MakeSteps = Callable[[ServedModel, torch.Tensor, GraphRecorder, int], DecodeSteps]
"""Makes a model's decode steps over its KV range, for batches of so many at most."""


def own_steps(
    served: ServedModel, kv: torch.Tensor, recorder: GraphRecorder, max_batch: int
) -> DecodeSteps:
    """Those of this worker alone."""
    assert served.decode_step is not None
    return DecodeSteps(
        served.decode_step,
        kv,
        recorder,
        max_batch=max_batch,
        max_tokens=served.max_model_len,
        vocab_size=served.vocab_size,
    )


@dataclass(frozen=True)
class InstalledModel:
    """A model bound to its ranges on the device."""

    loaded: LoadedModel
    served: ServedModel
    memory: ModelMemory
    decode: DecodeSteps | None
    """Recorded decode steps, where model and device have them."""
    pace: PrefillPace


@dataclass(frozen=True)
class Prepared:
    """Internal command: packing has ended, well or not."""

    spec: ModelSpec
    outcome: PreparedModel | AegaeonError
    load_time_ns: int


class ModelTable:
    """Loads and unloads models; checkpoints are packed on ``packers``, beside the engine's steps.

    ``post`` brings the outcome of packing back to the engine as a command, from any thread.
    """

    def __init__(
        self,
        preparer: ModelPreparer,
        device: Device,
        memory: MemoryManager,
        packers: Packers,
        post: Callable[[Prepared], None],
        *,
        execution: Execution,
        max_batch_sequences: int,
        make_steps: MakeSteps = own_steps,
    ) -> None:
        self._make_steps = make_steps
        self._preparer = preparer
        self._device = device
        self._memory = memory
        self._packers = packers
        #: Not those, so that no model waits for the kernels of another.
        self._compilers = Packers("compiler")
        self._post = post
        self._execution = execution
        self._max_batch_sequences = max_batch_sequences
        self._installed: dict[str, InstalledModel] = {}
        self._loading: set[str] = set()

    @property
    def loaded(self) -> tuple[LoadedModel, ...]:
        """Models that can run."""
        return tuple(model.loaded for model in self._installed.values())

    def get(self, name: str) -> InstalledModel | None:
        """A model that can run."""
        return self._installed.get(name)

    def load(self, spec: ModelSpec, publish: Publish) -> None:
        """Begin to load; loading the same again is answered at once."""
        known = self._installed.get(spec.name)
        if known is not None and known.loaded.spec == spec:
            publish(ModelLoaded(known.loaded, reused=True, load_time_ns=0))
        elif known is not None or spec.name in self._loading:
            error = PreconditionError(f"{spec.name} is loaded or being loaded in another form")
            publish(ModelFailed(spec.name, error))
        else:
            self._loading.add(spec.name)
            self._packers.submit(self._prepare, spec, publish)

    def install(self, prepared: Prepared, publish: Publish) -> None:
        """Bind what was packed to its ranges on the device."""
        name = prepared.spec.name
        self._loading.discard(name)
        outcome = prepared.outcome
        if isinstance(outcome, AegaeonError):
            publish(ModelFailed(name, outcome))
            return
        try:
            model = self._bind(prepared.spec, outcome)
        except AegaeonError as error:
            publish(ModelFailed(name, error))
            return
        finally:
            outcome.weights.release()
        loaded = LoadedModel(prepared.spec, outcome.facts)
        decode = self._decode_steps(outcome.served, model)
        pace = PrefillPace(self._execution.limits, outcome.served.vocab_size)
        self._installed[name] = InstalledModel(loaded, outcome.served, model, decode, pace)
        publish(ModelLoaded(loaded, outcome.reused, prepared.load_time_ns))
        if self._execution.compile_steps is not None:
            self._compilers.submit(self._compile, name, outcome.served)

    def unload(self, name: str, publish: Publish) -> None:
        """Give a model's memory back; its sequences must have ended."""
        before = self._device.pool.free_nbytes
        if self._installed.pop(name, None) is not None:
            self._memory.remove_model(name)
        publish(ModelUnloaded(name, self._device.pool.free_nbytes - before))

    def close(self) -> None:
        """Unload everything without a word."""
        self._compilers.close()
        for name in list(self._installed):
            self.unload(name, lambda event: None)

    def _bind(self, spec: ModelSpec, prepared: PreparedModel) -> ModelMemory:
        """Reserve the model's ranges and point its parameters there, once for its life."""
        served = prepared.served
        weights = ResidentWeights(self._device, spec.name, served.layout, prepared.reopen)
        try:
            # A model that is deployed stays in the host cache until it is undeployed.
            weights.pin()
            model = self._memory.add_model(
                weights,
                served.kv_shape,
                prepared.facts.fingerprint,
                prefix_caching=spec.prefix_caching,
            )
        except BaseException:
            weights.close()
            raise
        served.bind(weights.tensors())
        served.use_gate(weights.gate)
        return model

    def _decode_steps(self, served: ServedModel, memory: ModelMemory) -> DecodeSteps | None:
        recorder = self._execution.recorder
        if recorder is None or served.decode_step is None:
            return None
        return self._make_steps(served, memory.kv.tensor, recorder, self._max_batch_sequences)

    def _prepare(self, spec: ModelSpec, publish: Publish) -> None:
        """On a packer's thread."""
        began = time.perf_counter_ns()

        def progress(packed: int, total: int) -> None:
            publish(LoadProgress(spec.name, packed, total))

        outcome: PreparedModel | AegaeonError
        try:
            outcome = self._preparer.prepare(spec, progress)
        except AegaeonError as error:
            outcome = error
        except Exception as error:
            logger.exception("%s: loading failed", spec.name)
            outcome = EngineError(f"{spec.name}: loading failed: {type(error).__name__}: {error}")
        self._post(Prepared(spec, outcome, time.perf_counter_ns() - began))

    def _compile(self, name: str, served: ServedModel) -> None:
        """On the compiler's thread, while the model can run already."""
        assert self._execution.compile_steps is not None
        try:
            batch = self._max_batch_sequences
            self._execution.compile_steps(served, batch, lambda: self._compilers.closed)
        except Exception:  # of the compiler: a step will meet it again, and answer for it
            logger.warning("%s: kernels are not compiled beforehand", name, exc_info=True)
