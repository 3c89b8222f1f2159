"""Between the contract and the engine's own types; nothing else happens here."""

from __future__ import annotations

from pathlib import Path

import torch

from aegaeon.errors import EngineError
from aegaeon.rpc.constraints import constraint_of
from aegaeon.rpc.status import to_detail
from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2, worker_pb2
from aegaeon_worker.engine import commands, events
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.place import BlockRun, KvPlace
from aegaeon_worker.kv.prefix_use import Reused
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.service.log_probabilities import (
    log_probabilities_to_pb,
    prompt_scores_to_pb,
)

ROLES = {
    "simple": cluster_pb2.ENGINE_ROLE_SIMPLE,
    "prefill": cluster_pb2.ENGINE_ROLE_PREFILL,
    "decode": cluster_pb2.ENGINE_ROLE_DECODE,
}
"""Roles of an engine by the names that the command line has for them."""

_DTYPES: dict[int, torch.dtype | None] = {
    model_pb2.DATA_TYPE_UNSPECIFIED: None,
    model_pb2.DATA_TYPE_FLOAT32: torch.float32,
    model_pb2.DATA_TYPE_BFLOAT16: torch.bfloat16,
    model_pb2.DATA_TYPE_FLOAT16: torch.float16,
}
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}


def spec_from_pb(spec: model_pb2.ModelSpec) -> ModelSpec:
    """The contract's model spec; its path may start with ``~``."""
    return ModelSpec(
        name=spec.name,
        path=Path(spec.path).expanduser(),
        dtype=_DTYPES[spec.dtype],
        max_model_len=spec.max_model_len or None,
        trust_remote_code=spec.trust_remote_code,
        ttft_slo_ns=spec.ttft_slo_ns,
        tpot_slo_ns=spec.tpot_slo_ns,
        prefix_caching=not spec.no_prefix_caching,
        tool_parser=spec.tool_parser,
    )


def spec_to_pb(spec: ModelSpec) -> model_pb2.ModelSpec:
    """Back again."""
    return model_pb2.ModelSpec(
        name=spec.name,
        path=str(spec.path),
        dtype=model_pb2.DataType.Name(_DTYPE_NUMBERS[spec.dtype]),
        max_model_len=spec.max_model_len or 0,
        trust_remote_code=spec.trust_remote_code,
        ttft_slo_ns=spec.ttft_slo_ns,
        tpot_slo_ns=spec.tpot_slo_ns,
        no_prefix_caching=not spec.prefix_caching,
        tool_parser=spec.tool_parser,
    )


def facts_to_pb(facts: ModelFacts) -> model_pb2.ModelFacts:
    """What the files say."""
    return model_pb2.ModelFacts(
        fingerprint=facts.fingerprint,
        packed_bytes=facts.packed_bytes,
        kv_block_bytes=facts.kv_block_bytes,
        kv_block_tokens=facts.kv_block_tokens,
        vocab_size=facts.vocab_size,
        max_model_len=facts.max_model_len,
        eos_token_ids=facts.eos_token_ids,
    )


def loaded_to_pb(model: events.LoadedModel) -> worker_pb2.LoadedModel:
    """A model that can run."""
    return worker_pb2.LoadedModel(spec=spec_to_pb(model.spec), facts=facts_to_pb(model.facts))


def memory_to_pb(usage: events.MemoryUsage) -> cluster_pb2.WorkerMemory:
    """Bytes in use."""
    return cluster_pb2.WorkerMemory(
        device_weight_bytes=usage.device_weight_bytes,
        device_kv_bytes=usage.device_kv_bytes,
        device_free_bytes=usage.device_free_bytes,
        host_kv_bytes=usage.host_kv_bytes,
        weight_cache_bytes=usage.weight_cache_bytes,
        sequences=usage.sequences,
        prefix_device_bytes=usage.prefix.device_bytes,
        prefix_host_bytes=usage.prefix.host_bytes,
        prefix_queried_tokens=usage.prefix.queried_tokens,
        prefix_reused_tokens=usage.prefix.reused_tokens,
        device_graph_bytes=usage.device_graph_bytes,
    )


