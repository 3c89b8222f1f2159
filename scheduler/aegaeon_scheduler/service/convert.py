"""Contract messages to core values and back: the one place where both are known."""

from __future__ import annotations

from aegaeon.errors import InvalidRequestError
from aegaeon.rpc.status import from_detail
from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2, worker_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import (
    DataType,
    DeviceFacts,
    EngineRole,
    GenerationRequest,
    ModelFacts,
    ModelSpec,
    NodeMemory,
    RequestedStop,
    StopConditions,
    TurnEnd,
    WorkerIdentity,
    WorkerMemory,
)
from aegaeon_scheduler.service.kv_place import kv_place, kv_place_message
from aegaeon_scheduler.service.sampling import sampling_message, sampling_parameters


def generation_request(
    message: inference_pb2.GenerateRequest, timeout_ns: int = 0, stream_id: int = 0
) -> GenerationRequest:
    """A request; its token ids stay in the message's own compact arrays."""
    if not message.HasField("stop"):
        raise InvalidRequestError(
            "stop is missing; it must hold at least max_new_tokens",
            metadata={"field": "stop", "value": ""},
        )
    stop = message.stop
    return GenerationRequest(
        model=message.model,
        label=message.label,
        prompt=message.prompt_token_ids,
        generated=message.generated_token_ids,
        stop=RequestedStop(
            stop.max_new_tokens,
            stop.min_new_tokens,
            tuple(stop.eos_token_ids),
            tuple(stop.stop_token_ids),
            stop.ignore_eos,
            stop.max_model_len,
        ),
        timeout_ns=timeout_ns,
        priority=message.priority,
        ttft_slo_ns=message.ttft_slo_ns,
        tpot_slo_ns=message.tpot_slo_ns,
        stream_id=stream_id,
        sampling=sampling_parameters(message),
    )


def model_spec(message: model_pb2.ModelSpec) -> ModelSpec:
    """A spec; an unknown data type is an error."""
    try:
        dtype = DataType(message.dtype)
    except ValueError:
        raise InvalidRequestError(
            f"spec.dtype is {message.dtype}; it must be a DataType of this contract version",
            metadata={"field": "spec.dtype", "value": message.dtype},
        ) from None
    return ModelSpec(
        message.name,
        message.path,
        dtype,
        message.max_model_len,
        message.trust_remote_code,
        message.ttft_slo_ns,
        message.tpot_slo_ns,
    )


def model_spec_message(spec: ModelSpec) -> model_pb2.ModelSpec:
    """The opposite of `model_spec`."""
    return model_pb2.ModelSpec(
        name=spec.name,
        path=spec.path,
        dtype=model_pb2.DataType.Name(spec.dtype),
        max_model_len=spec.max_model_len,
        trust_remote_code=spec.trust_remote_code,
        ttft_slo_ns=spec.ttft_slo_ns,
        tpot_slo_ns=spec.tpot_slo_ns,
    )


def model_facts(message: model_pb2.ModelFacts) -> ModelFacts:
    """Facts that a worker read."""
    return ModelFacts(
        fingerprint=message.fingerprint,
        packed_bytes=message.packed_bytes,
        kv_block_bytes=message.kv_block_bytes,
        kv_block_tokens=message.kv_block_tokens,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
    )


def model_facts_message(facts: ModelFacts) -> model_pb2.ModelFacts:
    """The opposite of `model_facts`."""
    return model_pb2.ModelFacts(
        fingerprint=facts.fingerprint,
        packed_bytes=facts.packed_bytes,
        kv_block_bytes=facts.kv_block_bytes,
        kv_block_tokens=facts.kv_block_tokens,
        vocab_size=facts.vocab_size,
        max_model_len=facts.max_model_len,
        eos_token_ids=facts.eos_token_ids,
    )


