"""Devices and models that ship with the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.profile import LatencyProfile, read_profiles
from aegaeon_scheduler.simulator.tables import parse_count, read_rows

DATA = Path(__file__).with_name("data")
SHAPES_HEADER = ["name", "profile", "packed_bytes", "kv_token_bytes"]


@dataclass(frozen=True, slots=True)
class Device:
    """A simulated device; bytes, and bytes per second."""

    name: str
    #: Room for weights and KV.
    pool_bytes: int
    #: Host to device, and the other way at the same time.
    link_bytes_per_s: float
    memory_bytes_per_s: float
    #: Weights of the next turn's model are copied while a turn runs, if there is room.
    prefetch: bool = True


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the simulator must know of a model."""

    name: str
    packed_bytes: int
    kv_token_bytes: int
    profile: LatencyProfile


#: 80 GB of memory, nine tenths of it for weights and KV.
H800 = Device("H800", 72_000_000_000, 32e9, 3.35e12)


def read_shapes(
    device: Device,
    shapes: Path = DATA / "models.csv",
    profiles: Path = DATA / "latency_profiles.csv",
) -> list[ModelShape]:
    """Models in file order, with their latency profiles on a device."""
    curves = read_profiles(profiles, device.name)
    found = []
    for line, (name, profile, packed, kv_token) in read_rows(shapes, SHAPES_HEADER):
        if profile not in curves:
            raise InputError.at(shapes, line, f"no profile {profile!r} of {device.name}")
        packed_bytes = parse_count(shapes, line, "packed_bytes", packed)
        kv_bytes = parse_count(shapes, line, "kv_token_bytes", kv_token)
        if packed_bytes >= device.pool_bytes:
            raise InputError.at(shapes, line, f"model {name!r} is larger than the device's pool")
        prefill, decode = curves[profile]
        context_ns = kv_bytes / device.memory_bytes_per_s * 1e9
        found.append(
            ModelShape(name, packed_bytes, kv_bytes, LatencyProfile(prefill, decode, context_ns))
        )
    if not found:
        raise InputError(f"{shapes}: no models")
    return found
