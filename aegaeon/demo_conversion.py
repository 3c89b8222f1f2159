"""GGUF to safetensors, run in a process of its own: it needs torch, which clients never load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def convert(gguf: Path, output: Path) -> None:
    """Write tokenizer, configuration and bfloat16 weights of ``gguf`` to ``output``."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # The conversion loses the digit splitter, which decides how numbers beyond ASCII are cut.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
    # The weights are dense already; with the mark of the GGUF they could not be saved.
    model.hf_quantizer.remove_quantization_config(model)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
