"""The life of requests: accepted, routed, paused, moved after a loss, ended."""

from __future__ import annotations

from aegaeon.errors import AegaeonError, ErrorReason, RequestTimeoutError, UnavailableError
from aegaeon_scheduler.core import kv_sources, prefix_routing
from aegaeon_scheduler.core.commands import AddSequence, CancelSequences, LeaveTurn
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.notices import PrefixPull, RequestChange, RequestChanged
from aegaeon_scheduler.core.releases import feature_missing
from aegaeon_scheduler.core.routing import next_engine
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import FinishReason

DEADLINE = 0
_RECOVERY = 1
_FETCH = 2

#: A worker says within seconds what became of KV that it is to fetch; one that does not, because it
#: knows nothing of that, computes it when its sequence has a turn.
_FETCH_TIMEOUT_NS = 120_000_000_000

_CHANGE_OF_FINISH = {
    FinishReason.STOP: RequestChange.FINISHED,
    FinishReason.LENGTH: RequestChange.FINISHED,
    FinishReason.CANCELLED: RequestChange.CANCELLED,
}


def route(state: State, sequence: Sequence, change: RequestChange, now_ns: int) -> None:
    """Give a sequence to an engine; without one it waits for a READY replica, but not for ever."""
    engine = next_engine(state, sequence, now_ns)
    if engine is None:
        waiting = state.orphans.setdefault(sequence.model, {})
        if sequence.sequence_id not in waiting:
            waiting[sequence.sequence_id] = sequence
            due = now_ns + state.config.recovery_timeout_ns
            state.alarm(due, _RECOVERY, sequence.sequence_id)
        return
    _forget_orphan(state, sequence)
    assign(state, sequence, engine, change, now_ns)


def move(
    state: State, sequences: list[Sequence], source: Engine, target: Engine, now_ns: int
) -> None:
    """Take sequences that have never run from one engine to another of its node.

    What one of them has fetched from another node is fetched again: its source still holds it.
    """
    handles = tuple(sequence.handle for sequence in sequences)
    source.ending.update({sequence.handle: sequence.model for sequence in sequences})
    state.out.add(CancelSequences(source.epoch, handles))
    for sequence in sequences:
        detach(state, sequence)
        assign(state, sequence, target, RequestChange.STOLEN, now_ns)


def assign(
    state: State, sequence: Sequence, engine: Engine, change: RequestChange, now_ns: int
) -> None:
    """Give a sequence that no engine has to one."""
    # A fresh handle for every assignment, so that late events of an earlier one cannot match.
    state.last_handle += 1
    sequence.handle = state.last_handle
    sequence.assigned_tokens = len(sequence.generated)
    place = kv_sources.place_for(state, sequence, engine)
    engine.assign(sequence, now_ns)
    if sequence.fetched_from:
        state.alarm(now_ns + _FETCH_TIMEOUT_NS, _FETCH, sequence.sequence_id)
    node = state.nodes[engine.identity.node_id]
    replica = node.replicas[sequence.model]
    replica.active_requests += 1
    node.active_requests += 1
    replica.last_used_ns = now_ns
    if change not in (RequestChange.HANDED_OFF, RequestChange.STOLEN):  # counted before
        state.statistics.routed_by_node[node.node_id] += 1
        prefix_routing.enter(state, sequence, engine)
        if change is RequestChange.ACCEPTED:
            _count_pull(state, sequence, engine)
    state.out.add(
        AddSequence(
            engine.epoch,
            sequence.handle,
            sequence.model,
            sequence.prompt,
            tuple(sequence.generated),
            sequence.stop,
            place,
            sequence.sampling,
            sequence.prefix,
            sequence.label,
            sequence.trace_parent,
            sequence.slo.tpot_ns,
            sequence.prompt_logprobs,
            sequence.told_tokens,
        )
    )
    _publish(state, sequence, change)
    state.mark(engine)


def route_orphans(state: State, model: str, now_ns: int) -> None:
    """A replica of ``model`` became READY: sequences that waited for one go on."""
    for sequence in list(state.orphans.get(model, {}).values()):
        lost = sequence.handle > 0  # another engine had it
        change = RequestChange.RECOVERED if lost else RequestChange.ACCEPTED
        route(state, sequence, change, now_ns)
        if sequence.engine_id is not None:
            state.statistics.recovered += lost


def note_loss(sequence: Sequence, *, was_running: bool) -> None:
    """The engine of a sequence is lost: the sequence may be the reason."""
    if sequence.has_token_here:
        sequence.losses = 0
    sequence.losses += was_running


def give_up(state: State, sequence: Sequence) -> None:
    """End a sequence that has lost too many engines in a row, before it costs another one."""
    error = UnavailableError(
        f"{sequence.losses} workers in a row were lost while they computed the next token of this "
        "request; it is not given to another one. The tokens received are valid",
        reason=ErrorReason.WORKER_LOST,
    )
    end(state, sequence, error=error)


def detach(state: State, sequence: Sequence) -> None:
    """Take a sequence off its engine's and its replica's books."""
    engine = state.engine_of(sequence)
    if engine is None:
        _forget_orphan(state, sequence)
        return
    engine.release(sequence)
    node = state.nodes[engine.identity.node_id]
    node.replicas[sequence.model].active_requests -= 1
    node.active_requests -= 1
    state.mark(engine)
    state.touch(sequence.model)


