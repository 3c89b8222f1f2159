"""The server section as the nodes that LLMService starts."""

from __future__ import annotations

import os
from pathlib import Path

from aegaeon.config.load import load_config
from aegaeon.config.schema import ServerSection
from aegaeon.config.unsupported import refuse_unsupported
from aegaeon.model_registry import ModelRegistry
from aegaeon.node_config import NodeConfig

_GIB = 1024**3


def cluster_config(path: str | os.PathLike[str]) -> tuple[list[NodeConfig], ServerSection]:
    """``server.nnodes`` equal nodes, ``node_0`` first, and the section. Raises ConfigError."""
    file = Path(path).absolute()
    config = load_config(file)
    refuse_unsupported(config, str(file))
    server = config.server
    registry = ModelRegistry.from_config(config, file.parent)
    wanted = server.startup_models
    models = tuple(spec for spec in registry if wanted is None or spec.name in wanted)
    nodes = [
        NodeConfig(
            node_id=f"node_{index}",
            num_prefill_engines=0 if server.num_engines else server.num_prefill_engines,
            num_decode_engines=0 if server.num_engines else server.num_decode_engines,
            num_engines=server.num_engines,
            tensor_parallel_size=server.tensor_parallel_size,
            cpu_num_slabs=server.cpu_num_slabs,
            cpu_slab_size_bytes=server.cpu_slab_size_bytes,
            model_cache_size=int(server.model_cache_size_gb * _GIB) or None,
            cached_models=models,
            config_path=str(file),
        )
        for index in range(server.nnodes)
    ]
    return nodes, server
