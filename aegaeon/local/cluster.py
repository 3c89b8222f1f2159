"""Scheduler and workers as children of this process."""

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
from aegaeon.local.supervisor import Supervisor
from aegaeon.machine import detect_machine
from aegaeon.node_config import NodeConfig

_POLL_S = 0.1


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
    ) -> None:
        if len(folders := {node.shm_dir for node in nodes}) > 1:
            raise ConfigError(f"nodes on one machine share one shm_dir, got {sorted(folders)}")
        machine = detect_machine(nodes[0].shm_dir)
        self.plans = plan_memory(nodes, machine)
        threads = max(1, machine.cpus // sum(len(node.worker_roles) for node in nodes))
        self._directory = RunDirectory()
        # Private to this client and node: several may run side by side on one machine.
        # The folder's random name may begin with an underscore, an instance's may not.
        names = [f"local-{self._directory.name}-{position}" for position in range(len(nodes))]
        self._shared = [instance_folder(Path(machine.shm_dir), name) for name in names]
        self._children: list[Child] = []
        self._supervisor: Supervisor | None = None
        try:
            self.address = self._start_scheduler(policy, profile_flags(nodes), deadline)
            workers = [
                self._start_worker(node, plan, name, index, threads)
                for node, plan, name in zip(nodes, self.plans, names, strict=True)
                for index in range(len(node.worker_roles))
            ]
            for worker in workers:
                self._wait_ready(worker, deadline)
            self._supervisor = Supervisor(self._children, restarts)
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raise UnavailableError when nobody is left to serve: the scheduler or all workers died
        and are not started again."""
        dead = {} if self._supervisor is None else self._supervisor.given_up()
        workers = [death for position, death in dead.items() if position]
        if 0 in dead:
            raise dead[0]
        if workers and len(workers) == len(self._children) - 1:
            raise workers[0]

    def deaths(self) -> list[UnavailableError]:
        """The latest deaths of daemons, each with the daemon's last output."""
        return [] if self._supervisor is None else self._supervisor.deaths()

    def stop(self) -> None:
        """End the daemons, workers first, so that each can say goodbye. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.stop()
        scheduler, workers = self._children[:1], self._children[1:]
        for group in (workers, scheduler):
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
        flags = ["--listen", f"unix:{folder}/s", "--state-file", f"{folder}/state.json"]
        flags += ["--policy", policy, *profiles]
        scheduler = self._spawn("scheduler", "aegaeon_scheduler", flags)
        return self._wait_ready(scheduler, deadline)

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
        return self._spawn(f"worker {node.node_id}/{index}", "aegaeon_worker", arguments)

    def _spawn(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        log = self._directory.path / f"{len(self._children)}.log"
        child = Child(name, [*daemon_command(module), *arguments], log)
        self._children.append(child)
        return child

    def _wait_ready(self, child: Child, deadline: float) -> str:
        while True:
            address = child.poll_ready(_POLL_S)
            if address is not None:
                return address
            for other in self._children:
                other.check()
            if time.monotonic() >= deadline:
                raise RequestTimeoutError(
                    f"{child.name} did not serve in time; its last output:\n{child.log_tail()}"
                )


def daemon_command(module: str) -> list[str]:
    """How a daemon of this installation is started."""
    return [sys.executable, "-m", module]
