"""Lists the benchmarks, or runs them one after another, each in a process of its own.

python -m benchmarks                       lists them
python -m benchmarks NAME [NAME ...]       runs them with their defaults
python -m benchmarks NAME --option ...     runs one with options, see its --help
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile

#: What each of them measures, by the name of its module.
BENCHMARKS = {
    "cpu_stack": "the whole stack on CPUs, with transformers beside it",
    "scheduler_load": "the scheduler daemon under load, with stub workers",
    "step_overhead": "what engine and daemons add to the steps of a device that takes no processor",
    "gateway_load": "the HTTP gateway streaming to many callers, with stub workers",
    "gateway_stack": "the whole stack on CPUs, through the HTTP gateway and through gRPC",
    "kv_handoff": "KV that goes from one worker to another, through host slabs and over the wire",
    "prefix_cache": "prompts that begin alike, with and without what is known of them",
    "prefix_routing": "routing by what engines keep, on simulated engines",
    "live_policies": "scheduling policies side by side on small models and real daemons",
    "estimator_error": "estimated against measured times, on profiles and on a live worker",
    "sampling": "choosing the tokens of a step on a CPU, by kind of sampling",
    "constrained_output": "decode steps of answers that keep to a JSON schema, and of free ones",
    "weight_switch": "switching between two models in the weight cache alone",
    "gpu_engine": "the whole engine on one GPU, with transformers beside it",
    "gpu_decode": "the native decoder on one GPU",
    "gpu_handoff": "KV from the device of one process to that of another, on one GPU or two",
    "gpu_memory": "memory and model switches on one GPU",
}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: that of the last benchmark that failed, 0 without one."""
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(names) :]
    wrong = [name for name in names if name not in BENCHMARKS]
    if wrong or (options and len(names) != 1):
        print(f"unknown: {', '.join(wrong)}" if wrong else "options need one NAME before them")
        return 2
    if not names:
        width = max(map(len, BENCHMARKS))
        print("\n".join(f"{name:{width}}  {text}" for name, text in BENCHMARKS.items()))
    status = 0
    for name in names:
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        status = subprocess.run(command, check=False).returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
