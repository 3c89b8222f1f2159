"""get_tokenizer: the Hugging Face object, without torch where tokenizer.json says it all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2TokenizerFast

from aegaeon.utils import get_tokenizer

TEXT = "KV Cache is 12 ½ ☃"
CHAT = [{"role": "user", "content": "hi"}]


def save_tokenizer(folder: Path, declared: str) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(alphabet)}
    if declared == "Qwen2Tokenizer":
        tokenizer = Qwen2TokenizerFast(vocab=vocabulary, merges=[])
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    else:
        backend = Tokenizer(models.BPE(vocabulary, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": declared}))
    return folder


DECLARED = ["PreTrainedTokenizerFast", "TokenizersBackend", "Qwen2Tokenizer"]


@pytest.mark.parametrize("declared", DECLARED)
def test_it_equals_auto_tokenizer(tmp_path: Path, declared: str) -> None:
    folder = save_tokenizer(tmp_path, declared)
    ours, theirs = get_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(theirs)
    ids = ours.encode(TEXT)
    assert ids == theirs.encode(TEXT)
    assert ours.decode([*ids, ours.eos_token_id], skip_special_tokens=True) == TEXT
    assert ours.apply_chat_template(CHAT, tokenize=False) == "<hi>"
    assert get_tokenizer(folder) is ours


@pytest.mark.parametrize("declared", DECLARED)
def test_it_loads_without_torch(tmp_path: Path, declared: str) -> None:
    folder = save_tokenizer(tmp_path, declared)
    code = (
        "import sys; from aegaeon.utils import get_tokenizer\n"
        f"get_tokenizer({str(folder)!r}).encode('hi'); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr


def test_threads_may_load_their_first_tokenizers_together(tmp_path: Path) -> None:
    """As those of a gateway that has just started, and whose callers ask for several models."""
    from tests.integration.text_model import text_model

    path = text_model("tiny", tmp_path).path()
    # Some of them begin while the first one imports, whenever that is.
    program = (
        "import sys, threading\n"
        "from aegaeon.utils import load_tokenizer\n"
        "failed = []\n"
        "def load():\n"
        "    try:\n"
        "        load_tokenizer(sys.argv[1])\n"
        "    except BaseException as error:\n"
        "        failed.append(error)\n"
        "threads = [threading.Timer(0.05 * n, load) for n in range(20)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "sys.exit(repr(failed) if failed else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
