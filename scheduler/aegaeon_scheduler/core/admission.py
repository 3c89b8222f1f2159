"""The edge: a request is accepted with everything resolved, or refused with a named error."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.capability import Capabilities
from aegaeon.errors import (
    ErrorReason,
    InvalidRequestError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from aegaeon_scheduler.core.queue_limits import check_limits
from aegaeon_scheduler.core.recovery import device_of_recovering
from aegaeon_scheduler.core.refusals import check_vocabulary, invalid_field
from aegaeon_scheduler.core.releases import feature_missing
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.routing import route_of
from aegaeon_scheduler.core.sampling import check_logprobs, check_sampling
from aegaeon_scheduler.core.state import Model, State
from aegaeon_scheduler.core.values import (
    MAX_PRIORITY,
    MAX_SLO_NS,
    MIN_PRIORITY,
    MIN_SLO_NS,
    DeviceFacts,
    GenerationRequest,
    ModelFacts,
    RequestedStop,
    Slo,
    StopConditions,
)

MAX_LABEL_BYTES = 256
MAX_TRACE_PARENT_BYTES = 64
MAX_SALT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Admission:
    """What the checks found out about an accepted request."""

    model: Model
    stop: StopConditions
    reserved_tokens: int
    pool_bytes: int
    weight_bytes: int
    kv_token_bytes: int
    slo: Slo


def admit(state: State, request: GenerationRequest, now_ns: int) -> Admission:
    """Check a request against its model and the limits; raises the named error that refuses it."""
    if len(request.label.encode()) > MAX_LABEL_BYTES:
        raise invalid_field("label", f"{len(request.label.encode())} bytes", "at most 256 bytes")
    salt = len(request.prefix.salt.encode())
    if salt > MAX_SALT_BYTES:
        raise invalid_field("cache_salt", f"{salt} bytes", f"at most {MAX_SALT_BYTES} bytes")
    if len(request.trace_parent.encode()) > MAX_TRACE_PARENT_BYTES:
        raise invalid_field("trace_parent", request.trace_parent[:80], "at most 64 bytes")
    if not MIN_PRIORITY <= request.priority <= MAX_PRIORITY:
        raise invalid_field("priority", request.priority, f"{MIN_PRIORITY} to {MAX_PRIORITY}")
    check_objective("ttft_slo_ns", request.ttft_slo_ns)
    check_objective("tpot_slo_ns", request.tpot_slo_ns)
    model, facts, largest = _ready_model(state, request.model, request.needs, now_ns)
    stop = _resolve(request.stop, facts, largest, len(request.prompt))
    _check_prompt(request, stop, facts)
    if request.sampling is not None:
        check_sampling(request.sampling, facts.vocab_size)
    check_logprobs("prompt_logprobs", request.prompt_logprobs)
    if request.told_prompt_tokens > len(request.prompt):
        raise invalid_field(
            "told_prompt_tokens",
            request.told_prompt_tokens,
            f"at most the prompt's {len(request.prompt)} tokens",
        )
    tokens = min(len(request.prompt) + stop.max_new_tokens, stop.max_model_len)
    pool_bytes = _check_memory(request.model, facts, tokens, largest)
    check_limits(state, model, tokens, now_ns)
    weight_bytes = _chunks(facts.packed_bytes, largest.chunk_bytes)
    kv_token_bytes = -(-facts.kv_block_bytes // max(facts.kv_block_tokens, 1))
    slo = _objectives(state, model, request)
    return Admission(model, stop, tokens, pool_bytes, weight_bytes, kv_token_bytes, slo)


def takes_requests(state: State, model: str, needs: Capabilities, now_ns: int) -> bool:
    """Whether a model has engines for requests that need this, or had them a moment ago."""
    return (
        route_of(state, model, needs).largest is not None
        or device_of_recovering(state, model, now_ns) is not None
    )


def check_objective(field: str, value_ns: int) -> None:
    """Raise the error that names an objective out of its bounds."""
    if value_ns and not MIN_SLO_NS <= value_ns <= MAX_SLO_NS:
        raise invalid_field(field, value_ns, f"0, or {MIN_SLO_NS} to {MAX_SLO_NS} ns")


def _objectives(state: State, model: Model, request: GenerationRequest) -> Slo:
    """The request's own, else its model's, else the scheduler's."""
    spec, config = model.spec, state.config
    return Slo(
        request.ttft_slo_ns or spec.ttft_slo_ns or config.ttft_slo_ns,
        request.tpot_slo_ns or spec.tpot_slo_ns or config.tpot_slo_ns,
    )


