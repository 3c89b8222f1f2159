"""From a config to a ``transformers`` module without weights, ready for paged attention."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from aegaeon_worker.models.attention import ATTENTION_NAME
from aegaeon_worker.models.errors import ModelLoadError, ModelUnsupportedError


def read_config(path: Path, *, trust_remote_code: bool) -> PreTrainedConfig:
    """Read ``config.json``; refuse what no code of this worker can serve."""
    file = path / "config.json"
    if not path.is_dir():
        raise ModelLoadError(path, "not a folder")
    try:
        raw = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelLoadError(file, "missing") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(file, f"cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ModelLoadError(file, "not a JSON object")
    if "auto_map" in raw and not trust_remote_code:
        raise ModelLoadError(
            file, "the model brings its own code (auto_map); set trust_remote_code to run it"
        )
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise ModelUnsupportedError(file, f"quantized checkpoints ({method}) are not supported")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            path, trust_remote_code=trust_remote_code, local_files_only=True
        )
    # Config classes of any family check themselves here, each in its own way.
    except Exception as error:
        raise ModelLoadError(file, f"not a usable model config: {error}") from error
    if config.is_encoder_decoder:
        raise ModelUnsupportedError(file, "encoder-decoder models are not supported")
    return config


def build_module(
    path: Path, config: PreTrainedConfig, dtype: torch.dtype, *, trust_remote_code: bool
) -> PreTrainedModel:
    """The causal LM of ``config``: parameters without storage, computed buffers on the CPU."""
    if type(config) not in AutoModelForCausalLM._model_mapping and not hasattr(config, "auto_map"):
        raise ModelUnsupportedError(path, f"model type {config.model_type!r} is no causal LM")
    try:
        with torch.device("meta"):
            module: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config,
                attn_implementation=ATTENTION_NAME,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
            )
    # Model classes of any family are built here, and refuse attention names each in its own way.
    except Exception as error:
        raise ModelUnsupportedError(
            path, f"model type {config.model_type!r} cannot be built for paged attention: {error}"
        ) from error
    _check_class(path, module)
    module.eval()  # type: ignore[no-untyped-call]
    module.requires_grad_(requires_grad=False)
    _materialize_buffers(module)
    _freeze_rope(module)
    # Passes are never padded, and some models would search each one's tokens for padding.
    module.config.get_text_config().pad_token_id = None
    return module


def _check_class(path: Path, module: PreTrainedModel) -> None:
    name = type(module).__name__
    if not module._supports_attention_backend:
        raise ModelUnsupportedError(
            path, f"{name} does not call the attention interface of transformers"
        )
    if "logits_to_keep" not in inspect.signature(module.forward).parameters:
        raise ModelUnsupportedError(path, f"{name} cannot compute the logits of chosen rows only")


def _materialize_buffers(module: PreTrainedModel) -> None:
    """Compute the buffers that no checkpoint holds (rotary frequencies, embedding scales).

    They live outside the weights, so rebinding weights never touches them.
    """
    for name, buffer in list(module.named_non_persistent_buffers()):
        parent, _, leaf = name.rpartition(".")
        module.get_submodule(parent)._buffers[leaf] = torch.empty_like(buffer, device="cpu")
    for parameter in module.parameters():
        # It has no storage, and drawing none takes a while all the same.
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    module.initialize_weights()  # type: ignore[no-untyped-call]


def _freeze_rope(module: nn.Module) -> None:
    """Stop rotary embeddings from rescaling themselves by the longest sequence of a pass.

    The context length ends where they would begin to; a batch must not change its members.
    """
    for child in module.modules():
        kind = getattr(child, "rope_type", None)
        if isinstance(kind, str):
            setattr(child, "rope_type", "default")  # noqa: B010
        elif isinstance(kind, dict):
            setattr(child, "rope_type", dict.fromkeys(kind, "default"))  # noqa: B010
