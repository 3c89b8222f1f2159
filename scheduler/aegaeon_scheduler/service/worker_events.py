"""Events of a worker's stream as core values."""

from __future__ import annotations

from aegaeon.rpc.status import from_detail
from aegaeon.v1 import cluster_pb2, worker_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.values import TurnEnd, WorkerMemory
from aegaeon_scheduler.service.convert import model_facts, model_spec
from aegaeon_scheduler.service.kv_place import kv_place
from aegaeon_scheduler.service.log_probabilities import (
    prompt_log_probabilities,
    step_log_probabilities,
)

_OF_SEQUENCES = (
    "sequence_failed",
    "sequence_handed_off",
    "sequence_fetched",
    "sequence_imported",
    "sequence_reused",
)


def worker_event(epoch: int, message: worker_pb2.ExecuteResponse) -> events.Event | None:
    """An event of a worker's stream; None for one of a newer contract."""
    kind = message.WhichOneof("event")
    if kind == "step":
        step = message.step
        return events.StepDone(
            epoch,
            step.turn_id,
            step.handles,
            step.token_ids,
            step.finish_reasons,
            step.step_time_ns,
            step.prefill_tokens,
            step.decode_sequences,
            step.context_tokens,
            step_log_probabilities(step),
            prompt_log_probabilities(step),
        )
    if kind == "turn_started":
        started = message.turn_started
        return events.TurnStarted(
            epoch,
            started.turn_id,
            started.switched,
            started.switch_time_ns,
            started.weight_bytes,
            started.kv_swap_ns,
            started.kv_bytes,
        )
    if kind == "turn_ended":
        ended = message.turn_ended
        reason = TurnEnd(ended.reason)
        return events.TurnEnded(epoch, ended.turn_id, reason, ended.elapsed_ns, ended.steps)
    if kind in _OF_SEQUENCES:
        return _sequence_event(epoch, kind, message)
    if kind == "memory":
        return events.MemoryReported(epoch, _worker_memory(message.memory))
    return _model_event(epoch, kind, message)


def _worker_memory(message: cluster_pb2.WorkerMemory) -> WorkerMemory:
    return WorkerMemory(
        message.device_weight_bytes,
        message.device_kv_bytes,
        message.device_free_bytes,
        message.host_kv_bytes,
        message.weight_cache_bytes,
        message.sequences,
        message.prefix_device_bytes,
        message.prefix_host_bytes,
        message.prefix_queried_tokens,
        message.prefix_reused_tokens,
        message.device_graph_bytes,
    )


def _sequence_event(epoch: int, kind: str, message: worker_pb2.ExecuteResponse) -> events.Event:
    if kind == "sequence_failed":
        failed = message.sequence_failed
        return events.SequenceFailed(epoch, failed.handle, from_detail(failed.error))
    if kind == "sequence_handed_off":
        handed = message.sequence_handed_off
        return events.SequenceHandedOff(
            epoch, handed.handle, kv_place(handed.kv), handed.copy_time_ns
        )
    if kind == "sequence_fetched":
        fetched = message.sequence_fetched
        return events.SequenceFetched(
            epoch,
            fetched.handle,
            fetched.fetched_tokens,
            fetched.bytes,
            fetched.transfer_time_ns,
            fetched.interruptions,
            fetched.refusal,
        )
    if kind == "sequence_reused":
        reused = message.sequence_reused
        return events.SequenceReused(epoch, reused.handle, reused.reused_tokens)
    got = message.sequence_imported
    return events.SequenceImported(
        epoch, got.handle, got.imported_tokens, got.bytes, got.copy_time_ns
    )


def _model_event(
    epoch: int, kind: str | None, message: worker_pb2.ExecuteResponse
) -> events.Event | None:
    if kind == "ready":
        loaded = tuple(
            (model_spec(model.spec), model_facts(model.facts)) for model in message.ready.models
        )
        return events.WorkerReady(epoch, loaded)
    if kind == "load_progress":
        progress = message.load_progress
        return events.LoadProgressed(
            epoch, progress.model, progress.packed_bytes, progress.total_bytes
        )
    if kind == "model_loaded":
        model = message.model_loaded.model
        return events.ModelLoaded(epoch, model_spec(model.spec), model_facts(model.facts))
    if kind == "model_failed":
        failed = message.model_failed
        return events.ModelFailed(epoch, failed.model, from_detail(failed.error))
    if kind == "model_unloaded":
        return events.ModelUnloaded(epoch, message.model_unloaded.model)
    return None
