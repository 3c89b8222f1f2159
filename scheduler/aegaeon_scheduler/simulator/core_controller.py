"""The policy core as the daemon runs it, on simulated workers."""

from __future__ import annotations

from dataclasses import replace

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.values import (
    EngineRole,
    GenerationRequest,
    ModelFacts,
    ModelSpec,
    RequestedStop,
)
from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objectives
from aegaeon_scheduler.simulator.workload import Arrival

_KV_BLOCK_TOKENS = 16
_MAX_MODEL_LEN = 1 << 20
_VOCABULARY = 1 << 32


class CoreController:
    """A `Cluster` with every engine registered and every model deployed on ``replicas`` nodes.

    The first ``prefill_engines`` of every node's engines prefill, and the others decode;
    with 0 all do both.
    """

    def __init__(
        self,
        cluster: Cluster,
        machines: Machines,
        objectives: Objectives,
        prefill_engines: int = 0,
        replicas: int = 1,
    ) -> None:
        self.cluster = cluster
        self._shapes = machines.shapes
        self._backlog = Backlog()
        #: The first token id that no prompt has had.
        self._fresh_token = 0
        for worker in machines.workers():
            role = EngineRole.SIMPLE
            if prefill_engines:
                place = (worker.epoch - 1) % machines.engines_per_node
                role = EngineRole.PREFILL if place < prefill_engines else EngineRole.DECODE
            identity = replace(worker.identity, role=role)
            self._settle(events.WorkerRegistered(worker.epoch, identity))
            self._settle(events.WorkerReady(worker.epoch, ()))
        for operation, name in enumerate(machines.shapes):
            slo = objectives.of(name)
            spec = ModelSpec(name, name, ttft_slo_ns=slo.ttft_ns, tpot_slo_ns=slo.tpot_ns)
            self._settle(events.DeployRequested(operation, spec, replicas, ()))

    def submit(self, arrival: Arrival, now_ns: int) -> tuple[int, list[commands.Command]]:
        """See `Controller`."""
        prompt = arrival.tokens or self._fresh_tokens(arrival.input_tokens)
        request = GenerationRequest(
            arrival.model, "", prompt, (), RequestedStop(arrival.output_tokens, ignore_eos=True)
        )
        try:
            sequence, following = self.cluster.submit(request, self._backlog, now_ns)
        except AegaeonError:
            return 0, []
        return sequence.sequence_id, list(following)

    def requests_of(self, step: events.StepDone) -> list[int]:
        """See `Controller`."""
        sequences = self.cluster.state.engines[step.epoch].sequences
        return [sequences[handle].sequence_id for handle in step.handles]

    def handle(self, event: events.Event, now_ns: int) -> list[commands.Command]:
        """See `Controller`."""
        return list(self.cluster.handle(event, now_ns))

    def _fresh_tokens(self, count: int) -> range:
        """A prompt that has nothing in common with others."""
        first, self._fresh_token = self._fresh_token, self._fresh_token + count
        return range(first, first + count)

    def _settle(self, event: events.Event) -> None:
        """Take in an event of the start, and answer what follows at once."""
        for command in self.cluster.handle(event, 0):
            match command:
                case commands.InspectModel(operation_id=operation, spec=spec):
                    facts = _facts(self._shapes[spec.name])
                    self._settle(events.ModelInspected(operation, facts, None))
                case commands.LoadModel(epoch=epoch, spec=spec):
                    facts = _facts(self._shapes[spec.name])
                    self._settle(events.ModelLoaded(epoch, spec, facts))
                case _:
                    pass


def _facts(shape: ModelShape) -> ModelFacts:
    return ModelFacts(
        fingerprint=shape.name,
        packed_bytes=shape.packed_bytes,
        kv_block_bytes=shape.kv_token_bytes * _KV_BLOCK_TOKENS,
        kv_block_tokens=_KV_BLOCK_TOKENS,
        vocab_size=_VOCABULARY,
        max_model_len=_MAX_MODEL_LEN,
        eos_token_ids=(),
    )
