"""Models of real shapes with random weights, made on the GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.build import build_module
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.packing import LinearPacking
from aegaeon_worker.models.native.plan import EMBEDDING, HEAD, plan_decoder
from aegaeon_worker.models.native.weights import FusedSlices
from aegaeon_worker.models.probe import probe_attention
from aegaeon_worker.parallel.collectives import Alone

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16


def qwen3_config(size: str, layers: int | None = None) -> PreTrainedConfig:
    """Qwen3 of ``size`` 8B or 0.6B, with fewer ``layers`` if given."""
    small = size == "0.6B"
    config: PreTrainedConfig = AutoConfig.for_model(
        "qwen3",
        vocab_size=151936,
        hidden_size=1024 if small else 4096,
        intermediate_size=3072 if small else 12288,
        num_hidden_layers=layers or (28 if small else 36),
        num_attention_heads=16 if small else 32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=small,
        use_cache=True,
    )
    return config


class RandomModel:
    """A native model, its weights and its KV range."""

    def __init__(self, config: PreTrainedConfig, *, kv_tokens: int) -> None:
        self.config = config
        path = Path(config.model_type)
        module = build_module(path, config, DTYPE, trust_remote_code=False)
        self.ties = {HEAD: EMBEDDING} if config.tie_word_embeddings else {}
        plan = plan_decoder(module, probe_attention(path, module), self.ties, DTYPE)
        assert plan is not None
        self.plan = plan
        self.native = NativeModel(
            plan,
            LinearPacking({}),
            Alone(),
            dtype=DTYPE,
            max_model_len=config.max_position_embeddings,
            kv_pieces=1,
        )
        layout = self.native.layout
        self.nbytes = layout.nbytes
        storage = torch.empty(layout.nbytes // DTYPE.itemsize, dtype=DTYPE, device=DEVICE)
        storage.normal_(0, 0.02)
        self._tensors = {}
        for slot in layout.slots():
            start, count = slot.offset // DTYPE.itemsize, slot.spec.nbytes // DTYPE.itemsize
            tensor = storage[start : start + count].view(slot.spec.shape)
            if "norm" in slot.spec.name:
                tensor += 1
            self._tensors[slot.spec.name] = tensor
        self.native.bind(self._tensors)
        blocks = KvShape.blocks_for(kv_tokens) + 1
        shape = (blocks, *self.native.kv_shape.block_shape)
        self.kv = torch.empty(shape, dtype=DTYPE, device=DEVICE).normal_()
        # Blocks in random order, as they are after a while of serving; 0 is never used.
        self._blocks = (torch.randperm(blocks - 1) + 1).tolist()

    def tables(self, sequences: int, tokens: int) -> list[list[int]]:
        """Blocks for ``sequences`` of ``tokens`` each."""
        width = KvShape.blocks_for(tokens)
        if sequences * width > len(self._blocks):
            raise ValueError(f"{sequences} sequences of {tokens} tokens exceed the KV range")
        return [self._blocks[row * width : (row + 1) * width] for row in range(sequences)]

    def chunk(self, tokens: torch.Tensor, tables: list[list[int]], *, start: int = 0) -> StepInput:
        """The pass over ``tokens`` [S, T], which follow ``start`` tokens of each sequence."""
        sequences, length = tokens.shape
        positions = torch.arange(start, start + length, device=DEVICE).repeat(sequences)
        return StepInput(
            token_ids=_to_gpu(tokens).flatten(),
            positions=positions,
            query_lens=(length,) * sequences,
            context_lens=(start + length,) * sequences,
            block_tables=_to_gpu(torch.tensor(tables)),
            kv=self.kv,
            logit_rows=torch.arange(1, sequences + 1, device=DEVICE) * length - 1,
        )

    def transformers_twin(self, dtype: torch.dtype) -> PreTrainedModel:
        """The unmodified ``transformers`` module with the same weights, in ``dtype``."""
        with DEVICE:
            twin: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                self.config, dtype=dtype, attn_implementation="sdpa"
            )
        slices = FusedSlices(self.plan, self._tensors)
        with torch.no_grad():
            for name, parameter in twin.state_dict().items():
                parameter.copy_(slices[self.ties.get(name, name)])
        twin.eval()  # type: ignore[no-untyped-call]
        return twin


def _to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """Without waiting for what the GPU has to do before."""
    return tensor.pin_memory().to(DEVICE, non_blocking=True)


def random_tokens(sequences: int, length: int, vocab_size: int = 151936) -> torch.Tensor:
    """Token ids [S, T] on the CPU."""
    return torch.randint(3, vocab_size, (sequences, length))