def worker_identity(message: cluster_pb2.RegisterWorkerRequest) -> WorkerIdentity:
    """A worker as it registers."""
    device, memory = message.device, message.memory
    return WorkerIdentity(
        node_id=message.node_id,
        worker_index=message.worker_index,
        address=message.address,
        device=DeviceFacts(
            device.kind,
            device.name,
            device.pool_bytes,
            device.chunk_bytes,
            device.memory_bytes_per_s,
            device.host_link_bytes_per_s,
            device.flops_per_s,
        ),
        memory=NodeMemory(memory.cpu_num_slabs, memory.cpu_slab_bytes, memory.weight_cache_bytes),
        max_batch_sequences=message.max_batch_sequences,
        incarnation=message.incarnation,
        pid=message.pid,
        role=EngineRole(message.role or EngineRole.SIMPLE),
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
    if kind == "sequence_failed":
        failed = message.sequence_failed
        return events.SequenceFailed(epoch, failed.handle, from_detail(failed.error))
    if kind == "sequence_handed_off":
        handed = message.sequence_handed_off
        return events.SequenceHandedOff(
            epoch, handed.handle, kv_place(handed.kv), handed.copy_time_ns
        )
    if kind == "sequence_imported":
        got = message.sequence_imported
        return events.SequenceImported(
            epoch, got.handle, got.imported_tokens, got.bytes, got.copy_time_ns
        )
    if kind == "memory":
        return events.MemoryReported(epoch, worker_memory(message.memory))
    return _model_event(epoch, kind, message)


def worker_memory(message: cluster_pb2.WorkerMemory) -> WorkerMemory:
    """Memory as a worker reports it."""
    return WorkerMemory(
        message.device_weight_bytes,
        message.device_kv_bytes,
        message.device_free_bytes,
        message.host_kv_bytes,
        message.weight_cache_bytes,
        message.sequences,
    )


def command_message(command: commands.WorkerCommand) -> worker_pb2.ExecuteRequest:
    """A command for a worker's stream."""
    match command:
        case commands.AddSequence():
            return worker_pb2.ExecuteRequest(
                add_sequences=worker_pb2.AddSequences(sequences=[_sequence_spec(command)])
            )
        case commands.JoinTurn(turn_id=turn_id, handles=handles):
            return worker_pb2.ExecuteRequest(
                join_turn=worker_pb2.JoinTurn(turn_id=turn_id, handles=handles)
            )
        case commands.QueueTurn():
            return worker_pb2.ExecuteRequest(
                queue_turn=worker_pb2.QueueTurn(
                    turn_id=command.turn_id,
                    model=command.model,
                    handles=command.handles,
                    quota_ns=command.quota_ns,
                    prefetch_model=command.prefetch_model,
                    stage=cluster_pb2.TurnStage.Name(command.stage),
                )
            )
        case commands.LeaveTurn(turn_id=turn_id, handles=handles):
            return worker_pb2.ExecuteRequest(
                leave_turn=worker_pb2.LeaveTurn(turn_id=turn_id, handles=handles)
            )
        case commands.LimitTurn(turn_id=turn_id, quota_ns=quota_ns):
            return worker_pb2.ExecuteRequest(
                limit_turn=worker_pb2.LimitTurn(turn_id=turn_id, quota_ns=quota_ns)
            )
        case commands.CancelSequences(handles=handles):
            return worker_pb2.ExecuteRequest(
                cancel_sequences=worker_pb2.CancelSequences(handles=handles)
            )
        case commands.ReleaseSequences(handles=handles):
            return worker_pb2.ExecuteRequest(
                release_sequences=worker_pb2.ReleaseSequences(handles=handles)
            )
        case commands.LoadModel(spec=spec):
            return worker_pb2.ExecuteRequest(
                load_model=worker_pb2.LoadModel(spec=model_spec_message(spec))
            )
        case commands.UnloadModel(model=model):
            return worker_pb2.ExecuteRequest(unload_model=worker_pb2.UnloadModel(model=model))


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


def _sequence_spec(command: commands.AddSequence) -> worker_pb2.SequenceSpec:
    return worker_pb2.SequenceSpec(
        handle=command.handle,
        model=command.model,
        prompt_token_ids=command.prompt,
        generated_token_ids=command.generated,
        stop=_stop_message(command.stop),
        kv=None if command.kv is None else kv_place_message(command.kv),
        sampling=None if command.sampling is None else sampling_message(command.sampling),
    )


def _stop_message(stop: StopConditions) -> inference_pb2.StopConditions:
    return inference_pb2.StopConditions(
        max_new_tokens=stop.max_new_tokens,
        min_new_tokens=stop.min_new_tokens,
        eos_token_ids=stop.eos_token_ids,
        stop_token_ids=stop.stop_token_ids,
        ignore_eos=stop.ignore_eos,
        max_model_len=stop.max_model_len,
    )
