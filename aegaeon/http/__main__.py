"""The command ``aegaeon-gateway``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from aegaeon.http.connection_limits import ConnectionLimits
from aegaeon.http.server import GatewayConfig, serve
from aegaeon.rpc.daemon import leave, run_daemon
from aegaeon.security.model_rules import add_model_options, model_rules
from aegaeon.security.options import add_security_options, security_settings


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon until SIGTERM or SIGINT."""
    options = _parser().parse_args(arguments)
    status = run_daemon(
        lambda: serve(_config(options)),
        name="aegaeon-gateway",
        lifeline_fd=options.lifeline_fd,
        lifeline_folder=options.lifeline_folder,
    )
    leave(status)


def _config(options: argparse.Namespace) -> GatewayConfig:
    return GatewayConfig(
        scheduler=options.scheduler,
        host=options.host,
        port=options.port,
        insecure_bind=options.insecure_bind,
        max_body_bytes=options.max_body_bytes,
        connections=ConnectionLimits(
            max_connections=options.max_connections,
            max_connections_per_address=options.max_connections_per_address,
            head_timeout_s=options.head_timeout_s,
            body_timeout_s=options.body_timeout_s,
            keep_alive_s=options.keep_alive_s,
            write_timeout_s=options.write_timeout_s,
        ),
        heartbeat_s=options.heartbeat_s,
        resume_window_s=options.resume_window_s,
        shutdown_grace_s=options.shutdown_grace_s,
        security=security_settings(options, options.config),
        model_rules=model_rules(options),
        ready_fd=options.ready_fd,
    )


def _parser() -> argparse.ArgumentParser:
    """Every option is a field of `GatewayConfig`, whose documentation holds."""
    own = GatewayConfig("")
    address = os.environ.get("AEGAEON_ADDRESS")
    parser = argparse.ArgumentParser(
        prog="aegaeon-gateway",
        description="Serves OpenAI's HTTP API in front of a scheduler.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--scheduler",
        default=address,
        required=not address,
        help="host:port or unix:path; AEGAEON_ADDRESS is its default",
    )
    add("--host", default=own.host, help="address to listen on")
    add("--port", type=int, default=own.port, help="port; 0: any free one")
    add("--config", type=Path, help="YAML file; its security section counts here")
    add_model_options(parser)
    add_security_options(parser, https=True)
    add("--max-body-bytes", type=_positive, default=own.max_body_bytes, help="larger ones are 413")
    _add_connection_options(parser, own.connections)
    add(
        "--heartbeat-s",
        type=_seconds,
        default=own.heartbeat_s,
        help="silence after which a stream gets a comment",
    )
    add(
        "--resume-window-s",
        type=_seconds,
        default=own.resume_window_s,
        help="time that a request waits for a lost scheduler",
    )
    add(
        "--shutdown-grace-s",
        type=_seconds,
        default=own.shutdown_grace_s,
        help="time for open requests to end",
    )
    add("--lifeline-fd", type=int, help="stop when the other end of this pipe is closed")
    add("--lifeline-folder", type=Path, help="remove this folder when that was the reason to stop")
    add("--ready-fd", type=int, help="write a JSON line with the address here once serving")
    return parser


def _add_connection_options(parser: argparse.ArgumentParser, own: ConnectionLimits) -> None:
    def add(name: str, kind: Callable[[str], float], default: float, text: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=text)

    add("--max-connections", _positive, own.max_connections, "connections at once")
    add(
        "--max-connections-per-address",
        _natural,
        own.max_connections_per_address,
        "of one address, which may be a proxy's; 0: half of --max-connections",
    )
    add("--head-timeout-s", _seconds, own.head_timeout_s, "time for a request's headers")
    add(
        "--body-timeout-s",
        _seconds,
        own.body_timeout_s,
        "time for a body, and a second more for each 16 KiB that have come",
    )
    add("--keep-alive-s", _seconds, own.keep_alive_s, "time between requests of a connection")
    add(
        "--write-timeout-s",
        _seconds,
        own.write_timeout_s,
        "time for a caller to take what waits for it",
    )


def _natural(text: str) -> int:
    return int(text) if text == "0" else _positive(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{value} is not from 0.01 to 86400")
    return value


if __name__ == "__main__":
    main()
