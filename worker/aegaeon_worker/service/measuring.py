"""A worker's metrics, served."""

from __future__ import annotations

from typing import Self

import torch

from aegaeon.metrics.server import MetricsServer
from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.service.gpu_power import GpuPower
from aegaeon_worker.service.metrics import WorkerMetrics


class Measuring:
    """Metrics, their server, and the sensor that they read."""

    def __init__(
        self, metrics: WorkerMetrics, server: MetricsServer, power: GpuPower | None
    ) -> None:
        self.metrics, self._server, self._power = metrics, server, power

    @classmethod
    async def start(cls, config: WorkerConfig, parts: WorkerParts) -> Self:
        """Serve at ``config.metrics_listen``. Raises ConfigError."""
        assert config.metrics_listen is not None
        device = parts.device.torch_device
        power = None
        if device.type == "cuda":
            power = GpuPower.open(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        name = f"{config.node_id}/{config.worker_index}"
        metrics = WorkerMetrics(lambda: parts.status, name, parts.device.name, power)
        server = MetricsServer(metrics.registry, metrics.refresh)
        await server.start(
            config.metrics_listen, insecure_bind=config.insecure_bind, settings=config.security
        )
        return cls(metrics, server, power)

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()
        if self._power is not None:
            self._power.close()
