"""Commands of the core as messages for a worker's stream."""

from __future__ import annotations

from aegaeon.v1 import cluster_pb2, inference_pb2, worker_pb2
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.values import StopConditions
from aegaeon_scheduler.service.convert import model_spec_message
from aegaeon_scheduler.service.kv_place import kv_place_message
from aegaeon_scheduler.service.sampling import sampling_message


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
            return worker_pb2.ExecuteRequest(queue_turn=_queue_turn(command))
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


def _queue_turn(command: commands.QueueTurn) -> worker_pb2.QueueTurn:
    return worker_pb2.QueueTurn(
        turn_id=command.turn_id,
        model=command.model,
        handles=command.handles,
        quota_ns=command.quota_ns,
        prefetch_model=command.prefetch_model,
        stage=cluster_pb2.TurnStage.Name(command.stage),
        on_device=command.on_device,
    )


def _sequence_spec(command: commands.AddSequence) -> worker_pb2.SequenceSpec:
    return worker_pb2.SequenceSpec(
        handle=command.handle,
        model=command.model,
        prompt_token_ids=command.prompt,
        generated_token_ids=command.generated,
        stop=_stop_message(command.stop),
        kv=None if command.kv is None else kv_place_message(command.kv),
        sampling=None if command.sampling is None else sampling_message(command.sampling),
        no_prefix_caching=not command.prefix.enabled,
        cache_salt=command.prefix.salt,
        label=command.label,
        trace_parent=command.trace_parent,
        tpot_ns=command.tpot_ns,
        prompt_logprobs=command.prompt_logprobs,
        told_prompt_tokens=command.told_prompt_tokens,
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
