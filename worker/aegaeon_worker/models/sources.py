"""Which stored tensors fill which slots, checked against the headers before any is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from aegaeon_worker.models.checkpoint import Checkpoint
from aegaeon_worker.models.conversion import Assembly, plan_assemblies
from aegaeon_worker.models.errors import ModelLoadError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightSources:
    """How to fill every slot of a module from a checkpoint."""

    module: PreTrainedModel
    checkpoint: Checkpoint
    assemblies: tuple[Assembly, ...]
    ties: Mapping[str, str]
    """Tied tensor → the tensor whose slot it shares."""

    @classmethod
    def resolve(cls, module: PreTrainedModel, checkpoint: Checkpoint) -> WeightSources:
        """Raise ``ModelLoadError`` for tensors that are missing or have another shape."""
        assemblies, unused = plan_assemblies(module, checkpoint.tensors)
        if unused:
            _logger.warning(
                "%s: %d stored tensors have no place in %s and are ignored: %s",
                checkpoint.path, len(unused), type(module).__name__, _shown(unused),
            )  # fmt: skip
        ties = _ties(module, checkpoint, assemblies)
        wanted = module.state_dict()  # once: it takes milliseconds for a large module
        chosen: list[Assembly] = []
        filled: set[str] = set()
        # Where a tied tensor is stored under both names, its own name comes first.
        for assembly in sorted(assemblies, key=lambda assembly: assembly.target in ties):
            made = {ties.get(name, name) for name in _check(module, wanted, checkpoint, assembly)}
            if not made <= filled:
                filled |= made
                chosen.append(assembly)
        missing = [name for name in wanted if name not in filled | ties.keys()]
        if missing:
            raise ModelLoadError(
                checkpoint.path, f"{len(missing)} tensors are in no weight file: {_shown(missing)}"
            )
        return cls(module, checkpoint, tuple(chosen), ties)

    def fill(self, write: Callable[[str, torch.Tensor], None]) -> None:
        """Call ``write`` once with every tensor of the layout and its name there."""
        with self.checkpoint.reader() as read, torch.inference_mode():
            for assembly in self.assemblies:
                for name, tensor in assembly.make(self.module, read).items():
                    write(self.ties.get(name, name), tensor)


def _ties(
    module: PreTrainedModel, checkpoint: Checkpoint, assemblies: Sequence[Assembly]
) -> dict[str, str]:
    """The ties that hold.

    As in ``transformers``, tensors that the config ties but the checkpoint stores with different
    values are not tied.
    """
    plain = {a.target: a.sources[0][1] for a in assemblies if a.converter is None}
    ties: dict[str, str] = dict(module.all_tied_weights_keys)
    for name, source in list(ties.items()):
        if name in plain and source in plain:
            with checkpoint.reader() as read:
                if torch.equal(read(plain[name]), read(plain[source])):
                    continue
            _logger.warning(
                "%s: the config ties %s to %s, but their stored values differ; both are used",
                checkpoint.path, name, source,
            )  # fmt: skip
            del ties[name]
    return ties


def _check(
    module: PreTrainedModel,
    wanted: Mapping[str, torch.Tensor],
    checkpoint: Checkpoint,
    assembly: Assembly,
) -> list[str]:
    """The names that ``assembly`` makes; raise if one does not fit those ``wanted`` by a module."""
    first = assembly.sources[0][1]
    file = checkpoint.tensors[first].file
    made = _dry_make(module, checkpoint, assembly)
    for name, tensor in made.items():
        if name not in wanted:
            raise ModelLoadError(file, f"tensor {first!r} converts to unknown {name!r}")
        if tensor.shape != wanted[name].shape:
            raise ModelLoadError(
                file,
                f"tensor {first!r} gives {name!r} shape {tuple(tensor.shape)},"
                f" the config asks for {tuple(wanted[name].shape)}",
            )
        if tensor.is_floating_point() != wanted[name].is_floating_point():
            raise ModelLoadError(
                file, f"tensor {first!r} has dtype {tensor.dtype}, {name!r} cannot be read from it"
            )
    return list(made)


def _dry_make(
    module: PreTrainedModel, checkpoint: Checkpoint, assembly: Assembly
) -> Mapping[str, torch.Tensor]:
    def read(name: str) -> torch.Tensor:
        stored = checkpoint.tensors[name]
        return torch.empty(stored.shape, dtype=stored.dtype, device="meta")

    try:
        return assembly.make(module, read)
    # The conversions of transformers raise whatever torch raises on shapes that do not fit.
    except Exception as error:
        names = _shown([name for _, name in assembly.sources])
        raise ModelLoadError(
            checkpoint.path, f"cannot make {assembly.target!r} from {names}: {error}"
        ) from error


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
