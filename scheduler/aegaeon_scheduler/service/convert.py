"""Contract messages to core values and back: the one place where both are known."""

from __future__ import annotations

from aegaeon.capability import from_numbers
from aegaeon.errors import InvalidRequestError
from aegaeon.rpc.needs import WORKER
from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2
from aegaeon_scheduler.core.values import (
    DataType,
    DeviceFacts,
    EngineRole,
    GenerationRequest,
    KvSharing,
    ModelFacts,
    ModelSpec,
    NodeMemory,
    PrefixSharing,
    RequestedStop,
    WorkerIdentity,
)
from aegaeon_scheduler.service.sampling import sampling_parameters


def generation_request(
    message: inference_pb2.GenerateRequest, timeout_ns: int = 0, stream_id: int = 0
) -> GenerationRequest:
    """A request; its token ids stay in the message's own compact arrays."""
    if not message.HasField("stop"):
        raise InvalidRequestError(
            "stop is missing; an empty one has every default",
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
        prefix=PrefixSharing(not message.no_prefix_caching, message.cache_salt),
        trace_parent=message.trace_parent,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        told_prompt_tokens=message.told_prompt_tokens,
        needs=WORKER.needs(message),
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
        not message.no_prefix_caching,
        message.tool_parser,
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
        no_prefix_caching=not spec.prefix_caching,
        tool_parser=spec.tool_parser,
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
        contract_version=message.contract_version,
        tensor_parallel_size=message.tensor_parallel_size or 1,
        capabilities=from_numbers(message.capabilities),
        kv_sharing=KvSharing(
            message.kv_sharing.device,
            frozenset(message.kv_sharing.readable),
            message.kv_sharing.obstacle,
        ),
    )
