"""Helpers for programs that prepare token ids."""

from __future__ import annotations

import functools
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Classes that only wrap tokenizer.json: they load without torch, with the result that
# AutoTokenizer has. AutoTokenizer itself imports torch, which takes seconds and memory.
_TORCH_FREE = {
    "PreTrainedTokenizerFast": "PreTrainedTokenizerFast",
    "TokenizersBackend": "PreTrainedTokenizerFast",
    "Qwen2Tokenizer": "Qwen2TokenizerFast",
    "Qwen2TokenizerFast": "Qwen2TokenizerFast",
}


_importing = threading.Lock()


@functools.cache
def get_tokenizer(
    path: str | os.PathLike[str], *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The model's Hugging Face tokenizer; loaded once per process and folder."""
    return load_tokenizer(path, trust_remote_code=trust_remote_code)


def load_tokenizer(
    path: str | os.PathLike[str], *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """As `get_tokenizer`, from the files as they are now."""
    folder = Path(path)
    class_name = _declared_class(folder)
    if class_name in _TORCH_FREE and (folder / "tokenizer.json").is_file():
        loader = _class(_TORCH_FREE[class_name])
        return loader.from_pretrained(str(folder))  # type: ignore[no-any-return]
    loader = _class("AutoTokenizer")
    return loader.from_pretrained(  # type: ignore[no-any-return]
        str(folder), trust_remote_code=trust_remote_code
    )


def _class(name: str) -> Any:
    # `transformers` puts a lazy module in its place while it is imported: a second thread gets the
    # first one, which has no classes.
    with _importing:
        import transformers

        return getattr(transformers, name)


def _declared_class(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if "auto_map" in config else config.get("tokenizer_class")
