"""A dry run of a model on the meta device, to learn how it attends before it is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from aegaeon_worker.models.errors import ModelUnsupportedError

#: Keywords of the attention interface that change nothing for a causal pass without dropout.
_KNOWN_OPTIONS = frozenset(
    {
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
_PROBE_TOKENS = 3


@dataclass(frozen=True)
class AttentionFacts:
    """What the paged attention must know about a model."""

    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """Per layer, how many tokens it sees, the newest included; None for all."""
    masked: bool
    """Whether a layer caps its scores or has sinks, so that no causal kernel is used."""
    shared_inputs: tuple[tuple[str, ...], ...]
    """Names of linear layers given the same tensor one after another, such as q, k and v."""


@dataclass(frozen=True)
class _LayerCall:
    """How one layer called the attention function."""

    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    masked: bool
    is_causal: bool
    unknown: tuple[str, ...]


class _RecordingPass:
    """An ``AttentionPass`` that computes nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, _LayerCall]] = []

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
        window = options.get("sliding_window")
        call = _LayerCall(
            num_kv_heads=key.shape[1],
            head_dim=key.shape[3],
            value_dim=value.shape[3],
            window=window if isinstance(window, int) else None,
            masked=softcap is not None or sinks is not None,
            is_causal=bool(getattr(module, "is_causal", True))
            and options.get("is_causal") is not False,
            unknown=tuple(
                name
                for name, given in options.items()
                if name not in _KNOWN_OPTIONS and given is not None and given is not False
            ),
        )
        self.calls.append((getattr(module, "layer_idx", None), call))
        batch, heads, tokens, _ = query.shape
        return query.new_empty(batch, tokens, heads, value.shape[3])


def probe_attention(path: Path, module: PreTrainedModel) -> AttentionFacts:
    """Run ``module`` without storage; raise ``ModelUnsupportedError`` if it cannot be paged."""
    calls, shared_inputs = _record(path, module)
    config = module.config.get_text_config()
    layers = [layer for layer, _ in calls]
    if layers != list(range(config.num_hidden_layers)):
        raise ModelUnsupportedError(
            path,
            f"{config.num_hidden_layers} layers, but attention went through the attention interface"
            f" in layers {layers}: other mixers, or attention code of its own, cannot be served",
        )
    for layer, call in calls:
        _check_call(path, f"layer {layer}", call)
    first = calls[0][1]
    if any((c.num_kv_heads, c.head_dim) != (first.num_kv_heads, first.head_dim) for _, c in calls):
        raise ModelUnsupportedError(path, "KV heads differ in number or size between layers")
    windows = _windows(path, config, [call.window for _, call in calls])
    masked = any(call.masked for _, call in calls)
    return AttentionFacts(first.num_kv_heads, first.head_dim, windows, masked, shared_inputs)


def _record(
    path: Path, module: PreTrainedModel
) -> tuple[list[tuple[object, _LayerCall]], tuple[tuple[str, ...], ...]]:
    recording = _RecordingPass()
    inputs: list[tuple[str, torch.Tensor]] = []
    hooks = [
        child.register_forward_pre_hook(_input_recorder(name, inputs))
        for name, child in module.named_modules()
        if type(child) is nn.Linear
    ]
    tokens = torch.zeros(1, _PROBE_TOKENS, dtype=torch.int64, device="meta")
    buffers = {name: buffer.to("meta") for name, buffer in module.named_buffers()}
    arguments = {
        "input_ids": tokens,
        "position_ids": tokens,
        "use_cache": False,
        "logits_to_keep": tokens[0, :1],
        "paged_pass": recording,
    }
    experts = module.config._experts_implementation
    try:
        # The other ways to run experts need their inputs' values, which a dry run has not.
        module.set_experts_implementation("batched_mm")
        with torch.inference_mode():
            output = torch.func.functional_call(module, buffers, (), arguments)
        module.set_experts_implementation(experts)
    # Model code of any family runs here, and whatever it raises is the reason to refuse it.
    except Exception as error:
        raise ModelUnsupportedError(
            path, f"{type(module).__name__} does not run with paged attention: {error!r}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    rows = output.logits.shape[1]
    if rows != 1:
        raise ModelUnsupportedError(
            path, f"{type(module).__name__} ignores logits_to_keep: {rows} rows of logits, not 1"
        )
    return recording.calls, _shared_inputs(inputs)


def _input_recorder(
    name: str, inputs: list[tuple[str, torch.Tensor]]
) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
    def record(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        inputs.append((name, arguments[0]))

    return record


def _shared_inputs(inputs: list[tuple[str, torch.Tensor]]) -> tuple[tuple[str, ...], ...]:
    groups = [[name for name, _ in group] for _, group in groupby(inputs, lambda call: id(call[1]))]
    called = Counter(name for name, _ in inputs)
    return tuple(
        tuple(group) for group in groups if len(group) > 1 and all(called[n] == 1 for n in group)
    )


def _check_call(path: Path, layer: str, call: _LayerCall) -> None:
    if call.head_dim != call.value_dim:
        raise ModelUnsupportedError(
            path, f"{layer}: keys of size {call.head_dim}, values of size {call.value_dim}"
        )
    if not call.is_causal:
        raise ModelUnsupportedError(path, f"{layer}: attention is not causal")
    if call.unknown:
        raise ModelUnsupportedError(
            path, f"{layer}: attention needs {', '.join(call.unknown)}, which is not supported"
        )


def _windows(
    path: Path, config: PreTrainedConfig, given: list[int | None]
) -> tuple[int | None, ...]:
    """The window of each layer: by its type where the config states types, else as it called."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is None:
        return tuple(given)
    windows: list[int | None] = []
    for layer, kind in enumerate(types[: len(given)]):
        if kind not in {"full_attention", "sliding_attention"}:
            raise ModelUnsupportedError(path, f"layer {layer} is of type {kind!r}")
        if kind == "sliding_attention" and window is None:
            raise ModelUnsupportedError(
                path, f"layer {layer} slides, but sliding_window is not set"
            )
        windows.append(window if kind == "sliding_attention" else None)
    return tuple(windows)
