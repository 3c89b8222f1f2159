"""The command ``aegaeon-scheduler``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from aegaeon.rpc.daemon import StopSignal, announce_ready, run_daemon
from aegaeon.rpc.notify import keep_watchdog, notify
from aegaeon.security.options import add_security_options, security_settings
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.values import AdmissionPolicy, PlacementPolicy, RoutingPolicy
from aegaeon_scheduler.profile_file import read_profile
from aegaeon_scheduler.service.server import SchedulerServer

_MS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args(arguments)
    return run_daemon(
        lambda: serve(_config(options)),
        name="aegaeon-scheduler",
        lifeline_fd=options.lifeline_fd,
        lifeline_folder=options.lifeline_folder,
    )


async def serve(config: DaemonConfig) -> None:
    """Run one scheduler until this process is told to stop."""
    stop = StopSignal()
    server = SchedulerServer(config)
    address = await server.start()
    # What exists by now lives as long as the process. Without it a full collection, during which no
    # token moves, takes 8 ms less.
    gc.collect()
    gc.freeze()
    announce_ready(address, config.ready_fd)
    watchdog = asyncio.get_running_loop().create_task(keep_watchdog())
    await stop.wait()
    notify("STOPPING=1")
    await server.stop()
    watchdog.cancel()


def _parser() -> argparse.ArgumentParser:
    """Every option is a field of `DaemonConfig` or `CoreConfig`, whose documentation holds."""
    daemon, core = DaemonConfig(), CoreConfig()
    parser = argparse.ArgumentParser(
        prog="aegaeon-scheduler",
        description="Plans the turns of every engine and serves the clients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", default=daemon.listen, help="host:port (port 0: any free one) or unix:path")
    add("--config", type=Path, help="YAML file; its security section counts here")
    add_security_options(parser)
    add(
        "--state-file",
        type=Path,
        default=daemon.state_file,
        help="keep topology and deployed models here for the next start",
    )
    add(
        "--shutdown-grace-s",
        type=float,
        default=daemon.shutdown_grace_s,
        help="time for open calls to end",
    )
    for flag, default, text in _numbers(daemon, core):
        add(flag, type=_positive, default=default, help=text)
    for flag, policy, text in (
        ("--placement", core.placement, "chooses nodes for replicas"),
        ("--routing", core.routing, "chooses nodes for requests"),
    ):
        add(flag, choices=[_name(p) for p in type(policy)], default=_name(policy), help=text)
    add(
        "--policy",
        choices=[policy.value for policy in SchedulingPolicy],
        default=core.policy.value,
        help="plans turns and chooses engines",
    )
    add(
        "--decode-work-stealing-min-batch-gap",
        type=_gap,
        default=core.stealing_min_batch_gap,
        help="batches at which an idle decode engine takes one of another, until a topology says "
        "otherwise; 0: never",
    )
    add(
        "--profile",
        type=Path,
        action="append",
        default=[],
        help="CSV file of measured step times to begin with, see docs/scheduling.md; may be given "
        "several times",
    )
    add(
        "--profile-name",
        type=_pair,
        action="append",
        default=[],
        metavar="MODEL=NAME",
        help="the rows of MODEL are called NAME; may be given several times",
    )
    add(
        "--admission",
        choices=[policy.value for policy in AdmissionPolicy],
        default=core.admission.value,
        help="slo: also refuse what would miss objectives, or make others miss theirs",
    )
    add("--metrics-listen", help="host:port or unix:path of Prometheus metrics")
    add("--lifeline-fd", type=int, help="stop when the other end of this pipe is closed")
    add("--lifeline-folder", type=Path, help="remove this folder when that was the reason to stop")
    add("--ready-fd", type=int, help="write a JSON line with the address here once serving")
    return parser


def _numbers(daemon: DaemonConfig, core: CoreConfig) -> list[tuple[str, int, str]]:
    """Flag, default and help of every option that is a number from 1 up."""
    return [
        ("--lease-ttl-ms", daemon.lease_ttl_ns // _MS, "a worker's lease after its last renewal"),
        (
            "--rejoin-window-ms",
            daemon.rejoin_window_ns // _MS,
            "how long after the start workers of an earlier scheduler may come back with models",
        ),
        ("--max-requests", core.max_requests, "unfinished requests at most"),
        ("--max-requests-per-model", core.max_requests_per_model, "the same for one model"),
        ("--max-tokens", core.max_tokens, "prompt and permitted new tokens in flight at most"),
        ("--max-tokens-per-model", core.max_tokens_per_model, "the same for one model"),
        (
            "--reader-backlog-tokens",
            core.reader_backlog_tokens,
            "unread tokens at which a request pauses",
        ),
        (
            "--recovery-timeout-ms",
            core.recovery_timeout_ns // _MS,
            "how long a request waits for a replica after a loss",
        ),
        (
            "--max-losses",
            core.max_losses,
            "workers that a request may lose in a row without a new token",
        ),
        ("--ttft-slo-ms", core.ttft_slo_ns // _MS, "target time to the first token"),
        ("--tpot-slo-ms", core.tpot_slo_ns // _MS, "target time per output token"),
        (
            "--max-quota-ms",
            core.max_quota_ns // _MS,
            "longest turn while another model waits; published: 4 s",
        ),
        ("--max-wait-ms", core.max_wait_ns // _MS, "a model that waits so long goes first"),
        (
            "--prefix-index-blocks",
            core.prefix_index_blocks,
            "blocks of KV of which is remembered which engine keeps them, for prefix-aware routing",
        ),
    ]


def _config(options: argparse.Namespace) -> DaemonConfig:
    return DaemonConfig(
        listen=options.listen,
        insecure_bind=options.insecure_bind,
        security=security_settings(options, options.config),
        lease_ttl_ns=options.lease_ttl_ms * _MS,
        rejoin_window_ns=options.rejoin_window_ms * _MS,
        metrics_listen=options.metrics_listen,
        shutdown_grace_s=options.shutdown_grace_s,
        state_file=options.state_file,
        ready_fd=options.ready_fd,
        core=CoreConfig(
            max_requests=options.max_requests,
            max_requests_per_model=options.max_requests_per_model,
            max_tokens=options.max_tokens,
            max_tokens_per_model=options.max_tokens_per_model,
            reader_backlog_tokens=options.reader_backlog_tokens,
            recovery_timeout_ns=options.recovery_timeout_ms * _MS,
            max_losses=options.max_losses,
            policy=SchedulingPolicy(options.policy),
            admission=AdmissionPolicy(options.admission),
            ttft_slo_ns=options.ttft_slo_ms * _MS,
            tpot_slo_ns=options.tpot_slo_ms * _MS,
            max_quota_ns=options.max_quota_ms * _MS,
            max_wait_ns=options.max_wait_ms * _MS,
            placement=PlacementPolicy[_member(options.placement)],
            routing=RoutingPolicy[_member(options.routing)],
            prefix_index_blocks=options.prefix_index_blocks,
            profiles=tuple(row for path in options.profile for row in read_profile(path)),
            profile_names=tuple(options.profile_name),
            stealing_min_batch_gap=options.decode_work_stealing_min_batch_gap,
        ),
    )


def _pair(text: str) -> tuple[str, str]:
    model, _, name = text.rpartition("=")
    if not model or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=NAME")
    return model, name


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _gap(text: str) -> int:
    value = int(text)
    if value < 0 or value == 1:
        raise argparse.ArgumentTypeError(f"{value} is neither 0 nor at least 2")
    return value


def _name(policy: PlacementPolicy | RoutingPolicy) -> str:
    return policy.name.lower().replace("_", "-")


def _member(name: str) -> str:
    return name.upper().replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
