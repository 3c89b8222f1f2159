"""What an instance consists of, decided before anything is started."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass, replace
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
    def url(self) -> str:
        """Where clients find it."""
        scheme = "http" if self.https_cert is None else "https"
        return f"{scheme}://{self._host}:{self.port}"

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

    def checked(self, insecure_bind: bool) -> GatewayPlan:
        """With a port that is free now, which a restart then has again. Raises ConfigError for what
        would make it fail, before models are loaded for it."""
        if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
            raise ConfigError(
                "the gateway needs packages that are not installed: "
                "pip install 'aegaeon-grpc[gateway]', or start without it: --no-gateway"
            )
        closed = self.keys_file is not None or self.https_client_ca is not None
        check_reach(
            f"{self._host}:{self.port}",
            insecure_bind,
            encrypted=self.https_cert is not None,
            closed=closed,
        )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            with socket.create_server((self.host, self.port), family=family) as free:
                return replace(self, port=free.getsockname()[1])
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot listen on {self.host}:{self.port}: {error.strerror}; choose "
                "another --port (0: any free one)"
            ) from error

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True)
class InstancePlan:
    """Everything that a `RunningInstance` starts."""

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
    #: So many times a minute a daemon that dies is started again.
    restarts: int

    def checked_gateway(self) -> GatewayPlan | None:
        """The gateway with its real port. Raises ConfigError for what cannot be served."""
        if self.listen is not None and not self.listen.startswith("unix:"):
            if self.listen.endswith(":0"):
                raise ConfigError(
                    f"--scheduler-listen {self.listen}: name a port, which a restart has again"
                )
            check_reach(self.listen, self.insecure_bind, encrypted=False, closed=False)
        return None if self.gateway is None else self.gateway.checked(self.insecure_bind)