def _stop_from_pb(stop: inference_pb2.StopConditions) -> commands.StopConditions:
    eos = () if stop.ignore_eos else stop.eos_token_ids
    return commands.StopConditions(
        max_new_tokens=stop.max_new_tokens,
        min_new_tokens=stop.min_new_tokens,
        stop_ids=frozenset([*eos, *stop.stop_token_ids]),
        max_model_len=stop.max_model_len,
    )


def _sampling_from_pb(sampling: inference_pb2.SamplingParameters) -> SamplingParameters:
    return SamplingParameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=tuple(sampling.logit_bias.items()),
        seed=sampling.seed,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        constraint=constraint_of(sampling),
    )


def place_from_pb(place: worker_pb2.KvPlace) -> KvPlace:
    """Where KV is."""
    runs = (
        BlockRun(run.slab, run.slab_generation, run.first_block, run.num_blocks)
        for run in place.runs
    )
    return KvPlace(
        place.num_tokens,
        place.block_bytes,
        tuple(runs),
        place.address,
        place.pieces or 1,
        place.offer,
    )


def place_to_pb(place: KvPlace) -> worker_pb2.KvPlace:
    """Back again."""
    runs = (
        worker_pb2.BlockRun(
            slab=run.slab,
            slab_generation=run.generation,
            first_block=run.first_block,
            num_blocks=run.num_blocks,
        )
        for run in place.runs
    )
    return worker_pb2.KvPlace(
        num_tokens=place.num_tokens,
        block_bytes=place.block_nbytes,
        runs=runs,
        address=place.address,
        pieces=place.pieces,
        offer=place.offer,
        num_offered=place.num_blocks if place.offer else 0,
    )


def _sequence_from_pb(spec: worker_pb2.SequenceSpec) -> commands.SequenceSpec:
    return commands.SequenceSpec(
        handle=spec.handle,
        model=spec.model,
        prompt=list(spec.prompt_token_ids),
        generated=list(spec.generated_token_ids),
        stop=_stop_from_pb(spec.stop),
        kv=place_from_pb(spec.kv) if spec.kv.num_tokens else None,
        sampling=_sampling_from_pb(spec.sampling) if spec.HasField("sampling") else None,
        prefix_caching=not spec.no_prefix_caching,
        cache_salt=spec.cache_salt,
        label=spec.label,
        trace_parent=spec.trace_parent,
        tpot_ns=spec.tpot_ns,
        prompt_logprobs=spec.prompt_logprobs if spec.HasField("prompt_logprobs") else None,
        told_prompt_tokens=spec.told_prompt_tokens,
    )


def command_from_pb(request: worker_pb2.ExecuteRequest) -> commands.Command:
    """One command; ``EngineError`` for one that this version does not know."""
    match request.WhichOneof("command"):
        case "load_model":
            return commands.LoadModel(spec_from_pb(request.load_model.spec))
        case "unload_model":
            return commands.UnloadModel(request.unload_model.model)
        case "add_sequences":
            added = request.add_sequences.sequences
            return commands.AddSequences([_sequence_from_pb(spec) for spec in added])
        case "cancel_sequences":
            return commands.CancelSequences(list(request.cancel_sequences.handles))
        case "release_sequences":
            return commands.ReleaseSequences(list(request.release_sequences.handles))
        case "queue_turn":
            turn = request.queue_turn
            return commands.QueueTurn(
                turn.turn_id,
                turn.model,
                list(turn.handles),
                turn.quota_ns,
                turn.prefetch_model or None,
                hands_off=turn.stage == cluster_pb2.TURN_STAGE_PREFILL,
                on_device=turn.on_device,
            )
        case "join_turn":
            return commands.JoinTurn(request.join_turn.turn_id, list(request.join_turn.handles))
        case "leave_turn":
            return commands.LeaveTurn(request.leave_turn.turn_id, list(request.leave_turn.handles))
        case "limit_turn":
            return commands.LimitTurn(request.limit_turn.turn_id, request.limit_turn.quota_ns)
    raise EngineError(f"unknown command {request.WhichOneof('command')}: the scheduler is newer")


