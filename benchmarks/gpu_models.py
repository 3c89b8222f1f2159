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
from aegaeon_worker.models.native.shards import shard_plan
from aegaeon_worker.models.native.weights import FusedSlices
from aegaeon_worker.models.probe import probe_attention
from aegaeon_worker.parallel.collectives import Alone, Collectives
from aegaeon_worker.parallel.ranks import Ranks

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16


#: Hidden size, intermediate size, layers, query heads.
_SHAPES = {"0.6B": (1024, 3072, 28, 16), "8B": (4096, 12288, 36, 32), "32B": (5120, 25600, 64, 64)}


def qwen3_config(size: str, layers: int | None = None) -> PreTrainedConfig:
    """Qwen3 of ``size`` 0.6B, 8B or 32B, with fewer ``layers`` if given."""
    hidden, intermediate, all_layers, heads = _SHAPES[size]
    config: PreTrainedConfig = AutoConfig.for_model(
        "qwen3",
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers or all_layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=size == "0.6B",
        use_cache=True,
    )
    return config


class RandomModel:
    """A native model, its weights and its KV range; or one rank's part of it."""

    def __init__(
        self, config: PreTrainedConfig, *, kv_tokens: int, collectives: Collectives | None = None
    ) -> None:
        self.config = config
        together = collectives or Alone()
        path = Path(config.model_type)
        module = build_module(path, config, DTYPE, trust_remote_code=False)
        self.ties = {HEAD: EMBEDDING} if config.tie_word_embeddings else {}
        plan = plan_decoder(module, probe_attention(path, module), self.ties, DTYPE)
        assert plan is not None
        self.sharded = shard_plan(path, plan, together.ranks.size)
        self.plan = self.sharded.plan
        self.native = NativeModel(
            self.plan,
            LinearPacking({}),
            together,
            dtype=DTYPE,
            max_model_len=config.max_position_embeddings,
            kv_pieces=self.sharded.kv_pieces,
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

    def take_share(self, whole: RandomModel, ranks: Ranks) -> None:
        """Make the weights those of one rank of ``whole``."""
        slices, sources = FusedSlices(self.plan, self._tensors), whole.parts()
        for name in slices:
            self.sharded.shares[name].write(slices[name], sources[name], ranks)

    def parts(self) -> FusedSlices:
        """Tensors under the names of the ``transformers`` module."""
        return FusedSlices(self.plan, self._tensors)

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
