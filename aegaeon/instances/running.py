"""One process that starts an instance, keeps it, and takes it down again."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aegaeon.client.connection import Connection
from aegaeon.client.loop_thread import LoopThread
from aegaeon.client.startup import initialise
from aegaeon.errors import ConfigError
from aegaeon.instances.plan import GatewayPlan, InstancePlan
from aegaeon.instances.records import InstanceFolder, InstanceRecord
from aegaeon.instances.steps import Report, Step
from aegaeon.local.cluster import LocalCluster
from aegaeon.local.setup import LocalSetup
from aegaeon.security.settings import PLAIN

_WATCH_S = 0.2


class StoppedError(Exception):
    """It was told to stop while it started."""


class RunningInstance:
    """Serves when it is made; raises with nothing left behind. ``close`` is idempotent.

    ``report`` is told every step; it is called from several threads. Once ``stop`` is set, a start
    under way ends with StoppedError, and `wait` returns.
    """

    def __init__(self, plan: InstancePlan, report: Report, stop: threading.Event) -> None:
        self._plan, self._report, self._stop = plan, report, stop
        deadline = time.monotonic() + plan.timeout_s
        gateway = plan.checked_gateway()
        self._folder = InstanceFolder(plan.instance)
        self._cluster: LocalCluster | None = None
        self._loop: LoopThread | None = None
        self.record = InstanceRecord(plan.instance, os.getpid(), time.time())
        try:
            self._folder.write(self.record)
            self._start(gateway, deadline)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise UnavailableError once a daemon that others need is gone."""
        assert self._cluster is not None
        self._cluster.check()

    def wait(self, turn: Callable[[], None]) -> None:
        """Serve until told to stop; raises UnavailableError when nobody is left to do it.

        ``turn`` is called now and then meanwhile.
        """
        while not self._stop.wait(_WATCH_S):
            turn()
            self.check()

    def close(self) -> None:
        """End every daemon, remove what they left, give the name up."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()
        self._folder.remove()

    def _start(self, gateway: GatewayPlan | None, deadline: float) -> None:
        plan = self._plan
        self._cluster = LocalCluster(
            plan.nodes,
            plan.policies.scheduling,
            deadline,
            plan.restarts,
            LocalSetup(
                listen=plan.listen,
                insecure_bind=plan.insecure_bind,
                metrics_port=plan.metrics_port,
                gateway_flags=gateway.flags(plan.insecure_bind) if gateway else None,
                log_dir=None if plan.log_dir is None else _folder(plan.log_dir),
                on_step=self._on_daemon,
                on_wait=self._on_wait,
            ),
        )
        self.record = replace(
            self.record,
            address=self._cluster.address,
            url=gateway.url if gateway else "",
            log_dir=str(self._cluster.log_dir),
            metrics=_metrics(plan, gateway),
        )
        self._folder.write(self.record)
        self._loop = LoopThread("aegaeon-instance")
        self._loop.run(self._initialise(deadline))
        self.record = replace(self.record, ready=True)
        self._folder.write(self.record)

    async def _initialise(self, deadline: float) -> None:
        assert self._cluster is not None
        connection = Connection(self._cluster.address, PLAIN)
        task = asyncio.create_task(
            initialise(
                connection,
                self._plan.nodes,
                self._plan.policies,
                demand_memory=False,
                deadline=deadline,
                on_progress=lambda name, step: self._report(Step.of_model(name, step)),
            )
        )
        try:
            while not (await asyncio.wait({task}, timeout=_WATCH_S))[0]:
                self._on_wait()
                self.check()
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await connection.close()

    def _on_wait(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _on_daemon(self, name: str, serves: bool) -> None:
        self._report(Step(name, "serving" if serves else "starting", serves))


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: no folder for logs: {error.strerror}") from error
    return path.absolute()


def _metrics(plan: InstancePlan, gateway: GatewayPlan | None) -> tuple[str, ...]:
    urls = [f"{gateway.url}/metrics"] if gateway else []
    if (port := plan.metrics_port) is not None:
        workers = sum(len(node.worker_roles) for node in plan.nodes)
        urls += [f"http://127.0.0.1:{port + position}/metrics" for position in range(1 + workers)]
    return tuple(urls)
