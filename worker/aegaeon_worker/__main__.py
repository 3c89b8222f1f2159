"""The ``aegaeon-worker`` command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields as dc_fields
from pathlib import Path
from typing import NoReturn

from aegaeon.config.cluster import cluster_config
from aegaeon.rpc.daemon import leave, run_daemon
from aegaeon.security.model_rules import add_model_options, model_rules
from aegaeon.security.options import add_security_options, security_settings
from aegaeon.security.settings import SecuritySettings
from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.service.interpreter import begin_start
from aegaeon_worker.sizes import GivenSizes, complete_sizes

_MAX_SECONDS = 31_536_000


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one worker until it is told to stop; ends the process with its exit status."""
    options = _parser().parse_args(arguments)
    name = f"aegaeon-worker {options.node_id}/{options.worker_index}"
    status = run_daemon(
        lambda: _serve(options),
        name=name,
        lifeline_fd=options.lifeline_fd,
        lifeline_folder=options.lifeline_folder,
    )
    leave(status)


async def _serve(options: argparse.Namespace) -> None:
    begin_start()
    # Imported here: torch takes seconds, which a usage error need not wait for.
    from aegaeon_worker.service.daemon import serve

    await serve(_config(options))


def _config(options: argparse.Namespace) -> WorkerConfig:
    fields = {key: value for key, value in vars(options).items() if value is not None}
    file = fields.pop("config", None)
    for name in ("model_root", "allow_remote_code", *(f.name for f in dc_fields(SecuritySettings))):
        fields.pop(name, None)
    given = GivenSizes(
        **{field.name: fields.pop(field.name, None) for field in dc_fields(GivenSizes)}
    )
    ranks = fields.setdefault("tensor_parallel_size", _ranks(file))
    sizes = complete_sizes(given, options.node_id, options.shm_dir, file, ranks)
    return WorkerConfig(
        cpu_num_slabs=sizes.cpu_num_slabs,
        cpu_slab_bytes=sizes.cpu_slab_bytes,
        model_cache_bytes=sizes.cache_bytes,
        device_memory_bytes=sizes.device_bytes,
        security=security_settings(options, file),
        model_rules=model_rules(options),
        **fields,
    )


def _ranks(file: Path | None) -> int:
    """Workers of an engine, where the command line does not say."""
    return 1 if file is None else cluster_config(file)[0][0].tensor_parallel_size


def _parser() -> argparse.ArgumentParser:
    """Every option is a field of ``WorkerConfig``, whose documentation holds."""
    parser = argparse.ArgumentParser(prog="aegaeon-worker", description="One device's worker.")
    add = parser.add_argument
    add("--scheduler", required=True, help="scheduler address: host:port or unix:path")
    add(
        "--engine-timeout-s",
        type=_seconds_or_never,
        help="end when a step takes so long; 0: never (default: 120 on GPUs, 0 on CPUs)",
    )
    add(
        "--scheduler-timeout-s",
        type=_seconds,
        help="end after so long without the scheduler (default: 600)",
    )
    add("--listen", default="127.0.0.1:0", help="own address (default: %(default)s)")
    add("--node-id", required=True, help="this machine's name")
    add("--worker-index", type=int, default=0, help="which worker of the node, from 0")
    add(
        "--role",
        choices=("simple", "prefill", "decode"),
        help="stage to run (default: simple, both)",
    )
    add("--instance", default="default", help="isolates shared memory of services on one host")
    add("--shm-dir", type=Path, default=Path("/dev/shm"), help="default: %(default)s")
    add("--config", type=Path, help="YAML file; its sections server and security count")
    add("--cpu-num-slabs", type=int, help="host KV slabs of the node")
    add("--cpu-slab-bytes", type=int, help="bytes of one slab")
    add("--model-cache-bytes", type=int, help="budget of the node's weight cache")
    add("--device", type=_device, help="auto (default), cpu or cuda:<index>")
    add("--memory-utilization", type=_share, help="share of a GPU's free memory to take")
    add("--device-memory-bytes", type=int, help="pool for weights and KV if the device is a CPU")
    add("--device-chunk-bytes", type=int, help="chunk of the pool, a multiple of 2 MiB")
    add("--tensor-parallel-size", type=_size, help="workers that are one engine (default: 1)")
    add("--rank-timeout-s", type=float, help="when an engine gives a silent rank up (default: 20)")
    add("--threads", type=int, help="compute threads on the CPU; 0 lets torch choose")
    add("--max-batch-sequences", type=int, help="sequences that run together at most")
    add(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_const",
        const=False,
        help="compute every prompt anew, whatever it has in common with others",
    )
    add("--keep-weights", action="store_true", help="leave the weight cache for the next start")
    add("--metrics-listen", help="host:port or unix:path of Prometheus metrics")
    add("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    add("--lifeline-folder", type=Path, help=argparse.SUPPRESS)
    add("--ready-fd", type=int, help=argparse.SUPPRESS)
    add_model_options(parser)
    add_security_options(parser)
    return parser


def _device(text: str) -> str:
    if text not in ("auto", "cpu") and not re.fullmatch(r"cuda:\d+", text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu or cuda:<index>, not {text!r}")
    return text


def _size(text: str) -> int:
    size = int(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text}")
    return size


def _seconds_or_never(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"expected 1 to {_MAX_SECONDS} seconds, not {text}")
    return seconds


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and at most 1, not {text}")
    return share


if __name__ == "__main__":
    main()
