"""What the scheduler at the other end understands."""

from __future__ import annotations

import grpc

from aegaeon.capability import NO_CAPABILITIES, Capabilities, from_numbers
from aegaeon.v1 import inference_pb2, inference_pb2_grpc


async def scheduler_capabilities(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
) -> Capabilities:
    """Ask for them. Raises AioRpcError."""
    try:
        answer = await stub.GetCapabilities(inference_pb2.GetCapabilitiesRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # of a release before there were any
            return NO_CAPABILITIES
        raise
    return from_numbers(answer.capabilities)
