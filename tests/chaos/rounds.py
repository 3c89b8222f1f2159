"""Rounds of chaos: load, faults, and everything as it must be afterwards."""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from tests.chaos import faults, topology
from tests.chaos.cluster import Cluster, running_cluster
from tests.chaos.fleet import Nursery
from tests.chaos.load import Load
from tests.chaos.oracle import Oracle, make_models

#: Rounds with one cluster; the next ones get another topology.
ROUNDS_PER_CLUSTER = 20
#: For everything that clients asked for in a round.
_ROUND_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """A round that went well."""

    number: int
    topology: str
    faults: list[str]
    requests: int
    retries: int
    #: Until the last client had its answer, and until everything was at rest.
    answered_s: float
    rested_s: float


class RoundFailedError(Exception):
    """Tokens or ledgers are not as they must be; names the seed and what was done."""


class Campaign:
    """Runs rounds. A round's load and faults depend on the seed and its number alone."""

    def __init__(
        self, seed: int, folder: Path, shm_dir: Path, nursery: Nursery, runner: asyncio.Runner
    ) -> None:
        """One ``runner`` for all rounds: gRPC still tells the loop of a call that has been left
        what becomes of it, and complains of every loop that is closed by then."""
        self._runner = runner
        self._seed = seed
        self._folder = folder
        self._shm_dir = shm_dir
        self._nursery = nursery
        (folder / "models").mkdir()
        self._models: list[ModelSpec] = make_models(folder / "models")
        #: By ranks of an engine.
        self._oracles: dict[int, Oracle] = {}

    def run(
        self,
        first: int,
        count: int,
        tell: Callable[[Outcome], None],
        until: float = math.inf,
    ) -> None:
        """Rounds ``first`` to ``first + count - 1``, but none that begins after the monotonic time
        ``until``; raises `RoundFailedError`."""
        number = first
        while number < first + count and time.monotonic() < until:
            block = number // ROUNDS_PER_CLUSTER
            end = min((block + 1) * ROUNDS_PER_CLUSTER, first + count)
            chosen = topology.draw(random.Random(f"{self._seed} topology {block}"))
            oracle = self._oracle(chosen.ranks)
            try:
                with self._cluster(chosen, f"b{block}") as (cluster, service):
                    load = Load(cluster, service, oracle)
                    while number < end and time.monotonic() < until:
                        tell(self._round(number, cluster, load))
                        number += 1
            except RoundFailedError:
                raise
            except Exception as error:
                raise RoundFailedError(
                    f"seed {self._seed}, after round {number}, topology {chosen}: {error!r}"
                ) from error

    def _oracle(self, ranks: int) -> Oracle:
        if ranks not in self._oracles:
            oracle = self._oracles[ranks] = Oracle(self._models)
            with self._cluster(topology.quiet(ranks), f"q{ranks}") as (_, service):
                oracle.learn(service)
        return self._oracles[ranks]

    @contextmanager
    def _cluster(
        self, chosen: topology.Topology, name: str
    ) -> Iterator[tuple[Cluster, LLMService]]:
        folder = self._folder / name
        folder.mkdir()
        with running_cluster(self._nursery, chosen, self._models, folder, self._shm_dir) as running:
            yield running
        shutil.rmtree(folder)  # kept when something is wrong

    def _round(self, number: int, cluster: Cluster, load: Load) -> Outcome:
        chance = random.Random(f"{self._seed} round {number}")
        clients = [load.draw(chance) for _ in range(chance.randint(3, 10))]
        todo = faults.draw(chance, cluster)
        texts = [f"{fault.at_s:.2f} s: {fault.text}" for fault in todo]
        start, retries = time.monotonic(), load.retries
        try:
            self._runner.run(_together(clients, todo))
            answered_s = time.monotonic() - start
            cluster.rest()
        except (Exception, asyncio.CancelledError) as error:
            raise RoundFailedError(
                f"round {number} of seed {self._seed}, topology {cluster.topology}; "
                f"{'; '.join(texts)}: {error!r} {getattr(error, '__notes__', '')}; "
                f"logs are in {cluster.folder}"
            ) from error
        return Outcome(
            number,
            str(cluster.topology),
            texts,
            len(clients),
            load.retries - retries,
            round(answered_s, 3),
            round(time.monotonic() - start, 3),
        )


async def _together(
    clients: list[Callable[[], asyncio.Future[None]]], todo: list[faults.Fault]
) -> None:
    async def inflict(fault: faults.Fault) -> None:
        await asyncio.sleep(fault.at_s)
        await fault.do()

    async with asyncio.timeout(_ROUND_S):
        outcomes = await asyncio.gather(
            *(client() for client in clients),
            *(inflict(fault) for fault in todo),
            return_exceptions=True,
        )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


@contextmanager
def campaign(seed: int) -> Iterator[Campaign]:
    """With folders of its own, which stay when it fails."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    shm_dir = Path(tempfile.mkdtemp(prefix="chaos-", dir="/dev/shm"))
    with ExitStack() as stack:
        nursery = Nursery()
        stack.callback(shutil.rmtree, shm_dir, ignore_errors=True)
        stack.callback(nursery.close)
        runner = stack.enter_context(asyncio.Runner())
        yield Campaign(seed, folder, shm_dir, nursery, runner)
        shutil.rmtree(folder)
