"""The tensors of a module that come from a checkpoint: their places, names and binding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation

from aegaeon_worker.models.errors import ModelUnsupportedError
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout


def place_parameters(
    path: Path,
    module: PreTrainedModel,
    dtype: torch.dtype,
    ties: Mapping[str, str],
    neighbours: Iterable[Sequence[str]],
) -> WeightLayout:
    """Lay out embeddings, each decoder layer, and the rest; a tied tensor has its source's slot.

    ``neighbours`` are the layers whose weights are placed one after another.
    """
    layers_name, num_layers = _decoder_layers(path, module)
    groups: dict[str, list[TensorSpec]] = {"embeddings": []}
    groups |= {f"layer.{index}": [] for index in range(num_layers)}
    groups["head"] = []
    keep = _float32_names(module, dtype)
    group = "embeddings"
    for name, tensor in _ordered(module.state_dict(), neighbours):
        if name.startswith(f"{layers_name}."):
            group = "layer." + name.removeprefix(f"{layers_name}.").split(".", 1)[0]
        elif group != "embeddings":
            group = "head"
        if name not in ties:
            kind = torch.float32 if name in keep else tensor.dtype
            groups[group].append(TensorSpec(name, kind, tuple(tensor.shape)))
    return WeightLayout.place(groups.items())


def _ordered(
    tensors: Mapping[str, torch.Tensor], neighbours: Iterable[Sequence[str]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """``tensors`` in their order, but for neighbours, which follow their first."""
    following = {f"{group[0]}.weight": group[1:] for group in neighbours}
    moved = {f"{name}.weight" for group in following.values() for name in group}
    for name, tensor in tensors.items():
        if name not in moved:
            yield name, tensor
            for other in following.get(name, ()):
                yield f"{other}.weight", tensors[f"{other}.weight"]


def bind_parameters(
    module: nn.Module, tensors: Mapping[str, torch.Tensor], ties: Mapping[str, str]
) -> None:
    """Make every parameter and stored buffer of ``module`` one of ``tensors``."""
    for name in module.state_dict():
        tensor = tensors[ties.get(name, name)]
        parent, _, leaf = name.rpartition(".")
        owner = module.get_submodule(parent)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        else:
            owner._buffers[leaf] = tensor


def move_computed_buffers(module: PreTrainedModel, device: torch.device) -> None:
    """Move the buffers that are not stored in checkpoints to where the parameters lie."""
    for name, buffer in list(module.named_non_persistent_buffers()):
        parent, _, leaf = name.rpartition(".")
        module.get_submodule(parent)._buffers[leaf] = buffer.to(device)


def _decoder_layers(path: Path, module: PreTrainedModel) -> tuple[str, int]:
    wanted = module.config.get_text_config().num_hidden_layers
    for name, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and len(child) == wanted:
            return name, wanted
    raise ModelUnsupportedError(path, f"{type(module).__name__} has no list of {wanted} layers")


def _float32_names(module: PreTrainedModel, dtype: torch.dtype) -> frozenset[str]:
    """What ``transformers`` keeps in float32, whatever the model's dtype."""
    plan = module._get_dtype_plan(dtype)
    if not plan:
        return frozenset()
    pattern, _, _ = build_glob_alternation(list(plan))
    return frozenset(name for name in module.state_dict() if pattern.search(name))
