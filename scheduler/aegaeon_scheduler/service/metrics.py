"""The scheduler's Prometheus metrics; docs/metrics.md says what each one means.

Counters follow the events and notices that pass through the driver: a step costs two increments and
an observation, whatever the number of its sequences. Gauges are set when somebody asks.
"""

from __future__ import annotations

import re
import time
from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aegaeon.errors import AegaeonError
from aegaeon.metrics.registry import REQUEST_BUCKETS, STEP_BUCKETS, TOKEN_BUCKETS, new_registry
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.notices import (
    Notice,
    PrefixPull,
    RequestChange,
    RequestChanged,
    TurnChange,
    TurnChanged,
    WorkerChange,
    WorkerChanged,
)
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State

_ENDS = {
    RequestChange.FINISHED: "finished",
    RequestChange.CANCELLED: "cancelled",
    RequestChange.FAILED: "failed",
}
_MOVES = {
    RequestChange.RECOVERED: "recovered",
    RequestChange.HANDED_OFF: "handed_off",
    RequestChange.STOLEN: "stolen",
}
_PULLS = {PrefixPull.FOLLOWED: "followed", PrefixPull.PASSED_OVER: "passed_over"}
_DIGITS = re.compile(r"\d+")


class SchedulerMetrics:
    """Told of what happens by the driver; belongs to its event loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.registry: CollectorRegistry = new_registry()
        self._make_counters()
        self._make_histograms()
        self._make_gauges()
        #: When the first token came here, ns, by sequence id.
        self._first_ns: dict[int, int] = {}
        #: Why a turn that the worker has not begun was planned, by engine and turn.
        self._reasons: dict[tuple[str, int], str] = {}

    def on_event(self, event: events.Event) -> None:
        """An event that the core is about to handle."""
        if isinstance(event, events.StepDone):
            self._on_step(event)
        elif isinstance(event, events.TurnStarted):
            self._on_turn_started(event)

    def on_notice(self, notice: Notice) -> None:
        """Something that the core published."""
        if isinstance(notice, RequestChanged):
            self._on_request(notice)
        elif isinstance(notice, TurnChanged):
            key = (notice.engine_id, notice.turn_id)
            if notice.change is TurnChange.QUEUED:
                # Numbers in it would make every value a series of its own.
                self._reasons[key] = _DIGITS.sub("n", notice.reason)
            elif notice.change is TurnChange.ENDED:
                self._reasons.pop(key, None)
        elif isinstance(notice, WorkerChanged) and notice.change is WorkerChange.LOST:
            engine = f"{notice.node_id}/{notice.worker_index}"
            for key in [key for key in self._reasons if key[0] == engine]:
                del self._reasons[key]

    def on_refused(self, error: AegaeonError) -> None:
        """A request was not accepted."""
        self._refused.labels(error.reason.name.lower()).inc()

    def refresh(self) -> None:
        """Set every gauge to what holds now."""
        state = self._state
        running, waiting = Counts[str](), Counts[str]()
        for sequence in state.sequences.values():
            begun = len(sequence.generated) > sequence.inherited
            (running if begun else waiting)[sequence.model] += 1
        replicas = Counts[tuple[str, str]]()
        for node in state.nodes.values():
            for replica in node.replicas.values():
                replicas[replica.model, ReplicaState(replica.state).name.lower()] += 1
        for gauge in (self._running, self._waiting, self._replicas, self._engine_model):
            gauge.clear()
        for gauge in (self._engine_ready, self._engine_sequences):
            gauge.clear()
        for model in state.models:
            self._running.labels(model).set(running[model])
            self._waiting.labels(model).set(waiting[model])
        for (model, name), count in replicas.items():
            self._replicas.labels(model, name).set(count)
        for engine in state.engines.values():
            self._refresh_engine(engine)
        self._reserved.set(state.reserved_tokens)
        self._index.set(len(state.prefixes))

    def _refresh_engine(self, engine: Engine) -> None:
        name = engine.engine_id
        self._engine_ready.labels(name, engine.role.name.lower()).set(engine.ready)
        self._engine_sequences.labels(name).set(len(engine.sequences))
        if engine.turns:
            self._engine_model.labels(name, engine.turns[0].model).set(1)

    def _on_step(self, event: events.StepDone) -> None:
        engine = self._state.engines.get(event.epoch)
        turn = None if engine is None else engine.turn(event.turn_id)
        if engine is None or turn is None:
            return
        # Ends without a token are not part of a turn.
        self._generated.labels(turn.model).inc(len(event.handles))
        self._step_seconds.labels(turn.model).observe(event.step_time_ns / 1e9)
        if event.prefill_tokens:  # a first token comes of no other step
            now_ns = time.monotonic_ns()
            for handle in event.handles:
                sequence = engine.sequences.get(handle)
                if sequence is not None and not sequence.generated:
                    self._on_first_token(sequence, now_ns)

    def _on_first_token(self, sequence: Sequence, now_ns: int) -> None:
        self._first_ns[sequence.sequence_id] = now_ns
        waited_s = (now_ns - sequence.arrival_ns) / 1e9
        self._ttft.labels(sequence.model).observe(waited_s)
        self._cached.labels(sequence.model).inc(sequence.cached_tokens)

    def _on_turn_started(self, event: events.TurnStarted) -> None:
        engine = self._state.engines.get(event.epoch)
        turn = None if engine is None else engine.turn(event.turn_id)
        if engine is None or turn is None:
            return
        name = engine.engine_id
        self._turns.labels(name, turn.model).inc()
        if event.switched:
            reason = self._reasons.get((name, turn.turn_id), "unknown")
            self._switches.labels(name, turn.model, reason).inc()
            self._switch_seconds.labels(name).observe(event.switch_time_ns / 1e9)

    def _on_request(self, notice: RequestChanged) -> None:
        if notice.change is RequestChange.ACCEPTED:
            self._accepted.labels(notice.model).inc()
            sequence = self._state.sequences.get(notice.sequence_id)
            if sequence is not None:
                self._prompt.labels(notice.model).inc(len(sequence.prompt))
                self._prompt_lengths.labels(notice.model).observe(len(sequence.prompt))
                self._on_choice(notice)
        elif notice.change in _MOVES:
            self._moves.labels(_MOVES[notice.change]).inc()
        elif notice.change in _ENDS:
            self._on_end(notice, _ENDS[notice.change])

    def _on_choice(self, notice: RequestChanged) -> None:
        if notice.expected_cached_tokens:
            self._expected.labels(notice.model).inc(notice.expected_cached_tokens)
        if notice.pull in _PULLS:
            self._pulls.labels(notice.model, _PULLS[notice.pull]).inc()

    def _on_end(self, notice: RequestChanged, outcome: str) -> None:
        self._ended.labels(notice.model, outcome).inc()
        if notice.error is not None:
            self._errors.labels(notice.error.reason.name.lower()).inc()
        first_ns = self._first_ns.pop(notice.sequence_id, None)
        if outcome != "finished":
            return
        self._lengths.labels(notice.model).observe(notice.tokens)
        if first_ns is not None and notice.tokens > 1:
            spent_s = (time.monotonic_ns() - first_ns) / 1e9
            self._tpot.labels(notice.model).observe(spent_s / (notice.tokens - 1))

    def _make_counters(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aegaeon_{name}", text, labels, registry=self.registry)

        self._accepted = counter("requests", "Accepted requests.", "model")
        self._ended = counter("requests_ended", "Requests that ended.", "model", "outcome")
        self._refused = counter("requests_refused", "Requests not accepted.", "code")
        self._errors = counter("request_errors", "Accepted requests that failed.", "code")
        self._moves = counter("request_moves", "Requests that changed their engine.", "reason")
        self._prompt = counter("prompt_tokens", "Tokens of accepted prompts.", "model")
        self._cached = counter(
            "cached_prompt_tokens", "Of those, tokens whose KV was there already.", "model"
        )
        self._expected = counter(
            "expected_cached_prompt_tokens",
            "Of prompt tokens, those whose KV the chosen engines were expected to have.",
            "model",
        )
        self._pulls = counter(
            "prefix_routed_requests",
            "Requests of whose prompts another engine than the usual one keeps more.",
            "model",
            "result",
        )
        self._generated = counter("generation_tokens", "Tokens made.", "model")
        self._turns = counter("turns", "Turns begun.", "engine", "model")
        self._switches = counter(
            "model_switches", "Turns that brought in a model.", "engine", "model", "reason"
        )

    def _make_histograms(self) -> None:
        def histogram(
            name: str, text: str, buckets: tuple[float, ...], label: str = "model"
        ) -> Histogram:
            return Histogram(
                f"aegaeon_{name}", text, [label], buckets=buckets, registry=self.registry
            )

        self._ttft = histogram(
            "time_to_first_token_seconds", "From arrival to first token.", REQUEST_BUCKETS
        )
        self._tpot = histogram(
            "time_per_output_token_seconds",
            "Mean time per token after the first, of finished requests.",
            STEP_BUCKETS,
        )
        self._step_seconds = histogram("step_seconds", "Engine steps.", STEP_BUCKETS)
        self._switch_seconds = histogram(
            "switch_seconds", "From the turn before to the first step.", STEP_BUCKETS, "engine"
        )
        self._prompt_lengths = histogram(
            "request_prompt_tokens", "Prompt lengths of accepted requests.", TOKEN_BUCKETS
        )
        self._lengths = histogram(
            "request_generation_tokens", "Output lengths of finished requests.", TOKEN_BUCKETS
        )

    def _make_gauges(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"aegaeon_{name}", text, labels, registry=self.registry)

        self._running = gauge("num_requests_running", "Requests with a first token.", "model")
        self._waiting = gauge("num_requests_waiting", "Requests without one.", "model")
        self._reserved = gauge("reserved_tokens", "Tokens counted against the queue limits.")
        self._index = gauge("prefix_index_blocks", "Blocks of KV whose places are remembered.")
        self._replicas = gauge("replicas", "Replicas by state.", "model", "state")
        self._engine_ready = gauge("engine_ready", "1 while connected.", "engine", "role")
        self._engine_sequences = gauge("engine_sequences", "Sequences of an engine.", "engine")
        self._engine_model = gauge("engine_model", "1 for the model that runs.", "engine", "model")
