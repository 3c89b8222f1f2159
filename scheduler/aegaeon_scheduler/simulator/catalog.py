"""Devices and models that ship with the simulator."""

from __future__ import annotations

from collections.abc import Sequence as Items
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


#: Nine tenths of the memory are for weights and KV. The link is the H800 testbed's 32 GB/s, what
#: large copies reach over PCIe 5.0 on the others of that generation, and four fifths of PCIe 4.0.
H800 = Device("H800", 72_000_000_000, 32e9, 3.35e12)
DEVICES = {
    device.name: device
    for device in (
        Device("A10", 21_600_000_000, 25e9, 0.6e12),
        Device("A100", 72_000_000_000, 25e9, 2.0e12),
        Device("H20", 86_400_000_000, 55e9, 4.0e12),
        Device("H100", 72_000_000_000, 55e9, 3.35e12),
        H800,
    )
}
#: The published testbed serves these, in turn.
TESTBED_MODELS = ("Llama-2-13B", "Yi-1.5-9B", "Qwen2.5-7B")


def read_shapes(
    device: Device,
    names: Items[str] = TESTBED_MODELS,
    data: Path = DATA,
) -> list[ModelShape]:
    """The named models, with their latency profiles on a device.

    ``data`` is a folder with ``models.csv`` and ``latency_profiles.csv``. Raises `InputError` for
    malformed files, and for a model that is unknown, larger than the device or not measured on it.
    """
    shapes = data / "models.csv"
    curves = read_profiles(data / "latency_profiles.csv", device.name)
    found: dict[str, ModelShape] = {}
    known = []
    for line, (name, profile, packed, kv_token) in read_rows(shapes, SHAPES_HEADER):
        packed_bytes = parse_count(shapes, line, "packed_bytes", packed)
        kv_bytes = parse_count(shapes, line, "kv_token_bytes", kv_token)
        known.append(name)
        if profile not in curves:
            continue
        prefill, decode = curves[profile]
        context_ns = kv_bytes / device.memory_bytes_per_s * 1e9
        latency = LatencyProfile(prefill, decode, context_ns)
        found[name] = ModelShape(name, packed_bytes, kv_bytes, latency)
    return [_chosen(name, found, known, device) for name in names]


def _chosen(
    name: str, found: dict[str, ModelShape], known: list[str], device: Device
) -> ModelShape:
    if name not in known:
        raise InputError.unknown("model", name, known)
    shape = found.get(name)
    if shape is None:
        raise InputError(
            f"model {name!r} has no latency profile on {device.name}; models with one: "
            + ", ".join(found)
        )
    if shape.packed_bytes >= device.pool_bytes:
        raise InputError(
            f"model {name!r} has {shape.packed_bytes / 1e9:.1f} GB of weights, but {device.name} "
            f"has room for {device.pool_bytes / 1e9:.1f} GB of weights and KV"
        )
    return shape
