"""The nodes of an instance, from a YAML file and the command line, or from what is found here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon.client.policies import Policies
from aegaeon.config.cluster import cluster_config
from aegaeon.config.load import load_config
from aegaeon.config.schema import ServerSection
from aegaeon.errors import ConfigError
from aegaeon.machine import gpu_count
from aegaeon.model_registry import ModelRegistry
from aegaeon.model_spec import ModelSpec
from aegaeon.node_config import NodeConfig


@dataclass(frozen=True)
class NodeOptions:
    """What the command line says about a node; None and 0 are open."""

    workers: int | None
    prefill: int
    decode: int
    device_memory_bytes: int | None
    model_cache_bytes: int | None
    cpu_num_slabs: int | None
    cpu_slab_bytes: int | None
    shm_dir: Path


def choose_nodes(
    config: Path | None, models: Sequence[str], given: NodeOptions
) -> tuple[list[NodeConfig], Policies]:
    """Nodes with the models that they start with, and the cluster's policies.

    Options replace what the file says; models that are named replace those it starts with. Raises
    ConfigError.
    """
    registry = ModelRegistry([])
    if config is None:
        server = ServerSection()
        nodes = [NodeConfig("node_0", 0, 0, max(1, gpu_count()))]
    else:
        nodes, server = cluster_config(config)
        registry = ModelRegistry.from_config(load_config(config), config.absolute().parent)
    nodes = [_with_options(node, given) for node in nodes]
    if models:
        specs = tuple(parse_model(text, registry) for text in models)
        nodes = [replace(node, cached_models=specs) for node in nodes]
    for spec in {spec for node in nodes for spec in node.cached_models}:
        spec.path()  # before daemons are started for a model that is not there
    gap = server.decode_work_stealing_min_batch_gap if server.decode_work_stealing else 0
    policies = Policies(
        server.model_placement_policy, server.request_routing_policy, server.scheduling_policy, gap
    )
    return nodes, policies


def parse_model(text: str, registry: ModelRegistry) -> ModelSpec:
    """``NAME=FOLDER``, a folder, or a name. Raises ConfigError."""
    known = registry.get_by_name(text)
    if known is not None:
        return known
    name, equals, folder = text.partition("=")
    if equals:
        if not name or not folder:
            raise ConfigError(f"model {text!r}: expected NAME=FOLDER")
        return ModelSpec(name, folder)
    path = Path(text).expanduser()
    if path.is_dir():
        return ModelSpec(path.absolute().name, str(path))
    return ModelSpec(text)


def _with_options(node: NodeConfig, given: NodeOptions) -> NodeConfig:
    if given.workers and (given.prefill or given.decode):
        raise ConfigError("--workers excludes --prefill-workers and --decode-workers")
    if given.workers or given.prefill or given.decode:
        node = replace(
            node,
            num_engines=given.workers or 0,
            num_prefill_engines=given.prefill,
            num_decode_engines=given.decode,
        )
    return replace(
        node,
        device_memory_bytes=given.device_memory_bytes or node.device_memory_bytes,
        model_cache_size=given.model_cache_bytes or node.model_cache_size,
        cpu_num_slabs=given.cpu_num_slabs or node.cpu_num_slabs,
        cpu_slab_size_bytes=given.cpu_slab_bytes or node.cpu_slab_size_bytes,
        shm_dir=str(given.shm_dir),
    )
