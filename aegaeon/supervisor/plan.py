"""What an instance consists of, decided before anything is started."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path

from aegaeon.client.policies import Policies
from aegaeon.errors import ConfigError
from aegaeon.node_config import NodeConfig
from aegaeon.rpc.address import check_reach


@dataclass(frozen=True)
class GatewayPlan:
    """The HTTP gateway. ``port`` 0 takes any free one."""

    host: str = "127.0.0.1"
    port: int = 8000
    #: See `SecuritySettings`.
    keys_file: Path | None = None
    https_cert: Path | None = None
    https_key: Path | None = None
    https_client_ca: Path | None = None

    @property
    def scheme(self) -> str:
        """Of its URL."""
        return "http" if self.https_cert is None else "https"

    def flags(self, insecure_bind: bool) -> tuple[str, ...]:
        """Of ``aegaeon-gateway``."""
        files = {
            "--keys-file": self.keys_file,
            "--https-cert": self.https_cert,
            "--https-key": self.https_key,
            "--https-client-ca": self.https_client_ca,
        }
        given = [word for flag, path in files.items() if path for word in (flag, str(path))]
        insecure = ("--insecure-bind",) if insecure_bind else ()
        return ("--host", self.host, "--port", str(self.port), *given, *insecure)

    def check(self, insecure_bind: bool) -> None:
        """Raise ConfigError for what would make it fail, before models are loaded for it."""
        if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
            raise ConfigError(
                "the gateway needs packages that are not installed: "
                "pip install 'aegaeon-grpc[gateway]', or start without it: --no-gateway"
            )
        host = f"[{self.host}]" if ":" in self.host else self.host
        closed = self.keys_file is not None or self.https_client_ca is not None
        check_reach(
            f"{host}:{self.port}",
            insecure_bind,
            encrypted=self.https_cert is not None,
            closed=closed,
        )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            socket.create_server((self.host, self.port), family=family).close()
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot listen on {self.host}:{self.port}: {error.strerror}; choose "
                "another --port (0: any free one)"
            ) from error


@dataclass(frozen=True)
class InstancePlan:
    """Everything that `Supervisor` starts."""

    instance: str
    nodes: tuple[NodeConfig, ...]
    policies: Policies
    #: None: no gateway.
    gateway: GatewayPlan | None
    #: The scheduler's; None is a socket that only this user can reach.
    listen: str | None
    #: Gateway and scheduler may be reachable from other machines.
    insecure_bind: bool
    #: Of the scheduler's metrics, on loopback; those of workers follow. None: no metrics.
    metrics_port: int | None
    #: Where logs stay; None: they go with the instance.
    log_dir: Path | None
    #: To get ready, in seconds.
    timeout_s: float

    def check(self) -> None:
        """Raise ConfigError for addresses that cannot be served."""
        if self.gateway is not None:
            self.gateway.check(self.insecure_bind)
        if self.listen is not None and not self.listen.startswith("unix:"):
            check_reach(self.listen, self.insecure_bind, encrypted=False, closed=False)
