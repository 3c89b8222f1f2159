"""A deployment: read the files, choose nodes, make room, load, report per node."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon.errors import AegaeonError, ConflictError, ErrorReason, PreconditionError
from aegaeon_scheduler.core import lifecycle, placement
from aegaeon_scheduler.core.commands import DeployFinished, DeployProgressed, InspectModel
from aegaeon_scheduler.core.events import ModelInspected
from aegaeon_scheduler.core.node import Node
from aegaeon_scheduler.core.placement import Site
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import ModelFacts, ModelSpec

_SERVING = frozenset({ReplicaState.READY, ReplicaState.LOADING})


@dataclass(slots=True, eq=False)
class Deployment:
    """Makes a model READY on nodes."""

    operation_id: int
    spec: ModelSpec
    replica_count: int
    node_ids: tuple[str, ...]
    #: Answer to `InspectModel`.
    inspected: ModelInspected | None = None
    _asked: bool = False
    #: Nodes that are to be READY; None before they are chosen.
    _targets: list[str] | None = None
    #: Of those, nodes that wait until these models have left.
    _evicting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _failed: dict[str, AegaeonError] = field(default_factory=dict)
    _evicted: list[tuple[str, str]] = field(default_factory=list)
    _reported: dict[str, ReplicaState] = field(default_factory=dict)

    def advance(self, state: State, now_ns: int) -> bool:
        """See `operations.Operation`."""
        if not self._asked:
            error = self._start(state, now_ns)
            if error is not None:
                return self._finish(state, error)
        model = state.models[self.spec.name]
        if model.facts is None:
            if self.inspected is None:
                return False
            if self.inspected.facts is None:
                return self._finish(state, self.inspected.error)
            model.facts = self.inspected.facts
        if self._targets is None and not self._place(state, model.facts, now_ns):
            return False
        waiting = [n for n in self._targets or () if not self._settled(state, n, now_ns)]
        self._report(state)
        return not waiting and self._finish(state, None)

    def _start(self, state: State, now_ns: int) -> AegaeonError | None:
        self._asked = True
        name = self.spec.name
        model = state.models[name]
        if model.spec != self.spec:
            replicas = list(state.replicas(name))
            if any(replica.state is not ReplicaState.FAILED for _, replica in replicas):
                return ConflictError(
                    f"model {name!r} is deployed from {model.spec.path!r} with other options; "
                    "undeploy it first, or choose another name",
                    metadata={"model": name},
                )
            for node, replica in replicas:
                for engine in node.ready_engines():
                    lifecycle.ask_to_unload(state, engine, name)
                lifecycle.move(state, node, replica, ReplicaState.ABSENT, now_ns)
            model.spec, model.facts = self.spec, None
        if model.facts is None:
            engines = [e for node in self._candidates(state) for e in node.ready_engines()]
            if not engines:
                return _no_worker(self.node_ids)
            state.out.add(InspectModel(engines[0].epoch, self.operation_id, self.spec))
        return None

    def _candidates(self, state: State) -> list[Node]:
        """Nodes that may take a replica, by id."""
        allowed = self.node_ids or state.topology
        return [
            node
            for node_id, node in sorted(state.nodes.items())
            if not allowed or node_id in allowed
        ]

    def _place(self, state: State, facts: ModelFacts, now_ns: int) -> bool:
        """Choose the targets; False while a replica must leave first."""
        name = self.spec.name
        candidates = self._candidates(state)
        leaving = [n for n in candidates if _state(n, name) is ReplicaState.DRAINING]
        if self.node_ids and leaving:
            return False
        serving = [node.node_id for node in candidates if _state(node, name) in _SERVING]
        open_nodes = [n for n in candidates if n not in leaving and n.node_id not in serving]
        packed = state.packed_bytes()
        surveys = {n.node_id: placement.survey(state, n, facts, packed) for n in open_nodes}
        sites = [site for site in surveys.values() if isinstance(site, Site)]
        wanted = max(self.replica_count, 1) - len(serving)
        if not self.node_ids:
            sites = placement.choose(state, sites, max(wanted, 0))
        if self.node_ids or len(sites) < wanted:
            errors = {n: s for n, s in surveys.items() if not isinstance(s, Site)}
            self._failed.update(errors)
        for node_id in self.node_ids:
            if node_id not in state.nodes:
                self._failed[node_id] = _no_worker((node_id,))
        self._targets = serving + [site.node.node_id for site in sites]
        for site in sites:
            self._occupy(state, site, facts, now_ns)
        return True

    def _occupy(self, state: State, site: Site, facts: ModelFacts, now_ns: int) -> None:
        node = site.node
        state.statistics.placed_by_node[node.node_id] += 1
        if not site.evict:
            lifecycle.begin_load(state, node, self.spec.name, now_ns)
            return
        node.reserved[self.spec.name] = facts.packed_bytes * node.ranks
        self._evicting[node.node_id] = site.evict
        for model in site.evict:
            node.evicting.add(model)
            self._evicted.append((node.node_id, model))
            state.statistics.evicted_by_node[node.node_id] += 1
            lifecycle.begin_drain(state, node, node.replicas[model], now_ns)

    def _settled(self, state: State, node_id: str, now_ns: int) -> bool:
        """Whether a target has become READY or failed."""
        node = state.nodes[node_id]
        if node_id in self._failed:
            return True
        leaving = self._evicting.get(node_id, ())
        if any(_state(node, model) is ReplicaState.DRAINING for model in leaving):
            return False
        if leaving:
            del self._evicting[node_id], node.reserved[self.spec.name]
            # A worker that came back may load it already: its loss had failed the replica.
            if _state(node, self.spec.name) not in _SERVING:
                lifecycle.begin_load(state, node, self.spec.name, now_ns)
        replica = node.replicas.get(self.spec.name)
        if replica is None:
            self._failed[node_id] = _no_worker((node_id,))
        elif replica.state is ReplicaState.FAILED and replica.error is not None:
            self._failed[node_id] = replica.error
        else:
            return replica.state is not ReplicaState.LOADING
        return True

    def _report(self, state: State) -> None:
        for node_id in self._targets or ():
            found = _state(state.nodes[node_id], self.spec.name)
            if found is not self._reported.get(node_id):
                self._reported[node_id] = found
                state.out.add(DeployProgressed(self.operation_id, node_id, found, 0, 0))

    def _finish(self, state: State, error: AegaeonError | None) -> bool:
        ready = tuple(
            node.node_id
            for node, replica in state.replicas(self.spec.name)
            if replica.state is ReplicaState.READY
            and (not self.node_ids or node.node_id in self.node_ids)
        )
        if error is None and not ready:
            error = _worst(list(self._failed.values())) or _no_worker(self.node_ids)
        failed = tuple(sorted(self._failed.items()))
        state.out.add(DeployFinished(self.operation_id, ready, failed, tuple(self._evicted), error))
        return True


def _state(node: Node, model: str) -> ReplicaState:
    replica = node.replicas.get(model)
    return ReplicaState.ABSENT if replica is None else replica.state


def _worst(errors: list[AegaeonError]) -> AegaeonError | None:
    """Of several reasons why nothing is ready, the one to report: memory first."""
    memory = [e for e in errors if e.reason is ErrorReason.INSUFFICIENT_MEMORY]
    return next(iter(memory or errors), None)


def _no_worker(node_ids: tuple[str, ...]) -> AegaeonError:
    where = f"on node {', '.join(map(repr, node_ids))}" if node_ids else "anywhere"
    return PreconditionError(
        f"no worker is connected {where}; start one first",
        reason=ErrorReason.TOPOLOGY_INVALID,
        metadata={"node_id": ",".join(node_ids)},
    )
