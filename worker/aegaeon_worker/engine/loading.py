"""Opening checkpoints and packing them into the node's weight cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

import aegaeon.model_spec
from aegaeon.config.model_config import get_model_config
from aegaeon.security.model_rules import ModelRules
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import CheckpointReader, ModelLoader, ServedModel
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.weight_file import WeightFile

#: Told about packing: bytes so far, bytes in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PreparedModel:
    """A model whose packed file is pinned in the host cache; not on the device yet."""

    facts: ModelFacts
    served: ServedModel
    weights: WeightFile
    reopen: Callable[[], WeightFile]
    reused: bool


class ModelPreparer:
    """Reads and packs checkpoints; callable from any thread."""

    def __init__(
        self,
        loader: ModelLoader,
        cache: WeightCache,
        default_dtype: torch.dtype,
        rules: ModelRules,
    ) -> None:
        self._loader = loader
        self._rules = rules
        self._cache = cache
        self._default_dtype = default_dtype

    def inspect(self, spec: ModelSpec) -> ModelFacts:
        """What the files say; reads headers only. ``ModelLoadError`` when it cannot be served,
        ``PermissionDeniedError`` when it must not be read."""
        served, reader = self._open(spec)
        return _facts(spec, served, reader)

    def prepare(self, spec: ModelSpec, progress: Progress) -> PreparedModel:
        """Pin the packed model, packing it if need be.

        ``ModelLoadError`` when it cannot be served, ``ResourceExhaustedError`` without room.
        """
        served, reader = self._open(spec)
        total = sum(slot.spec.nbytes for slot in served.layout.slots())
        packed = False

        def fill(views: Mapping[str, torch.Tensor]) -> None:
            nonlocal packed
            packed = True
            reader.fill_all(_ProgressViews(views, total, progress))

        def acquire() -> WeightFile:
            return self._cache.acquire(spec.name, reader.fingerprint, served.layout, fill)

        facts = _facts(spec, served, reader)
        weights = acquire()
        return PreparedModel(facts, served, weights, acquire, reused=not packed)

    def _open(self, spec: ModelSpec) -> tuple[ServedModel, CheckpointReader]:
        self._rules.check(spec.name, spec.path, trust_remote_code=spec.trust_remote_code)
        return self._loader.open(
            spec.path,
            dtype=spec.dtype or self._default_dtype,
            max_model_len=spec.max_model_len,
            trust_remote_code=spec.trust_remote_code,
        )


def _facts(spec: ModelSpec, served: ServedModel, reader: CheckpointReader) -> ModelFacts:
    named = aegaeon.model_spec.ModelSpec(spec.name, str(spec.path))
    return ModelFacts(
        fingerprint=reader.fingerprint,
        packed_bytes=served.layout.nbytes,
        kv_block_bytes=served.kv_shape.block_nbytes,
        kv_block_tokens=BLOCK_TOKENS,
        vocab_size=served.vocab_size,
        max_model_len=served.max_model_len,
        eos_token_ids=get_model_config(named).eos_token_ids,
    )


class _ProgressViews(Mapping[str, torch.Tensor]):
    """The views to fill; whoever asks for one is about to write it, which counts as progress."""

    def __init__(self, views: Mapping[str, torch.Tensor], total: int, progress: Progress) -> None:
        self._views = views
        self._total = total
        self._progress = progress
        self._seen = 0
        self._told = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        view = self._views[name]
        # A message per tensor would be thousands for a large model; one per percent is enough.
        if self._seen >= self._told + self._total // 100:
            self._told = self._seen
            self._progress(self._seen, self._total)
        self._seen += view.nbytes
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
