"""What a sequence's reader has not seen yet, as a contract message."""

from __future__ import annotations

from aegaeon.v1 import inference_pb2
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import FinishReason

_FINISH = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
}


def fill(message: inference_pb2.GenerateResponse, sequence: Sequence, unix_offset_ns: int) -> None:
    """Move everything that the reader has not seen into ``message``, the end included."""
    tokens, stamps = sequence.take()
    message.token_ids.extend(tokens)
    message.step_times_ns.extend([stamp[0] for stamp in stamps])
    message.received_unix_ns.extend([stamp[1] + unix_offset_ns for stamp in stamps])
    if sequence.finish:
        message.finish_reason = _FINISH[sequence.finish]
