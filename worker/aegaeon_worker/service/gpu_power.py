"""What a GPU draws, through NVML where its Python bindings are installed."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


class GpuPower:
    """One GPU's sensor."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, uuid: str) -> GpuPower | None:
        """The sensor of the GPU of that UUID; None where NVML or its bindings are missing."""
        try:
            import pynvml
        except ImportError:
            logger.info("no power metrics: nvidia-ml-py is not installed")
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError as error:
            logger.warning("no power metrics: %s", error)
            return None

    def watts(self) -> float:
        """Now; NaN when the sensor does not answer."""
        try:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000
        except self._nvml.NVMLError:
            return float("nan")

    def close(self) -> None:
        """Give NVML back."""
        self._nvml.nvmlShutdown()
