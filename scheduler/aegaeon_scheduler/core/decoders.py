"""Chooses who goes on with a sequence after its first token, near its KV or far from it."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon.capability import NO_CAPABILITIES, Capabilities
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import EngineRole

#: Other nodes that are looked at for one sequence: the time to choose does not grow with the
#: cluster.
_MOST_LOOKED_AT = 4
#: Tokens for which a faster engine counts, since an answer may end long before its limit.
_LOOK_AHEAD_TOKENS = 256


def choose_decoder(state: State, sequence: Sequence, now_ns: int) -> Engine | None:
    """Where a sequence with its first token goes on, or None when nobody has the model any more.

    The engine that will have made its next tokens first, as far as steps and the time to bring its
    KV there are known. Those of its node need no replica that is READY: a DRAINING one finishes
    what it has. Where only prefill engines are left, these do both stages.
    """
    home = state.nodes[sequence.prefilled_on]
    found = list(_candidates(state, home, sequence))
    if not found:
        rest = home.engines_for(sequence.model, EngineRole.DECODE, sequence.needs)
        return _chosen(state, [e for e in rest if not hands_to_others(e, sequence)], sequence)
    return min(found, key=lambda engine: _remaining_ns(state, sequence, engine, now_ns))


def hands_to_others(engine: Engine, sequence: Sequence) -> bool:
    """Whether an engine leaves a sequence to decode engines, none of which knows what it needs: it
    would come back after every token."""
    return bool(sequence.needs) and sequence.model in engine.hands_off


def decoders(
    state: State, home: Node, model: str, needs: Capabilities = NO_CAPABILITIES
) -> Iterator[list[Engine]]:
    """Engines that are meant to decode what a node hands off, node by node, its own first.

    With the published policy a node with decode engines uses no others, as published.
    """
    own = home.decoders(model, needs)
    if own:
        yield own
        if state.config.policy is SchedulingPolicy.PUBLISHED:
            return
    for node, replica in state.replicas(model):
        if node is not home and replica.state is ReplicaState.READY:
            others = node.decoders(model, needs)
            if others:
                yield others


def _candidates(state: State, home: Node, sequence: Sequence) -> Iterator[Engine]:
    """The best engine of the sequence's node, and of some others."""
    groups = list(decoders(state, home, sequence.model, sequence.needs))
    own = [engines for engines in groups[:1] if engines[0].identity.node_id == home.node_id]
    others = groups[len(own) :]
    start = sequence.sequence_id % len(others) if others else 0
    looked_at = 0
    for engines in [*own, *others[start:], *others[:start]]:
        engine = _chosen(state, engines, sequence)
        if engine is None:
            continue
        yield engine
        looked_at += engines not in own
        if looked_at == _MOST_LOOKED_AT:
            return


def _chosen(state: State, engines: list[Engine], sequence: Sequence) -> Engine | None:
    fitting = [e for e in engines if e.identity.device.pool_bytes >= sequence.pool_bytes]
    return state.planner.choose(fitting, sequence) if fitting else None


def _remaining_ns(state: State, sequence: Sequence, engine: Engine, now_ns: int) -> float:
    """Expected time until an engine has made the next tokens of a sequence."""
    step_ns = engine.models_step_ns()
    if sequence.model not in engine.queues:
        step_ns += engine.step_ns(sequence.model)
    wanted = sequence.stop.max_new_tokens - len(sequence.generated)
    time_ns = step_ns * min(wanted, _LOOK_AHEAD_TOKENS)
    if sequence.source is not None:
        source = state.engines[sequence.source.epoch].identity.node_id
        time_ns += state.links.expected_ns(
            source, engine.identity.node_id, sequence.source.place.num_bytes, now_ns
        )
    return time_ns
