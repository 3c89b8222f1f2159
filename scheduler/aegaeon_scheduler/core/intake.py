"""Requests come in: checked, promised where that is asked for, and routed."""

from __future__ import annotations

from array import array

from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core import promises
from aegaeon_scheduler.core.admission import Admission, admit
from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.notices import RequestChange
from aegaeon_scheduler.core.requests import DEADLINE, assign, end, route
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import (
    AdmissionPolicy,
    FinishReason,
    GenerationRequest,
    StopConditions,
)


def submit(state: State, request: GenerationRequest, backlog: Backlog, now_ns: int) -> Sequence:
    """Accept and route a request; raises the named error that refuses it."""
    try:
        return _accept(state, request, backlog, now_ns)
    except AegaeonError:
        state.statistics.rejected += 1
        raise


def _accept(state: State, request: GenerationRequest, backlog: Backlog, now_ns: int) -> Sequence:
    admission = admit(state, request, now_ns)
    sequence = _sequence(state, request, admission, backlog, now_ns)
    finish = _already_finished(sequence, admission.stop)
    engine = None
    if state.config.admission is AdmissionPolicy.SLO and finish is FinishReason.UNSPECIFIED:
        engine = promises.choose(state, sequence, now_ns)
    state.last_sequence_id += 1
    state.sequences[sequence.sequence_id] = sequence
    admission.model.requests += 1
    admission.model.tokens += sequence.reserved_tokens
    state.reserved_tokens += sequence.reserved_tokens
    state.statistics.requests += 1
    state.statistics.prompt_tokens += len(sequence.prompt)
    if finish is not FinishReason.UNSPECIFIED:
        end(state, sequence, finish=finish)
        return sequence
    if request.timeout_ns:
        state.alarm(now_ns + request.timeout_ns, DEADLINE, sequence.sequence_id)
    if engine is None:
        route(state, sequence, RequestChange.ACCEPTED, now_ns)
    else:
        assign(state, sequence, engine, RequestChange.ACCEPTED, now_ns)
    return sequence


def _sequence(
    state: State, request: GenerationRequest, admission: Admission, backlog: Backlog, now_ns: int
) -> Sequence:
    return Sequence(
        sequence_id=state.last_sequence_id + 1,
        label=request.label,
        model=request.model,
        prompt=request.prompt,
        stop=admission.stop,
        arrival_ns=now_ns,
        generated=array("I", request.generated),
        inherited=len(request.generated),
        reserved_tokens=admission.reserved_tokens,
        pool_bytes=admission.pool_bytes,
        weight_bytes=admission.weight_bytes,
        kv_token_bytes=admission.kv_token_bytes,
        slo=admission.slo,
        priority=request.priority,
        backlog=backlog,
        stream_id=request.stream_id,
        sampling=request.sampling,
        prefix=request.prefix,
        trace_parent=request.trace_parent,
        prompt_logprobs=request.prompt_logprobs,
        told_tokens=request.told_prompt_tokens,
        needs=request.needs,
    )


def _already_finished(sequence: Sequence, stop: StopConditions) -> FinishReason:
    """A resumed request may have had its last token already, and only have missed its end."""
    made = sequence.generated
    if not made:
        return FinishReason.UNSPECIFIED
    ends = made[-1] in stop.eos_token_ids or made[-1] in stop.stop_token_ids
    if ends and len(made) > stop.min_new_tokens:
        return FinishReason.STOP
    full = len(sequence.prompt) + len(made) >= stop.max_model_len
    return FinishReason.LENGTH if full or len(made) >= stop.max_new_tokens else FinishReason(0)
