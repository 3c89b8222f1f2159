"""Events of turns: the path of every token. One pass over a step's handles, nothing more."""

from __future__ import annotations

from aegaeon.errors import EngineError
from aegaeon_scheduler.core import requests
from aegaeon_scheduler.core.commands import LeaveTurn
from aegaeon_scheduler.core.engine import Engine, Turn
from aegaeon_scheduler.core.events import (
    SequenceFailed,
    SequenceReused,
    StepDone,
    TurnEnded,
    TurnStarted,
)
from aegaeon_scheduler.core.log_probabilities import hand_out, tell_prompts
from aegaeon_scheduler.core.notices import TurnChange, TurnChanged
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import FinishReason, TurnEnd, TurnStage

#: Turns in a row without a step after which the members are given up: the worker cannot run them.
_MAX_FRUITLESS = 5


def on_step(state: State, engine: Engine, event: StepDone, now_ns: int) -> None:
    """Append every token to its sequence and to what its reader has not taken."""
    turn = engine.turn(event.turn_id)
    leaving = False
    if turn is not None:
        leaving = turn.first_token_only
        _observe(engine, turn, event)
    stamp = (event.step_time_ns, now_ns)
    limit = state.config.reader_backlog_tokens
    sequences, wake, cancelled = engine.sequences, state.out.wake, int(FinishReason.CANCELLED)
    prompts = event.prompt_log_probabilities
    told = tell_prompts(prompts, sequences, wake) if prompts is not None else []
    count = 0
    special: list[tuple[int, Sequence | None, int]] = []
    for handle, token, reason in zip(
        event.handles, event.token_ids, event.finish_reasons, strict=True
    ):
        sequence = sequences.get(handle)
        if sequence is None or reason == cancelled:
            special.append((handle, sequence, reason))
            continue
        count += 1
        sequence.generated.append(token)
        sequence.unread += 1
        parcel = sequence.backlog.open
        if parcel.stamp is not stamp:
            parcel = sequence.backlog.begin(stamp)
            wake(sequence.backlog)
        parcel.owners.append(sequence)
        parcel.tokens.append(token)
        if reason or leaving or (sequence.unread >= limit and not sequence.paused):
            special.append((handle, sequence, reason))
    if event.log_probabilities is not None:
        hand_out(event, event.log_probabilities, sequences)
    engine.token_count += count
    if count and turn is not None:
        engine.queues[turn.model].tokens += count
    state.statistics.tokens += count
    for handle, found, reason in special:
        if turn is not None and leaving and found is not None and not reason:
            _leave(state, engine, turn, found, now_ns)
        _after_token(state, engine, handle, found, reason)
    for owner in told:
        if not owner.ended:
            _pause_if_behind(state, owner)


def _observe(engine: Engine, turn: Turn, event: StepDone) -> None:
    turn.steps += 1
    engine.estimator.observe_step(
        turn.model,
        event.step_time_ns,
        event.decode_sequences,
        event.context_tokens,
        event.prefill_tokens,
        max(len(event.handles) - event.decode_sequences, 0),
    )


def _leave(state: State, engine: Engine, turn: Turn, sequence: Sequence, now_ns: int) -> None:
    """A member of a turn that is for first tokens has got its own."""
    if turn.stage is TurnStage.PREFILL:
        engine.begin_hand_off(sequence)
    elif engine.leave(sequence, now_ns) is not None:
        state.out.add(LeaveTurn(engine.epoch, turn.turn_id, (sequence.handle,)))
        state.mark(engine)


def on_turn_started(state: State, engine: Engine, event: TurnStarted, now_ns: int) -> None:
    """Learn what the switch cost, and whose weights are on the device now."""
    turn = engine.turn(event.turn_id)
    if turn is None:
        return
    engine.turn_count += 1
    engine.begin(turn, event.switched, now_ns)
    expected_ns = 0.0
    if event.switched:
        engine.switch_count += 1
        expected_ns = engine.estimator.switch_ns(turn.model)
    engine.estimator.observe_turn(
        turn.model,
        event.switched,
        event.switch_time_ns,
        event.weight_bytes,
        event.kv_swap_ns,
        event.kv_bytes,
    )
    _publish(
        state,
        engine,
        turn,
        TurnChange.STARTED,
        switch_time_ns=event.switch_time_ns,
        expected_switch_ns=expected_ns,
    )


def on_turn_ended(state: State, engine: Engine, event: TurnEnded, now_ns: int) -> None:
    """Members that go on wait for another turn."""
    turn = engine.turn(event.turn_id)
    if turn is None:
        return
    _publish(
        state,
        engine,
        turn,
        TurnChange.ENDED,
        elapsed_ns=event.elapsed_ns,
        reason=event.reason.name.lower(),
        steps=event.steps,
    )
    engine.end_turn(turn, now_ns)
    state.mark(engine)
    queue = engine.queues.get(turn.model)
    if queue is None:
        return
    queue.fruitless = queue.fruitless + 1 if turn.members and not event.steps else 0
    if queue.fruitless >= _MAX_FRUITLESS or (
        queue.fruitless > 1 and event.reason is TurnEnd.FAILED
    ):
        error = EngineError(
            f"engine {engine.engine_id} could not run a turn of model {turn.model!r} "
            f"{queue.fruitless} times in a row; its worker's log has the reason"
        )
        for sequence in list(turn.members.values()):
            requests.cancel(state, sequence.sequence_id, error)


def on_sequence_reused(state: State, engine: Engine, event: SequenceReused) -> None:
    """So much of a prompt was there; what is found again after a loss is no news to its caller."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None or len(sequence.generated) > sequence.inherited:
        return
    before = sequence.cached_tokens
    sequence.cached_tokens = min(event.reused_tokens, len(sequence.prompt))
    state.statistics.cached_tokens += sequence.cached_tokens - before
    # Goes out with the tokens that follow.
    sequence.backlog.open.cached.append(sequence)


def on_sequence_failed(state: State, engine: Engine, event: SequenceFailed) -> None:
    """One sequence failed on its worker; others are untouched."""
    sequence = engine.sequences.get(event.handle)
    if sequence is None:
        _confirm_end(state, engine, event.handle)
        return
    requests.end(state, sequence, error=event.error)


def _after_token(
    state: State, engine: Engine, handle: int, sequence: Sequence | None, reason: int
) -> None:
    if sequence is None:
        if reason:
            _confirm_end(state, engine, handle)
    elif reason:
        requests.end(state, sequence, FinishReason(reason))
    else:
        _pause_if_behind(state, sequence)


def _pause_if_behind(state: State, sequence: Sequence) -> None:
    if sequence.unread >= state.config.reader_backlog_tokens and not sequence.paused:
        requests.pause(state, sequence)


def _confirm_end(state: State, engine: Engine, handle: int) -> None:
    model = engine.ending.pop(handle, None)
    if model is not None:
        state.touch(model)


def _publish(
    state: State,
    engine: Engine,
    turn: Turn,
    change: TurnChange,
    switch_time_ns: int = 0,
    elapsed_ns: int = 0,
    reason: str = "",
    expected_switch_ns: float = 0.0,
    steps: int = 0,
) -> None:
    state.out.publish(
        TurnChanged(
            engine.engine_id,
            turn.turn_id,
            turn.model,
            change,
            len(turn.members),
            turn.quota_ns,
            switch_time_ns,
            elapsed_ns,
            reason,
            turn.stage,
            expected_switch_ns,
            engine.step_ns(turn.model),
            steps,
        )
    )
