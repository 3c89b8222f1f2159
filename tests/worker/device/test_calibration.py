"""The calibration at a worker's start."""

from __future__ import annotations

import torch

from aegaeon_worker.device.calibration import measure_speed


def test_a_cpu_is_faster_than_nothing_and_slower_than_light() -> None:
    speed = measure_speed(torch.device("cpu"), torch.float32)
    assert 10**8 < speed.memory_bytes_per_s < 10**13
    assert 10**8 < speed.host_link_bytes_per_s < 10**13
    assert 10**8 < speed.flops_per_s < 10**15
