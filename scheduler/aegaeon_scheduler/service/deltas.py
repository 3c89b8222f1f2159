"""What a reader has taken from its backlog, as contract messages."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon.errors import AegaeonError
from aegaeon.rpc.status import to_detail
from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.backlog import Parcel
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import FinishReason
from aegaeon_scheduler.service.log_probabilities import parcel_log_probabilities, parcel_prompts

_FINISH = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
}


def generate_response(parcel: Parcel, unix_offset_ns: int) -> inference_pb2.GenerateResponse:
    """A parcel whose tokens belong to one sequence, so that every step has one."""
    message = inference_pb2.GenerateResponse(
        token_ids=parcel.tokens,
        step_times_ns=[stamp[0] for stamp in parcel.stamps],
        received_unix_ns=[stamp[1] + unix_offset_ns for stamp in parcel.stamps],
        log_probabilities=parcel_log_probabilities(parcel),
        prompt_log_probabilities=parcel_prompts(parcel, named=False),
    )
    for sequence in parcel.ended:
        if sequence.finish:
            message.finish_reason = _FINISH[sequence.finish]
    for sequence in parcel.owners[:1] or parcel.ended:
        message.cached_tokens = sequence.cached_tokens
    return message


def session_response(
    parcel: Parcel | None, refused: Mapping[int, AegaeonError | None], unix_offset_ns: int
) -> inference_pb2.SessionResponse:
    """A parcel of any sequences, and requests that were refused, by stream id; None for those that
    were cancelled before they were accepted."""
    message = inference_pb2.SessionResponse()
    if parcel is not None:
        message.stream_ids.extend([sequence.stream_id for sequence in parcel.owners])
        message.token_ids.extend(parcel.tokens)
        message.step_token_counts.extend(parcel.counts())
        message.step_times_ns.extend([stamp[0] for stamp in parcel.stamps])
        message.received_unix_ns.extend([stamp[1] + unix_offset_ns for stamp in parcel.stamps])
        if (told := parcel_log_probabilities(parcel)) is not None:
            message.log_probabilities.CopyFrom(told)
        if (prompts := parcel_prompts(parcel, named=True)) is not None:
            message.prompt_log_probabilities.CopyFrom(prompts)
        message.cached_stream_ids.extend([sequence.stream_id for sequence in parcel.cached])
        message.cached_tokens.extend([sequence.cached_tokens for sequence in parcel.cached])
        for sequence in parcel.ended:
            _add_end(message, sequence)
    for stream_id, error in refused.items():
        delta = message.deltas.add(stream_id=stream_id)
        if error is None:
            delta.response.finish_reason = inference_pb2.FINISH_REASON_CANCELLED
        else:
            delta.error.CopyFrom(to_detail(error))
    return message


def _add_end(message: inference_pb2.SessionResponse, sequence: Sequence) -> None:
    delta = message.deltas.add(stream_id=sequence.stream_id)
    if sequence.error is not None:
        delta.error.CopyFrom(to_detail(sequence.error))
    else:
        delta.response.finish_reason = _FINISH[sequence.finish]
