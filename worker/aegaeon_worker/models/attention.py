"""The attention function that served models call in place of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

#: The ``attn_implementation`` of every served model. Having no mask function of this name,
#: ``transformers`` builds no masks: causality and windows are decided here.
ATTENTION_NAME = "aegaeon_paged"


class AttentionPass(Protocol):
    """One forward pass as its attention layers see it; handed to the model as ``paged_pass``."""

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        options: Mapping[str, object],
    ) -> torch.Tensor:
        """Attend with ``query`` [1, Hq, T, D] over the context and the new keys; [1, T, Hq, D].

        ``key`` and ``value`` [1, Hkv, T, D] are the new tokens'; ``options`` are the remaining
        keywords of the caller.
        """


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_pass: AttentionPass,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """The ``transformers`` attention interface, forwarded to the pass under way."""
    out = paged_pass.attend(
        module, query, key, value, scaling=scaling, softcap=softcap, sinks=s_aux, options=options
    )
    return out, None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, paged_attention)
