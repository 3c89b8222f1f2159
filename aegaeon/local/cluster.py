"""Scheduler, workers and perhaps a gateway as children of this process."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aegaeon.config.schema import SchedulingPolicyName
from aegaeon.errors import ConfigError, RequestTimeoutError, UnavailableError
from aegaeon.instance import instance_folder
from aegaeon.local.child import STOP_GRACE_S, Child
from aegaeon.local.memory_plan import MemoryPlan, plan_memory
from aegaeon.local.profiles import profile_flags
from aegaeon.local.run_directory import RunDirectory
from aegaeon.local.setup import LocalSetup
from aegaeon.local.supervisor import Supervisor
from aegaeon.machine import detect_machine
from aegaeon.node_config import NodeConfig

_POLL_S = 0.1
_FILE_NAME = str.maketrans(" /", "--")


class LocalCluster:
    """Starts the daemons on construction; ``stop`` ends them and removes what they left.

    Those that die are started again, up to ``restarts`` times a minute each.

    Raises ResourceExhaustedError (budgets above the machine), UnavailableError (a daemon died, with
    its last output), RequestTimeoutError (not serving by ``deadline``, monotonic); nothing is left
    behind then.
    """

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        policy: SchedulingPolicyName,
        deadline: float,
        restarts: int,
        setup: LocalSetup | None = None,
    ) -> None:
        if len(folders := {node.shm_dir for node in nodes}) > 1:
            raise ConfigError(f"nodes on one machine share one shm_dir, got {sorted(folders)}")
        machine = detect_machine(nodes[0].shm_dir)
        self.plans = plan_memory(nodes, machine)
        threads = max(1, machine.cpus // sum(len(node.worker_roles) for node in nodes))
        self._setup = setup or LocalSetup()
        self._directory = RunDirectory()
        # Private to this client and node: several may run side by side on one machine.
        # The folder's random name may begin with an underscore, an instance's may not.
        names = [f"local-{self._directory.name}-{position}" for position in range(len(nodes))]
        self._shared = [instance_folder(Path(machine.shm_dir), name) for name in names]
        self.log_dir = self._setup.log_dir or self._directory.path
        #: The scheduler, then the workers, then the gateway if there is one.
        self._children: list[Child] = []
        self._num_workers = 0
        self._supervisor: Supervisor | None = None
        try:
            self.address = self._start_scheduler(policy, profile_flags(nodes), deadline)
            workers = [
                self._start_worker(node, plan, name, index, threads)
                for node, plan, name in zip(nodes, self.plans, names, strict=True)
                for index in range(len(node.worker_roles))
            ]
            self._num_workers = len(workers)
            self._start_gateway()
            for child in self._children[1:]:
                self._wait_ready(child, deadline)
            self._supervisor = Supervisor(self._children, restarts)
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raise UnavailableError when nobody is left to serve: the scheduler or all workers died
        and are not started again."""
        dead = {} if self._supervisor is None else self._supervisor.given_up()
        workers = [dead[n] for n in range(1, 1 + self._num_workers) if n in dead]
        if 0 in dead:
            raise dead[0]
        if workers and len(workers) == self._num_workers:
            raise workers[0]

    def deaths(self) -> list[UnavailableError]:
        """The latest deaths of daemons, each with the daemon's last output."""
        return [] if self._supervisor is None else self._supervisor.deaths()

    def stop(self) -> None:
        """End the daemons: the gateway, whose callers get their answers, then the workers, so that
        each can say goodbye. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.stop()
        first_gateway = 1 + self._num_workers
        gateway, workers = self._children[first_gateway:], self._children[1:first_gateway]
        for group in (gateway, workers, self._children[:1]):
            for child in group:
                child.ask_to_stop()
            deadline = time.monotonic() + STOP_GRACE_S
            for child in group:
                child.stop(deadline)
        self._children = []
        for folder in self._shared:  # a killed worker could not do it
            shutil.rmtree(folder, ignore_errors=True)
        self._directory.remove()

    def _start_scheduler(
        self, policy: SchedulingPolicyName, profiles: Sequence[str], deadline: float
    ) -> str:
        folder = self._directory.path
        listen = self._setup.listen or f"unix:{folder}/s"
        flags = ["--listen", listen, "--state-file", f"{folder}/state.json"]
        flags += ["--policy", policy, *profiles]
        flags += ["--insecure-bind"] if self._setup.insecure_bind else []
        flags += self._metrics_flags(0)
        scheduler = self._spawn("scheduler", "aegaeon_scheduler", flags)
        return self._wait_ready(scheduler, deadline)

    def _start_gateway(self) -> None:
        if self._setup.gateway_flags is not None:
            flags = ["--scheduler", self.address, *self._setup.gateway_flags]
            self._spawn("gateway", "aegaeon.http", flags)

    def _start_worker(
        self, node: NodeConfig, plan: MemoryPlan, instance: str, index: int, threads: int
    ) -> Child:
        position = len(self._children)
        flags: dict[str, object] = {
            "--scheduler": self.address,
            "--listen": f"unix:{self._directory.path}/w{position}",
            "--node-id": node.node_id,
            "--worker-index": index,
            "--role": node.worker_roles[index],
            "--instance": instance,
            "--shm-dir": node.shm_dir,
            "--cpu-num-slabs": plan.cpu_num_slabs,
            "--cpu-slab-bytes": plan.cpu_slab_bytes,
            "--model-cache-bytes": plan.cache_bytes,
            "--device-memory-bytes": plan.device_bytes,
            "--tensor-parallel-size": node.tensor_parallel_size,
            "--threads": threads,
        }
        arguments = [str(part) for flag in flags.items() for part in flag]
        # Nobody but this user reaches it, who has set trust_remote_code where it is set.
        arguments.append("--allow-remote-code")
        arguments += self._metrics_flags(position)
        return self._spawn(f"worker {node.node_id}/{index}", "aegaeon_worker", arguments)

    def _metrics_flags(self, position: int) -> list[str]:
        port = self._setup.metrics_port
        return [] if port is None else ["--metrics-listen", f"127.0.0.1:{port + position}"]

    def _spawn(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        self._setup.on_step(name, False)
        log = self.log_dir / f"{name.translate(_FILE_NAME)}.log"
        child = Child(name, [*daemon_command(module), *arguments], log, self._directory.path)
        self._children.append(child)
        return child

    def _wait_ready(self, child: Child, deadline: float) -> str:
        while True:
            address = child.poll_ready(_POLL_S)
            if address is not None:
                self._setup.on_step(child.name, True)
                return address
            for other in self._children:
                other.check()
            self._setup.on_wait()
            if time.monotonic() >= deadline:
                raise RequestTimeoutError(
                    f"{child.name} did not serve in time; its last output:\n{child.log_tail()}"
                )


def daemon_command(module: str) -> list[str]:
    """How a daemon of this installation is started."""
    return [sys.executable, "-m", module]
