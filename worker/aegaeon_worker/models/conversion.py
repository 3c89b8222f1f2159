"""How the tensors of a checkpoint become those of the module, by the rules of ``transformers``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

#: Buffers that old checkpoints stored and that are computed today.
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|(^|\.)position_ids$")


@dataclass
class Assembly:
    """Tensors of the module that are made together from tensors of the checkpoint."""

    target: str
    """The (first) tensor made."""
    converter: WeightConverter | None
    """How; None for a plain copy of the only source."""
    sources: list[tuple[str, str]] = field(default_factory=list)
    """(pattern of the converter, name in the checkpoint), in the converter's order."""

    def make(
        self, module: PreTrainedModel, read: Callable[[str], torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """The tensors made, by name."""
        if self.converter is None:
            return {self.target: read(self.sources[0][1])}
        converter = deepcopy(self.converter)
        for pattern, name in self.sources:
            converter.add_tensor(self.target, name, pattern, partial(read, name))  # type: ignore[arg-type]
        made = converter.convert(self.target, model=module, config=module.config)
        return {
            name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()
        }


def plan_assemblies(
    module: PreTrainedModel, stored: Iterable[str]
) -> tuple[list[Assembly], list[str]]:
    """How to make the module's tensors from those ``stored``, and which of these have no use."""
    rules = get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    wanted = module.state_dict()
    assemblies: dict[str, Assembly] = {}
    unused: list[str] = []
    for name in sorted(stored, key=dot_natural_key):
        prefix = module.base_model_prefix
        target, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = name, None
        if target not in wanted:
            if not _is_harmless(module, name, target):
                unused.append(name)
            continue
        converter = None if pattern is None else by_pattern[pattern]
        assembly = assemblies.setdefault(target, Assembly(target, converter))
        assembly.sources.append((name if pattern is None else pattern, name))
    return list(assemblies.values()), unused


def _is_harmless(module: PreTrainedModel, name: str, target: str) -> bool:
    patterns = module._keys_to_ignore_on_load_unexpected or ()
    return bool(_COMPUTED.search(name)) or any(re.search(pattern, target) for pattern in patterns)
