"""What is expected of a device and a model before anything has been measured."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.values import DeviceFacts, ModelFacts


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """A device's speed limits: bytes and operations per second, and the time lost per step."""

    memory_bytes_per_s: float
    host_link_bytes_per_s: float
    flops_per_s: float
    #: Fixed costs in ns: of a step, and of a switch.
    step_ns: float
    switch_ns: float
    #: Bytes of one weight, as such devices usually hold it.
    weight_bytes: int
    #: A pass computes while it reads its weights, so that a few tokens cost next to nothing.
    overlaps: bool


#: A few cores; and a data centre's GPU. Right within a factor of ten, which a calibration or a few
#: measurements replace.
_CPU = DeviceSpeed(1e10, 4e9, 1e11, 1e6, 2e6, 4, overlaps=False)
_GPU = DeviceSpeed(2e12, 2.5e10, 3e14, 3e6, 5e6, 2, overlaps=True)


def device_speed(device: DeviceFacts) -> DeviceSpeed:
    """The device's own calibration where it has one, and what is usual for its kind elsewhere."""
    usual = _CPU if device.kind == "cpu" else _GPU
    return DeviceSpeed(
        device.memory_bytes_per_s or usual.memory_bytes_per_s,
        device.host_link_bytes_per_s or usual.host_link_bytes_per_s,
        device.flops_per_s or usual.flops_per_s,
        usual.step_ns,
        usual.switch_ns,
        usual.weight_bytes,
        usual.overlaps,
    )


#: Fixed cost of a row of a batch, in ns: sampling and bookkeeping.
_ROW_NS = 2e4


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What decides how long a model's steps take; bytes."""

    packed_bytes: int
    kv_token_bytes: float


#: Of a model whose files nobody has read.
UNKNOWN_SIZE = ModelSize(1 << 30, 65_536)


def model_size(facts: ModelFacts) -> ModelSize:
    """The size of a model whose files have been read."""
    return ModelSize(facts.packed_bytes, facts.kv_block_bytes / max(facts.kv_block_tokens, 1))


def decode_prior(speed: DeviceSpeed, size: ModelSize) -> list[float]:
    """Coefficients of `decode_features`, in ns: all weights and the KV of the context are read."""
    compute = 0.0 if speed.overlaps else _token_ns(speed, size)
    row = _ROW_NS + compute
    context = size.kv_token_bytes / speed.memory_bytes_per_s * 1e9
    return [_fixed_ns(speed, size), row, row / 10, context]


def prefill_prior(speed: DeviceSpeed, size: ModelSize) -> list[float]:
    """Coefficients of `prefill_features`, in ns: arithmetic decides, weights are read once."""
    token = _token_ns(speed, size)
    early = token / 4 if speed.overlaps else token
    # K and V of a token have 2 * layers * width numbers; every pair of tokens costs twice that for
    # scores and again for sums, times the query heads that share one of keys, about four.
    pair = 16 * size.kv_token_bytes / speed.weight_bytes / speed.flops_per_s * 1e9
    return [_fixed_ns(speed, size), early, max(token - early, token / 100), _ROW_NS, pair]


def _fixed_ns(speed: DeviceSpeed, size: ModelSize) -> float:
    return speed.step_ns + size.packed_bytes / speed.memory_bytes_per_s * 1e9


def _token_ns(speed: DeviceSpeed, size: ModelSize) -> float:
    return 2 * size.packed_bytes / speed.weight_bytes / speed.flops_per_s * 1e9