def end(
    state: State,
    sequence: Sequence,
    finish: FinishReason = FinishReason.UNSPECIFIED,
    error: AegaeonError | None = None,
) -> None:
    """End a sequence for its reader and in every ledger."""
    change = _CHANGE_OF_FINISH.get(finish, RequestChange.FAILED)
    sequence.finish = finish
    sequence.error = error
    _publish(state, sequence, change)
    if error is None:
        prefix_routing.end(state, sequence)
    detach(state, sequence)
    kv_sources.drop(state, sequence)
    del state.sequences[sequence.sequence_id]
    model = state.models[sequence.model]
    model.requests -= 1
    model.pace.ended += 1
    state.pace.ended += 1
    model.tokens -= sequence.reserved_tokens
    state.reserved_tokens -= sequence.reserved_tokens
    state.touch(sequence.model)
    _count(state, change)
    sequence.backlog.paused.pop(sequence.sequence_id, None)
    sequence.backlog.end(sequence)
    state.out.wake(sequence.backlog)


def cancel(state: State, sequence_id: int, error: AegaeonError | None) -> None:
    """End a request at its caller's wish, or by ``error``, and free it on its worker."""
    sequence = state.sequences.get(sequence_id)
    if sequence is None:
        return
    engine = state.engine_of(sequence)
    if engine is not None:
        engine.ending[sequence.handle] = sequence.model
        state.out.add(CancelSequences(engine.epoch, (sequence.handle,)))
    finish = FinishReason.CANCELLED if error is None else FinishReason.UNSPECIFIED
    end(state, sequence, finish, error)


def pause(state: State, sequence: Sequence) -> None:
    """A reader is behind by a whole backlog: its sequence stops until it has caught up."""
    sequence.paused = True
    sequence.backlog.paused[sequence.sequence_id] = sequence
    engine = state.engine_of(sequence)
    if engine is None:
        return
    turn = engine.pause(sequence)
    if turn is not None:
        state.out.add(LeaveTurn(engine.epoch, turn.turn_id, (sequence.handle,)))
    state.mark(engine)


def resume(state: State, sequence_id: int, now_ns: int) -> None:
    """A reader has caught up."""
    sequence = state.sequences.get(sequence_id)
    if sequence is None or not sequence.paused:
        return
    sequence.paused = False
    del sequence.backlog.paused[sequence_id]
    engine = state.engine_of(sequence)
    if engine is not None:
        engine.resume(sequence, now_ns)
        state.mark(engine)


def ring(state: State, now_ns: int) -> None:
    """End the requests whose time is up, and wait no longer for KV whose is."""
    for kind, sequence_id in list(state.pop_due(now_ns)):
        sequence = state.sequences.get(sequence_id)
        if sequence is None:
            continue
        if kind == DEADLINE:
            cancel(state, sequence_id, RequestTimeoutError("the request's deadline has passed"))
        elif kind == _FETCH:
            _wait_no_longer(state, sequence, now_ns)
        elif sequence.engine_id is None:
            end(
                state,
                sequence,
                error=feature_missing(state, sequence.model, sequence.needs)
                or UnavailableError(
                    f"the worker of model {sequence.model!r} was lost, and no other became ready "
                    "in time; the tokens received are valid",
                    reason=ErrorReason.WORKER_LOST,
                ),
            )


def _wait_no_longer(state: State, sequence: Sequence, now_ns: int) -> None:
    engine = state.engine_of(sequence)
    if engine is not None and sequence.fetched_from:
        sequence.fetched_from = ""
        engine.resume(sequence, now_ns)
        state.mark(engine)


def _forget_orphan(state: State, sequence: Sequence) -> None:
    waiting = state.orphans.get(sequence.model)
    if waiting is not None and sequence.sequence_id in waiting:
        del waiting[sequence.sequence_id]
        if not waiting:
            del state.orphans[sequence.model]


def _publish(state: State, sequence: Sequence, change: RequestChange) -> None:
    chosen = change in (RequestChange.ACCEPTED, RequestChange.RECOVERED)
    state.out.publish(
        RequestChanged(
            sequence.sequence_id,
            sequence.label,
            sequence.model,
            sequence.engine_id or "",
            change,
            len(sequence.generated),
            sequence.error,
            sequence.why if chosen else "",
            sequence.pull if chosen else PrefixPull.NONE,
            sequence.expected_cached if chosen else 0,
            sequence.cached_tokens,
        )
    )


def _count_pull(state: State, sequence: Sequence, engine: Engine) -> None:
    statistics = state.statistics
    statistics.expected_cached_tokens += sequence.expected_cached
    statistics.prefix_followed[engine.engine_id] += sequence.pull is PrefixPull.FOLLOWED
    statistics.prefix_passed_over += sequence.pull is PrefixPull.PASSED_OVER


def _count(state: State, change: RequestChange) -> None:
    if change is RequestChange.FINISHED:
        state.statistics.finished += 1
    elif change is RequestChange.CANCELLED:
        state.statistics.cancelled += 1
    else:
        state.statistics.failed += 1
