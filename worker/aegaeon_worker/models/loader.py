"""Opens a checkpoint folder: checks it, plans its layout, and says how to fill it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from aegaeon_worker.models.build import build_module, read_config
from aegaeon_worker.models.checkpoint import Checkpoint
from aegaeon_worker.models.context_length import context_length
from aegaeon_worker.models.generic import GenericModel
from aegaeon_worker.models.generic_shards import plan_shards
from aegaeon_worker.models.interface import CheckpointReader, ServedModel
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.packing import LinearPacking
from aegaeon_worker.models.native.plan import DecoderPlan, plan_decoder
from aegaeon_worker.models.native.shards import shard_plan
from aegaeon_worker.models.native.weights import FusedSlices
from aegaeon_worker.models.parameters import place_parameters
from aegaeon_worker.models.probe import AttentionFacts, probe_attention
from aegaeon_worker.models.shares import WHOLE, Share
from aegaeon_worker.models.sources import WeightSources
from aegaeon_worker.parallel.collectives import Alone, Collectives
from aegaeon_worker.parallel.ranks import Ranks
from aegaeon_worker.weights.layout import WeightLayout

#: Part of every packed file's fingerprint: raise it when the meaning of a packed layout changes.
LAYOUT_VERSION = 2
#: How models are told apart. It must last: while it stays, workers of different releases agree that
#: a model is the same, and hand its KV to each other.
_IDENTITY = "files-1"


class TransformersLoader:
    """The ``ModelLoader`` for folders in the format of ``transformers``."""

    def __init__(self, device: torch.device, collectives: Collectives | None = None) -> None:
        """``device`` is where the weights will lie, which decides how they are packed.

        ``collectives`` joins this worker to the others of its engine.
        """
        self._device = device
        self._collectives = collectives or Alone()

    def open(
        self,
        path: Path,
        *,
        dtype: torch.dtype,
        max_model_len: int | None,
        trust_remote_code: bool,
    ) -> tuple[ServedModel, CheckpointReader]:
        """Open ``path``; raise ``ModelLoadError`` naming file and reason if it cannot be served."""
        config = read_config(path, trust_remote_code=trust_remote_code)
        module = build_module(path, config, dtype, trust_remote_code=trust_remote_code)
        facts = probe_attention(path, module)
        length = context_length(path, config, max_model_len)
        sources = WeightSources.resolve(module, Checkpoint.scan(path))
        plan = plan_decoder(module, facts, sources.ties, dtype)
        identity = _identity(path, sources.checkpoint, dtype)
        if plan is not None:
            return self._open_native(path, plan, sources, dtype, length, identity)
        return self._open_generic(path, facts, sources, dtype, length, identity)

    def _open_native(
        self,
        path: Path,
        whole: DecoderPlan,
        sources: WeightSources,
        dtype: torch.dtype,
        length: int,
        identity: str,
    ) -> tuple[ServedModel, CheckpointReader]:
        sharded = shard_plan(path, whole, self._collectives.ranks.size)
        packing = LinearPacking.choose(sharded.plan, self._device, dtype)
        native = NativeModel(
            sharded.plan,
            packing,
            self._collectives,
            dtype=dtype,
            max_model_len=length,
            kv_pieces=sharded.kv_pieces,
        )

        def fill(out: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
            slices = {rank: FusedSlices(sharded.plan, views) for rank, views in out.items()}
            sources.fill(self._writer(slices, sharded.shares))
            for filled in slices.values():
                packing.pack(filled.taken)

        return native, self._reader(identity, native.layout, packing.tag, fill)

    def _open_generic(
        self,
        path: Path,
        facts: AttentionFacts,
        sources: WeightSources,
        dtype: torch.dtype,
        length: int,
        identity: str,
    ) -> tuple[ServedModel, CheckpointReader]:
        module = sources.module
        shards = plan_shards(path, module, facts, self._collectives.ranks.size)
        layout_of = replace(facts, num_kv_heads=facts.num_kv_heads // shards.kv_pieces)
        shards.apply(module)
        layout = place_parameters(path, module, dtype, sources.ties, facts.shared_inputs)
        model = GenericModel(
            module,
            layout,
            sources.ties,
            layout_of,
            shards,
            self._collectives,
            dtype=dtype,
            max_model_len=length,
        )

        def fill(out: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
            sources.fill(self._writer(out, shards.shares))

        return model, self._reader(identity, layout, lambda _: b"", fill)

    def _writer(
        self, out: Mapping[int, Mapping[str, torch.Tensor]], shares: Mapping[str, Share]
    ) -> Callable[[str, torch.Tensor], None]:
        size = self._collectives.ranks.size

        def write(name: str, tensor: torch.Tensor) -> None:
            for rank, views in out.items():
                shares.get(name, WHOLE).write(views[name], tensor, Ranks(rank, size))

        return write

    def _reader(
        self,
        identity: str,
        layout: WeightLayout,
        tag: Callable[[str], bytes],
        fill: Callable[[Mapping[int, Mapping[str, torch.Tensor]]], None],
    ) -> CheckpointReader:
        size = self._collectives.ranks.size

        def packed(rank: int) -> str:
            return _packed_fingerprint(identity, layout, tag, Ranks(rank, size))

        return CheckpointReader(identity, packed, fill)


def _identity(path: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> str:
    """A digest of the config and the weight files' identities, and of nothing that another release
    may have otherwise."""
    digest = hashlib.sha256(f"{checkpoint.digest}\0{dtype}\0".encode())
    digest.update((path / "config.json").read_bytes())
    return f"{_IDENTITY}:{digest.hexdigest()}"


def _packed_fingerprint(
    identity: str, layout: WeightLayout, tag: Callable[[str], bytes], ranks: Ranks
) -> str:
    """Also of the layout with its dtypes; ``tag`` says how a tensor of it is packed."""
    version = f"{LAYOUT_VERSION}\0{identity}\0{ranks.rank}\0{ranks.size}"
    digest = hashlib.sha256(version.encode())
    for slot in layout.slots():
        spec = slot.spec
        digest.update(f"\0{slot.offset}\0{spec.name}\0{spec.dtype}\0{spec.shape}\0".encode())
        digest.update(tag(spec.name))
    return digest.hexdigest()