def _step_to_pb(step: events.StepBatch) -> worker_pb2.StepBatch:
    return worker_pb2.StepBatch(
        turn_id=step.turn_id,
        handles=step.handles,
        token_ids=step.token_ids,
        # The engine's reasons carry the contract's numbers, see FinishReason.
        finish_reasons=[reason.value for reason in step.finish_reasons],  # type: ignore[misc]
        step_time_ns=step.step_time_ns,
        prefill_tokens=step.prefill_tokens,
        decode_sequences=step.decode_sequences,
        context_tokens=step.context_tokens,
        log_probabilities=log_probabilities_to_pb(step) if step.log_probabilities else None,
        prompt_log_probabilities=prompt_scores_to_pb(step) if step.prompt_scores else None,
    )


def _handed_off_to_pb(event: HandedOff) -> worker_pb2.SequenceHandedOff:
    return worker_pb2.SequenceHandedOff(
        handle=event.sequence, kv=place_to_pb(event.place), copy_time_ns=event.copy_ns
    )


def _imported_to_pb(event: Imported) -> worker_pb2.SequenceImported:
    return worker_pb2.SequenceImported(
        handle=event.sequence,
        imported_tokens=event.num_tokens,
        bytes=event.nbytes,
        copy_time_ns=event.copy_ns,
    )


def _fetched_to_pb(event: Fetched) -> worker_pb2.SequenceFetched:
    return worker_pb2.SequenceFetched(
        handle=event.sequence,
        fetched_tokens=event.num_tokens,
        bytes=event.nbytes,
        transfer_time_ns=event.transfer_ns,
        interruptions=event.interruptions,
        refusal=event.refusal,
    )


def event_to_pb(  # noqa: C901 (one row per event)
    event: events.Event,
) -> worker_pb2.ExecuteResponse:
    """One event."""
    response = worker_pb2.ExecuteResponse
    match event:
        case events.StepBatch():
            return response(step=_step_to_pb(event))
        case events.TurnStarted():
            return response(turn_started=worker_pb2.TurnStarted(**vars(event)))
        case events.TurnEnded():
            return response(
                turn_ended=worker_pb2.TurnEnded(
                    turn_id=event.turn_id,
                    reason=worker_pb2.TurnEnded.Reason.Name(event.reason.value),
                    elapsed_ns=event.elapsed_ns,
                    steps=event.steps,
                    recomputed_sequences=event.recomputed_sequences,
                )
            )
        case events.SequenceFailed(handle, error):
            failed = worker_pb2.SequenceFailed(handle=handle, error=to_detail(error))
            return response(sequence_failed=failed)
        case HandedOff():
            return response(sequence_handed_off=_handed_off_to_pb(event))
        case Fetched():
            return response(sequence_fetched=_fetched_to_pb(event))
        case Imported():
            return response(sequence_imported=_imported_to_pb(event))
        case Reused(sequence, num_tokens):
            reused = worker_pb2.SequenceReused(handle=sequence, reused_tokens=num_tokens)
            return response(sequence_reused=reused)
        case events.MemoryUsage():
            return response(memory=memory_to_pb(event))
        case events.Ready(models):
            ready = worker_pb2.Ready(models=[loaded_to_pb(model) for model in models])
            return response(ready=ready)
        case events.LoadProgress():
            return response(load_progress=worker_pb2.LoadProgress(**vars(event)))
        case events.ModelLoaded(model, reused, load_time_ns):
            loaded = worker_pb2.ModelLoaded(
                model=loaded_to_pb(model), reused=reused, load_time_ns=load_time_ns
            )
            return response(model_loaded=loaded)
        case events.ModelFailed(name, error):
            return response(model_failed=worker_pb2.ModelFailed(model=name, error=to_detail(error)))
        case events.ModelUnloaded():
            return response(model_unloaded=worker_pb2.ModelUnloaded(**vars(event)))
        case events.GroupLost(error):
            raise error  # the stream ends with it
