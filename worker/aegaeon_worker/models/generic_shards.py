"""One rank's part of a ``transformers`` module, by the family's own plan (``tp_plan``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from aegaeon_worker.models.errors import ModelUnsupportedError
from aegaeon_worker.models.probe import AttentionFacts
from aegaeon_worker.models.shares import FIRST_ONLY, Extent, Share, divided, kv_pieces
from aegaeon_worker.parallel.collectives import Collectives

_KV_PROJECTIONS = frozenset({"k_proj", "v_proj"})
_HEADS = _KV_PROJECTIONS | {"q_proj"}


@dataclass
class ModuleShards:
    """How a module's tensors are shared, and where its ranks compute together."""

    path: Path
    size: int
    shares: dict[str, Share] = field(default_factory=dict)
    """By name of the tensor; the others are on every rank."""
    sums: list[str] = field(default_factory=list)
    """Modules whose outputs are parts of a sum."""
    joins: list[str] = field(default_factory=list)
    """Modules whose outputs are columns of a whole that every rank needs."""
    slices: list[str] = field(default_factory=list)
    """Modules that take their rank's columns of an input that every rank has."""
    embeddings: list[str] = field(default_factory=list)
    """Embeddings of which a rank has some rows."""
    head: str = ""
    """The module whose outputs are a rank's columns of the logits."""
    kv_pieces: int = 1
    """Different pieces of a token's KV over all ranks."""

    def apply(self, module: PreTrainedModel) -> None:
        """Give ``module``, which has no storage, the shapes of one rank."""
        for name, share in self.shares.items():
            parent, _, leaf = name.rpartition(".")
            owner = module.get_submodule(parent)
            whole = owner._parameters[leaf]
            assert whole is not None
            part = torch.empty(share.shape(whole.shape), dtype=whole.dtype, device="meta")
            owner._parameters[leaf] = nn.Parameter(part, requires_grad=False)
            if isinstance(owner, nn.Linear) and leaf == "weight":
                owner.out_features, owner.in_features = part.shape
            elif isinstance(owner, nn.Embedding):
                owner.num_embeddings, owner.padding_idx = part.shape[0], None

    def hook(self, module: PreTrainedModel, collectives: Collectives, vocab_size: int) -> None:
        """Let the ranks meet where their parts do."""
        rank, size = collectives.ranks.rank, self.size
        for name in self.slices:
            module.get_submodule(name).register_forward_pre_hook(
                lambda _, given: (given[0].chunk(size, -1)[rank].contiguous(), *given[1:])
            )
        for name in self.sums:
            module.get_submodule(name).register_forward_hook(
                lambda _, __, output: collectives.sum(output.contiguous())
            )
        for name in self.joins:
            module.get_submodule(name).register_forward_hook(
                lambda _, __, output: collectives.join(output)
            )
        for name in self.embeddings:
            _hook_embedding(module.get_submodule(name), collectives)
        if self.head:
            module.get_submodule(self.head).register_forward_hook(
                lambda _, __, output: collectives.join_at_first(output)[..., :vocab_size]
            )


def plan_shards(
    path: Path, module: PreTrainedModel, facts: AttentionFacts, size: int
) -> ModuleShards:
    """How the family shares ``module`` among ``size`` ranks.

    ``ModelUnsupportedError`` if it has no plan for that, or if something does not divide.
    """
    shards = ModuleShards(path, size)
    if size == 1:
        return shards
    plan: Mapping[str, str] = module.tp_plan
    if not plan:
        raise ModelUnsupportedError(
            path,
            f"{type(module).__name__} has no tensor-parallel plan, so that tensor_parallel_size "
            f"{size} is not possible for it; 1 is",
        )
    for pattern, style in plan.items():
        for name in _matching(pattern, module):
            if isinstance(found := _find(module, name), nn.Module):
                _share_module(shards, module, facts, name, found, style)
            else:
                _share_parameter(shards, name, found, style)
    for tied, source in module.all_tied_weights_keys.items():
        if shards.shares.get(tied) != shards.shares.get(source):
            raise ModelUnsupportedError(path, f"{tied} and {source} are tied, but shared unequally")
    return shards


def _matching(pattern: str, module: nn.Module) -> Iterator[str]:
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    names = [name for name, _ in module.named_modules()] + [
        name for name, _ in module.named_parameters()
    ]
    return (name for name in names if expression.fullmatch(name))


