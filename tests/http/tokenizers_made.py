"""Tiny tokenizers of every kind that the detokenizer knows."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = "<end>"
SPACED = "two words"
ACCENTED = "<é☃>"


def wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_tokens([AddedToken(SPACED, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL)


def byte_level() -> PreTrainedTokenizerFast:
    """All bytes, and pieces that cut characters in the middle."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = ["hello", " world", "é", "☃"]
    pieces = [spelled.pre_tokenize_str(word)[0][0] for word in words]
    emoji = spelled.pre_tokenize_str("😀")[0][0]
    names = list(dict.fromkeys([*alphabet, *pieces, emoji[:2], emoji[2:]]))
    backend = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return wrap(backend)


def _pieces() -> list[str]:
    words = ["▁hello", "▁", "▁▁", "wor", "ld", "é", "☃", "▁☃", ""]
    return [*words, *(f"<0x{byte:02X}>" for byte in range(256))]


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2 has it."""
    vocabulary = {piece: index for index, piece in enumerate(_pieces())}
    backend = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrap(backend)


def metaspace(scheme: str = "always") -> PreTrainedTokenizerFast:
    """As unigram models of sentencepiece have it."""
    pieces = [(piece, -1.0) for piece in _pieces() if piece]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return wrap(backend)


def without_decoder() -> PreTrainedTokenizerFast:
    vocabulary = {piece: index for index, piece in enumerate(_pieces())}
    return wrap(Tokenizer(models.WordLevel(vocabulary, unk_token="▁")))


def looking_ahead() -> PreTrainedTokenizerFast:
    """A decoder that treats the last token differently."""
    vocabulary = {piece + "</w>": index for index, piece in enumerate(_pieces())}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.BPEDecoder()
    return wrap(backend)


MADE = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "metaspace": metaspace,
    "metaspace-never": lambda: metaspace("never"),
    "no-decoder": without_decoder,
    "looking-ahead": looking_ahead,
}
