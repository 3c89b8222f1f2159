"""Opening checkpoints and packing them into the node's weight cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import aegaeon.model_spec
from aegaeon.config.model_config import get_model_config
from aegaeon.security.model_rules import ModelRules
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import CheckpointReader, ModelLoader, ServedModel
from aegaeon_worker.parallel.ranks import ALONE, Ranks
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.weight_file import WeightFile

#: Told about packing: bytes so far, bytes in all.
Progress = Callable[[int, int], None]
_Views = Mapping[str, torch.Tensor]


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
        ranks: Ranks = ALONE,
    ) -> None:
        self._loader = loader
        self._rules = rules
        self._cache = cache
        self._default_dtype = default_dtype
        self._ranks = ranks
        self._lock = threading.Lock()
        self._inspected: _Opened | None = None

    def inspect(self, spec: ModelSpec) -> ModelFacts:
        """What the files say; reads headers only. ``ModelLoadError`` when it cannot be served,
        ``PermissionDeniedError`` when it must not be read."""
        self._check(spec)
        opened = self._open(spec)
        with self._lock:
            self._inspected = opened  # whoever asks is about to load it
        return _facts(spec, opened.served, opened.reader)

    def prepare(self, spec: ModelSpec, progress: Progress) -> PreparedModel:
        """Pin the packed model, packing it if need be; rank 0 packs for all ranks.

        ``ModelLoadError`` when it cannot be served, ``ResourceExhaustedError`` without room.
        """
        self._check(spec)
        opened = self._take_inspected(spec) or self._open(spec)
        served, reader = opened.served, opened.reader
        job = _Packing(self._cache, spec.name, served, reader, self._ranks, progress)
        facts = _facts(spec, served, reader)
        weights = job.acquire()
        if not job.filled:
            job.pack_others({})
        return PreparedModel(facts, served, weights, job.acquire, reused=not job.filled)

    def _check(self, spec: ModelSpec) -> None:
        self._rules.check(spec.name, spec.path, trust_remote_code=spec.trust_remote_code)

    def _open(self, spec: ModelSpec) -> _Opened:
        files = _files(spec.path)
        served, reader = self._loader.open(
            spec.path,
            dtype=spec.dtype or self._default_dtype,
            max_model_len=spec.max_model_len,
            trust_remote_code=spec.trust_remote_code,
        )
        return _Opened(spec, files, served, reader)

    def _take_inspected(self, spec: ModelSpec) -> _Opened | None:
        """What `inspect` has opened last, if it was this and no file has changed since."""
        with self._lock:
            opened, self._inspected = self._inspected, None
        if opened is None or opened.spec != spec or opened.files != _files(spec.path):
            return None
        return opened


@dataclass(frozen=True)
class _Opened:
    """A checkpoint that has been opened, and the state that its files had then."""

    spec: ModelSpec
    files: frozenset[tuple[str, int, int]]
    served: ServedModel
    reader: CheckpointReader


def _files(path: Path) -> frozenset[tuple[str, int, int]]:
    """Names, sizes and times of a folder's files; none if it cannot be read."""
    try:
        found = [(entry.name, entry.stat()) for entry in os.scandir(path)]
    except OSError:
        return frozenset()
    return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


class _Packing:
    """Packs the files of a model's ranks, those that are missing, from one reading."""

    def __init__(
        self,
        cache: WeightCache,
        name: str,
        served: ServedModel,
        reader: CheckpointReader,
        ranks: Ranks,
        progress: Progress,
    ) -> None:
        self._cache = cache
        self._name = name
        self._layout = served.layout
        self._reader = reader
        self._ranks = ranks
        self._progress = progress
        self.filled = False

    def acquire(self) -> WeightFile:
        """This rank's file."""
        fingerprint = self._reader.packed_fingerprint(self._ranks.rank)
        return self._cache.acquire(self._name, fingerprint, self._layout, self._fill)

    def pack_others(self, views: Mapping[int, _Views], first: int = 1) -> None:
        """Make room for the files of ranks from ``first`` on, and fill them with ``views``."""
        if self._ranks.rank or first >= self._ranks.size:
            if views:
                self._fill_all(views)
            return
        missing = False

        def fill(own: _Views) -> None:
            nonlocal missing
            missing = True
            self.pack_others({**views, first: own}, first + 1)

        fingerprint = self._reader.packed_fingerprint(first)
        self._cache.pack(self._name, fingerprint, self._layout, fill)
        if not missing:
            self.pack_others(views, first + 1)

    def _fill(self, own: _Views) -> None:
        self.filled = True
        self.pack_others({self._ranks.rank: own})

    def _fill_all(self, views: Mapping[int, _Views]) -> None:
        total = sum(slot.spec.nbytes for slot in self._layout.slots()) * len(views)
        count = _Count(total, self._progress)
        self._reader.fill_all({rank: _ProgressViews(own, count) for rank, own in views.items()})


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


class _Count:
    """Bytes that are about to be written, told once per percent: a message per tensor would be
    thousands for a large model."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total
        self._progress = progress
        self._seen = 0
        self._told = 0

    def add(self, nbytes: int) -> None:
        if self._seen >= self._told + self._total // 100:
            self._told = self._seen
            self._progress(self._seen, self._total)
        self._seen += nbytes


class _ProgressViews(Mapping[str, torch.Tensor]):
    """The views to fill; whoever asks for one is about to write it, which counts as progress."""

    def __init__(self, views: _Views, count: _Count) -> None:
        self._views = views
        self._count = count

    def __getitem__(self, name: str) -> torch.Tensor:
        view = self._views[name]
        self._count.add(view.nbytes)
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