def _find(module: nn.Module, name: str) -> nn.Module | nn.Parameter:
    parent, _, leaf = name.rpartition(".")
    found = getattr(module.get_submodule(parent), leaf)
    assert isinstance(found, nn.Module | nn.Parameter)
    return found


def _share_module(
    shards: ModuleShards,
    module: PreTrainedModel,
    facts: AttentionFacts,
    name: str,
    found: nn.Module,
    style: str,
) -> None:
    rows, columns = _extents(found)
    head = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    match style:
        case "colwise":
            _share_rows(shards, name, found, _rows(shards, module, facts, name, rows))
        case "colwise_gather_output" if found is head:
            _share_rows(shards, name, found, Share((Extent(rows, shards.size),)))
            shards.head = name
        case "colwise_gather_output":
            _share_rows(shards, name, found, divided(shards.path, name, rows, shards.size))
            shards.joins.append(name)
        case "rowwise" | "rowwise_split_input":
            share = divided(shards.path, name, columns, shards.size, dim=1)
            shards.shares[f"{name}.weight"] = share
            if getattr(found, "bias", None) is not None:
                # Added once to the sum, not by every rank.
                shards.shares[f"{name}.bias"] = FIRST_ONLY
            shards.sums.append(name)
            if style == "rowwise_split_input":
                shards.slices.append(name)
        case "embedding_rowwise":
            shards.shares[f"{name}.weight"] = Share((Extent(rows, shards.size),))
            shards.embeddings.append(name)
        case "moe_tp_experts":
            shards.sums.append(name)
        case "replicated_with_grad_allreduce":
            pass
        case _:
            raise _unknown(shards, name, style)


def _share_parameter(shards: ModuleShards, name: str, found: nn.Parameter, style: str) -> None:
    """Parameters of experts: [experts, rows, columns]."""
    path, size = shards.path, shards.size
    last = found.dim() - 1
    if style == "packed_colwise":
        half = divided(path, name, found.shape[last - 1] // 2, size)
        shards.shares[name] = Share(half.extents * 2, last - 1)
    elif style == "colwise":
        shards.shares[name] = divided(path, name, found.shape[last - 1], size, last - 1)
    elif style == "rowwise":
        shards.shares[name] = divided(path, name, found.shape[last], size, last)
    else:
        raise _unknown(shards, name, style)


def _rows(
    shards: ModuleShards, module: PreTrainedModel, facts: AttentionFacts, name: str, rows: int
) -> Share:
    """Rows of a matrix; those of an attention layer are divided by heads."""
    leaf = name.rpartition(".")[2]
    if leaf not in _HEADS:
        return divided(shards.path, name, rows, shards.size)
    heads = module.config.get_text_config().num_attention_heads
    pieces = kv_pieces(shards.path, heads, facts.num_kv_heads, shards.size)
    if leaf not in _KV_PROJECTIONS:
        return Share((Extent(rows, shards.size),))
    shards.kv_pieces = pieces
    return Share((Extent(rows, pieces),))


def _share_rows(shards: ModuleShards, name: str, found: nn.Module, share: Share) -> None:
    shards.shares[f"{name}.weight"] = share
    if getattr(found, "bias", None) is not None:
        shards.shares[f"{name}.bias"] = share


def _extents(found: nn.Module) -> tuple[int, int]:
    weight = getattr(found, "weight", None)
    return tuple(weight.shape) if weight is not None and weight.dim() == 2 else (0, 0)


def _hook_embedding(owner: nn.Module, collectives: Collectives) -> None:
    """A rank looks up the rows that it has; the others are zeros in its part of the sum."""
    elsewhere: list[torch.Tensor] = []

    def before(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        assert isinstance(module, nn.Embedding)
        rows = module.weight.shape[0]
        local = given[0] - collectives.ranks.rank * rows
        elsewhere.append((local < 0) | (local >= rows))
        return (local.masked_fill(elsewhere[0], 0),)

    def after(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return collectives.sum(output.masked_fill(elsewhere.pop().unsqueeze(-1), 0))

    owner.register_forward_pre_hook(before)
    owner.register_forward_hook(after)


def _unknown(shards: ModuleShards, name: str, style: str) -> ModelUnsupportedError:
    return ModelUnsupportedError(
        shards.path,
        f"its family shares {name} as {style!r}, which this worker does not know; "
        "tensor_parallel_size must be 1 for it",
    )
