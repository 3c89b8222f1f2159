"""Sends a request where KV of its beginning is, unless waiting there costs more than it spares."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import islice

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.first_tokens import answer_ns
from aegaeon_scheduler.core.notices import PrefixPull
from aegaeon_scheduler.core.prefix_chain import PrefixChain
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import Model, State
from aegaeon_scheduler.core.values import WorkerMemory

#: Engines whose waiting times are compared with that of the one which would be chosen otherwise.
_MOST_LOOKED_AT = 3
#: An engine may have this part more requests than that one and still be preferred, or
#: `CoreConfig.affinity_slack` more if that is more.
_IMBALANCE = 4


def prefer(state: State, sequence: Sequence, usual: Engine, engines: Items[Engine]) -> Engine:
    """The engine that will have answered first, of ``usual`` and of those that keep more of the
    sequence's beginning than it does.

    ``usual`` is who is chosen otherwise, and is chosen where nothing is known. Nobody is preferred
    who has many more requests, however much it keeps.
    """
    model = state.models[sequence.model]
    # Also while the others are being loaded, or loaded again.
    model.several |= len(engines) > 1 or len(state.homes.get(sequence.model, ())) > 1
    if not model.several or _chain(model, sequence) is None:
        return usual
    kept = {engine.epoch: _kept_tokens(state, engine, sequence) for engine in engines}
    sequence.expected_cached = kept[usual.epoch]
    better = [engine for engine in engines if kept[engine.epoch] > kept[usual.epoch]]
    if not better:
        return usual
    better.sort(key=lambda e: (-kept[e.epoch], len(e.sequences), e.epoch))
    sequence.pull = PrefixPull.PASSED_OVER
    best, best_ns = usual, answer_ns(usual, sequence, kept[usual.epoch])
    usual_ns = best_ns
    fewest = len(usual.sequences)
    most = fewest + max(state.config.affinity_slack, fewest // _IMBALANCE)
    for engine in islice((e for e in better if len(e.sequences) <= most), _MOST_LOOKED_AT):
        time_ns = answer_ns(engine, sequence, kept[engine.epoch])
        if time_ns < best_ns or (best is usual and time_ns == best_ns):
            best, best_ns = engine, time_ns
    sequence.expected_cached = kept[best.epoch]
    if best is usual:
        first = better[0]
        sequence.why = (
            f"{sequence.why}; {first.engine_id} keeps {kept[first.epoch]} tokens, but is too busy"
        )
        return usual
    sequence.pull = PrefixPull.FOLLOWED
    spared_ms = (usual_ns - best_ns) / 1e6
    sequence.why = f"keeps {sequence.expected_cached} tokens, {spared_ms:.1f} ms before others"
    return best


def enter(state: State, sequence: Sequence, engine: Engine) -> None:
    """An engine has been given a sequence, and will keep KV of its prompt."""
    if sequence.chain is None:
        return
    place = engine.prefixes.get(sequence.model)
    if place is None:
        place = engine.prefixes[sequence.model] = state.prefixes.open()
    state.prefixes.enter(place, sequence.chain.names)
    sequence.prefix_epoch = engine.epoch


def end(state: State, sequence: Sequence) -> None:
    """A sequence ends soundly: whoever has computed its prompt and its answer keeps both."""
    chain, engine = sequence.chain, state.engine_of(sequence)
    if chain is None or engine is None or engine.epoch != sequence.prefix_epoch:
        return
    if not sequence.has_token_here:
        return
    sequence.chain = None  # its reader may hold the sequence for longer
    # The last token has never been computed with.
    chain.extend(sequence.generated[:-1])
    place = engine.prefixes.get(sequence.model)
    if place is not None:
        state.prefixes.enter(place, chain.names)


def on_memory(state: State, engine: Engine, memory: WorkerMemory) -> None:
    """A worker tells how much KV it has: what was used before so much else is gone."""
    num_bytes = (
        memory.device_kv_bytes
        + memory.host_kv_bytes
        + memory.prefix_device_bytes
        + memory.prefix_host_bytes
    )
    for model, place in engine.prefixes.items():
        facts = state.models[model].facts if model in state.models else None
        if facts is None:
            continue
        # Unfinished sequences have been entered, but perhaps not been computed yet.
        queue = engine.queues.get(model)
        coming = queue.tokens // max(facts.kv_block_tokens, 1) if queue is not None else 0
        kept = num_bytes // max(facts.kv_block_bytes, 1)
        state.prefixes.bound(place, kept + coming)


def audit(state: State) -> list[str]:
    """What is remembered beyond the bound, or of models that engines do not have."""
    found = []
    if len(state.prefixes) > state.config.prefix_index_blocks:
        found.append(f"{len(state.prefixes)} blocks are remembered")
    for engine in state.engines.values():
        unknown = engine.prefixes.keys() - engine.loaded - engine.unloading
        if unknown:
            found.append(f"{engine.engine_id} keeps prompts of {sorted(unknown)}")
    return found


def _chain(model: Model, sequence: Sequence) -> PrefixChain | None:
    """The names of a sequence's prompt; None where it shares nothing."""
    if sequence.chain is not None:
        return sequence.chain
    facts, shares = model.facts, model.spec.prefix_caching and sequence.prefix.enabled
    if facts is None or not shares or sequence.prompt_logprobs is not None:
        return None
    block_tokens = facts.kv_block_tokens
    if not 0 < block_tokens < len(sequence.prompt):
        return None
    sequence.chain = PrefixChain(
        facts.fingerprint, sequence.prefix.salt, block_tokens, sequence.prompt
    )
    return sequence.chain


def _kept_tokens(state: State, engine: Engine, sequence: Sequence) -> int:
    """Tokens of a sequence's prompt that an engine probably need not compute."""
    place, chain = engine.prefixes.get(sequence.model), sequence.chain
    if place is None or chain is None:
        return 0
    # The last token is computed in any case, because its logits are wanted.
    whole = len(sequence.prompt) - (not sequence.generated)
    blocks = min(state.prefixes.known(place, chain.names), whole // chain.block_tokens)
    return blocks * chain.block_tokens
