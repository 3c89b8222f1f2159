"""Opens a checkpoint folder: checks it, plans its layout, and says how to fill it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from aegaeon_worker.models.build import build_module, read_config
from aegaeon_worker.models.checkpoint import Checkpoint
from aegaeon_worker.models.context_length import context_length
from aegaeon_worker.models.generic import GenericModel
from aegaeon_worker.models.interface import CheckpointReader, ServedModel
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.packing import LinearPacking
from aegaeon_worker.models.native.plan import plan_decoder
from aegaeon_worker.models.native.weights import FusedSlices
from aegaeon_worker.models.parameters import place_parameters
from aegaeon_worker.models.probe import probe_attention
from aegaeon_worker.models.sources import WeightSources
from aegaeon_worker.weights.layout import WeightLayout

#: Part of every fingerprint: raise it when the meaning of a packed layout changes.
LAYOUT_VERSION = 1


class TransformersLoader:
    """The ``ModelLoader`` for folders in the format of ``transformers``."""

    def __init__(self, device: torch.device) -> None:
        """``device`` is where the weights will lie, which decides how they are packed."""
        self._device = device

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
        if plan is not None:
            packing = LinearPacking.choose(plan, self._device, dtype)
            native = NativeModel(plan, packing, dtype=dtype, max_model_len=length)
            fingerprint = _fingerprint(path, sources.checkpoint, native.layout, packing.tag)

            def fill(out: Mapping[str, torch.Tensor]) -> None:
                slices = FusedSlices(plan, out)
                sources.fill(slices)
                packing.pack(slices.taken)

            return native, CheckpointReader(fingerprint, fill)
        layout = place_parameters(path, module, dtype, sources.ties, facts.shared_inputs)
        model = GenericModel(module, layout, sources.ties, facts, dtype=dtype, max_model_len=length)
        fingerprint = _fingerprint(path, sources.checkpoint, layout, lambda _: b"")
        return model, CheckpointReader(fingerprint, sources.fill)


def _fingerprint(
    path: Path, checkpoint: Checkpoint, layout: WeightLayout, tag: Callable[[str], bytes]
) -> str:
    """A digest of the config, the weight files' identities, and the layout with its dtypes.

    ``tag`` says how a tensor of the layout is packed.
    """
    digest = hashlib.sha256(f"{LAYOUT_VERSION}\0{checkpoint.digest}\0".encode())
    digest.update((path / "config.json").read_bytes())
    for slot in layout.slots():
        spec = slot.spec
        digest.update(f"\0{slot.offset}\0{spec.name}\0{spec.dtype}\0{spec.shape}\0".encode())
        digest.update(tag(spec.name))
    return digest.hexdigest()