def pool_bytes(facts: ModelFacts, tokens: int, chunk_bytes: int) -> int:
    """Device pool bytes for a model's weights and the KV of ``tokens``, in whole chunks."""
    blocks = -(-tokens // max(facts.kv_block_tokens, 1))
    return _chunks(facts.packed_bytes, chunk_bytes) + _chunks(
        blocks * facts.kv_block_bytes, chunk_bytes
    )


def fits_device(facts: ModelFacts, device: DeviceFacts) -> bool:
    """Whether a device pool can hold the weights and one block of KV."""
    return pool_bytes(facts, 1, device.chunk_bytes) <= device.pool_bytes


def _chunks(size: int, chunk_bytes: int) -> int:
    chunk = max(chunk_bytes, 1)
    return -(-size // chunk) * chunk


def _ready_model(
    state: State, name: str, needs: Capabilities, now_ns: int
) -> tuple[Model, ModelFacts, DeviceFacts]:
    """The model with its facts, and the largest device that can run it now, or could a moment ago
    and will again."""
    largest = route_of(state, name, needs).largest
    if largest is None:
        missing = feature_missing(state, name, needs)
        if missing is not None:
            raise missing
        largest = device_of_recovering(state, name, now_ns)
    if largest is not None:
        model = state.models[name]
        assert model.facts is not None, "a model was loaded without facts"
        return model, model.facts, largest
    found = state.model_state(name)
    if found is ReplicaState.ABSENT:
        known = ", ".join(sorted(state.models)) or "none"
        raise NotFoundError(
            f"model {name!r} is not deployed; deployed models: {known}", metadata={"model": name}
        )
    if found is ReplicaState.DRAINING:
        raise UnavailableError(
            f"model {name!r} is being undeployed and takes no new requests",
            reason=ErrorReason.MODEL_DRAINING,
            metadata={"model": name},
        )
    if found is ReplicaState.READY:
        raise UnavailableError(
            f"model {name!r} is on engines only that are to be stopped; try again once others, or "
            "the same ones anew, have it",
            metadata={"model": name, "state": found.name},
        )
    raise UnavailableError(
        f"model {name!r} has no READY replica; its state is {found.name}",
        metadata={"model": name, "state": found.name},
    )


def _resolve(
    stop: RequestedStop, facts: ModelFacts, device: DeviceFacts, prompt_tokens: int
) -> StopConditions:
    max_model_len = stop.max_model_len or facts.max_model_len
    # What has no room at all is refused by the checks that follow.
    room = max(1, min(max_model_len, _fitting_tokens(facts, device)) - prompt_tokens)
    max_new_tokens = stop.max_new_tokens or room
    if stop.max_new_tokens and stop.min_new_tokens > stop.max_new_tokens:
        raise invalid_field(
            "stop.min_new_tokens",
            stop.min_new_tokens,
            f"between 0 and max_new_tokens ({stop.max_new_tokens})",
        )
    if stop.max_model_len > facts.max_model_len:
        raise invalid_field(
            "stop.max_model_len",
            stop.max_model_len,
            f"at most the model's context of {facts.max_model_len} tokens",
        )
    check_vocabulary(stop.eos_token_ids, facts.vocab_size, "stop.eos_token_ids")
    check_vocabulary(stop.stop_token_ids, facts.vocab_size, "stop.stop_token_ids")
    eos = stop.eos_token_ids or facts.eos_token_ids
    return StopConditions(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min(stop.min_new_tokens, max_new_tokens),
        eos_token_ids=() if stop.ignore_eos else eos,
        stop_token_ids=stop.stop_token_ids,
        ignore_eos=stop.ignore_eos,
        max_model_len=max_model_len,
    )


def _fitting_tokens(facts: ModelFacts, device: DeviceFacts) -> int:
    """Tokens of one sequence that a device pool can hold beside the weights."""
    chunk = max(device.chunk_bytes, 1)
    left = (device.pool_bytes - _chunks(facts.packed_bytes, chunk)) // chunk * chunk
    return max(left, 0) // max(facts.kv_block_bytes, 1) * max(facts.kv_block_tokens, 1)


def _check_prompt(request: GenerationRequest, stop: StopConditions, facts: ModelFacts) -> None:
    # Lengths first: a prompt of millions of ids must not cost a scan of them.
    length = len(request.prompt)
    if length == 0:
        raise InvalidRequestError(
            "the prompt has no tokens; send at least one", reason=ErrorReason.EMPTY_PROMPT
        )
    total = length + len(request.generated)
    if length >= stop.max_model_len or total > stop.max_model_len:
        raise InvalidRequestError(
            f"the prompt has {total} tokens, but the context of model {request.model!r} is "
            f"{stop.max_model_len} tokens, prompt and at least one new token included; shorten "
            "the prompt",
            reason=ErrorReason.PROMPT_TOO_LONG,
            metadata={"prompt_tokens": total, "max_model_len": stop.max_model_len},
        )
    if len(request.generated) > stop.max_new_tokens:
        raise invalid_field(
            "generated_token_ids",
            f"{len(request.generated)} tokens",
            f"at most max_new_tokens ({stop.max_new_tokens})",
        )
    check_vocabulary(request.prompt, facts.vocab_size, "prompt_token_ids")
    check_vocabulary(request.generated, facts.vocab_size, "generated_token_ids")


def _check_memory(name: str, facts: ModelFacts, tokens: int, device: DeviceFacts) -> int:
    needed = pool_bytes(facts, tokens, device.chunk_bytes)
    if needed > device.pool_bytes:
        raise ResourceExhaustedError(
            f"{tokens} tokens of model {name!r} need {needed} bytes of weights and KV, but the "
            f"largest device pool has {device.pool_bytes}; ask for fewer tokens",
            reason=ErrorReason.INSUFFICIENT_MEMORY,
            metadata={"needed_bytes": needed, "available_bytes": device.pool_bytes},
        )
    return needed
