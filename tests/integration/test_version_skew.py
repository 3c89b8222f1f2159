"""Releases that are one step apart serve together: in every pair, while one replaces the other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from aegaeon import LLMService, StepOutput
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import START_S, Daemons, until
from tests.integration.models import expected_tokens
from tests.integration.older_release import OlderRelease
from tests.integration.workload import ask, tiny_node, tokens_of

PROMPT = [5, 9, 250, 17]
NEW_TOKENS = 800
CHECKED_TOKENS = 32


@pytest.fixture
def older(tmp_path: Path) -> OlderRelease:
    return OlderRelease(tmp_path)


class Stream(threading.Thread):
    """Reads one request."""

    def __init__(self, service: LLMService, spec: ModelSpec) -> None:
        super().__init__(daemon=True)
        self.steps: list[StepOutput] = []
        self._stream = service.stream(ask(spec, PROMPT, NEW_TOKENS))

    def run(self) -> None:
        for step in self._stream:
            self.steps.append(step)


def test_an_older_and_this_release_serve_together(
    daemons: Daemons, tiny_models: list[ModelSpec], older: OlderRelease
) -> None:
    """A worker of each at a scheduler of the older release, which this one then replaces, with
    clients of both. The workers share the node's slabs and weight cache, and have a model each."""
    of_older, of_this = tiny_models[1:3]
    names = [of_older.name, of_this.name]
    expected = [expected_tokens(spec, [PROMPT], CHECKED_TOKENS)[0] for spec in (of_older, of_this)]
    scheduler = daemons.scheduler(prefix=older.prefix)
    workers = [
        daemons.worker(scheduler.address, node_id="older", prefix=older.prefix),
        daemons.worker(scheduler.address, node_id="this", worker_index=1),
    ]
    for worker in workers:
        worker.wait_ready()
    nodes = [tiny_node([of_older], node_id="older"), tiny_node([of_this], node_id="this")]
    with LLMService(nodes, address=scheduler.address) as service:

        def answers() -> list[list[int]]:
            requests = [ask(name, PROMPT, CHECKED_TOKENS) for name in names * 2]
            return [tokens_of(output) for output in service.serve(requests)]

        assert answers() == expected * 2
        assert older.serve(scheduler.address, names, PROMPT, CHECKED_TOKENS) == expected
        streams = [Stream(service, spec) for spec in (of_older, of_this)]
        for stream in streams:
            stream.start()
        until(lambda: all(len(stream.steps) > 20 for stream in streams), START_S)
        scheduler.kill()
        assert daemons.scheduler(scheduler.address).address == scheduler.address
        for stream in streams:
            stream.join(START_S)
            assert len(tokens_of(stream.steps)) == NEW_TOKENS
        assert [tokens_of(stream.steps)[:CHECKED_TOKENS] for stream in streams] == expected
        again = service.serve([ask(spec, PROMPT, NEW_TOKENS) for spec in (of_older, of_this)])
        assert [tokens_of(output) for output in again] == [tokens_of(s.steps) for s in streams]
        assert answers() == expected * 2
        assert older.serve(scheduler.address, names, PROMPT, CHECKED_TOKENS) == expected
        snapshot = service.runtime()
        assert {worker.pid for worker in snapshot.workers} == {worker.pid for worker in workers}
        assert snapshot.active_requests == 0
