"""The command ``aegaeon-scheduler``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from aegaeon.rpc.daemon import StopSignal, announce_ready, run_daemon
from aegaeon.rpc.notify import keep_watchdog, notify
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.values import PlacementPolicy, RoutingPolicy
from aegaeon_scheduler.service.server import SchedulerServer

_MS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit status."""
    options = _parser().parse_args(arguments)
    return run_daemon(
        lambda: serve(_config(options)), name="aegaeon-scheduler", lifeline_fd=options.lifeline_fd
    )


async def serve(config: DaemonConfig) -> None:
    """Run one scheduler until this process is told to stop."""
    stop = StopSignal()
    server = SchedulerServer(config)
    address = await server.start()
    announce_ready(address, config.ready_fd)
    watchdog = asyncio.get_running_loop().create_task(keep_watchdog())
    await stop.wait()
    notify("STOPPING=1")
    await server.stop()
    watchdog.cancel()


def _parser() -> argparse.ArgumentParser:
    daemon, core = DaemonConfig(), CoreConfig()
    parser = argparse.ArgumentParser(
        prog="aegaeon-scheduler",
        description="Plans the turns of every engine and serves the clients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", default=daemon.listen, help="host:port (port 0: any free one) or unix:path")
    add("--insecure-bind", action="store_true", help="allow a TCP address beyond loopback")
    add(
        "--lease-ttl-ms",
        type=_positive,
        default=daemon.lease_ttl_ns // _MS,
        help="a worker is lost this long after its last sign of life",
    )
    add(
        "--shutdown-grace-s",
        type=float,
        default=daemon.shutdown_grace_s,
        help="time for open calls to end",
    )
    add(
        "--max-requests",
        type=_positive,
        default=core.max_requests,
        help="unfinished requests at most",
    )
    add(
        "--max-requests-per-model",
        type=_positive,
        default=core.max_requests_per_model,
        help="unfinished requests of one model at most",
    )
    add(
        "--max-tokens",
        type=_positive,
        default=core.max_tokens,
        help="prompt and permitted new tokens of unfinished requests at most",
    )
    add(
        "--max-tokens-per-model",
        type=_positive,
        default=core.max_tokens_per_model,
        help="the same for one model",
    )
    add(
        "--reader-backlog-tokens",
        type=_positive,
        default=core.reader_backlog_tokens,
        help="unread tokens at which a request pauses",
    )
    add(
        "--recovery-timeout-ms",
        type=_positive,
        default=core.recovery_timeout_ns // _MS,
        help="how long a request waits for a replica after a loss",
    )
    add(
        "--tpot-slo-ms",
        type=_positive,
        default=core.tpot_slo_ns // _MS,
        help="target time per output token",
    )
    add(
        "--max-quota-ms",
        type=_positive,
        default=core.max_quota_ns // _MS,
        help="longest turn while another model waits",
    )
    add(
        "--placement",
        choices=_names(PlacementPolicy),
        default=_name(core.placement),
        help="chooses nodes for replicas",
    )
    add(
        "--routing",
        choices=_names(RoutingPolicy),
        default=_name(core.routing),
        help="chooses nodes for requests",
    )
    add("--lifeline-fd", type=int, help="stop when the other end of this pipe is closed")
    add("--ready-fd", type=int, help="write a JSON line with the address here once serving")
    return parser


def _config(options: argparse.Namespace) -> DaemonConfig:
    return DaemonConfig(
        listen=options.listen,
        insecure_bind=options.insecure_bind,
        lease_ttl_ns=options.lease_ttl_ms * _MS,
        shutdown_grace_s=options.shutdown_grace_s,
        ready_fd=options.ready_fd,
        core=CoreConfig(
            max_requests=options.max_requests,
            max_requests_per_model=options.max_requests_per_model,
            max_tokens=options.max_tokens,
            max_tokens_per_model=options.max_tokens_per_model,
            reader_backlog_tokens=options.reader_backlog_tokens,
            recovery_timeout_ns=options.recovery_timeout_ms * _MS,
            tpot_slo_ns=options.tpot_slo_ms * _MS,
            max_quota_ns=options.max_quota_ms * _MS,
            placement=PlacementPolicy[_member(options.placement)],
            routing=RoutingPolicy[_member(options.routing)],
        ),
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _names(policies: type[PlacementPolicy] | type[RoutingPolicy]) -> list[str]:
    return [_name(policy) for policy in policies]


def _name(policy: PlacementPolicy | RoutingPolicy) -> str:
    return policy.name.lower().replace("_", "-")


def _member(name: str) -> str:
    return name.upper().replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
