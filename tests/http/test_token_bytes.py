"""What single tokens spell."""

from __future__ import annotations

import pytest

from aegaeon.http.token_bytes import token_bytes
from aegaeon.http.vocabulary import Vocabulary
from tests.http.tokenizers_made import MADE, SPACED, SPECIAL


@pytest.mark.parametrize(
    ("kind", "piece", "spelled"),
    [
        ("byte-level", "Ġworld", b" world"),
        ("byte-level", "ðŁ", b"\xf0\x9f"),
        ("byte-fallback", "<0xE2>", b"\xe2"),
        ("byte-fallback", "▁hello", b" hello"),
        ("metaspace", "▁hello", b" hello"),
        ("no-decoder", "wor", b" wor"),
        *((kind, SPECIAL, SPECIAL.encode()) for kind in MADE),
        *((kind, SPACED, SPACED.encode()) for kind in MADE),
    ],
)
def test_a_token_spells_its_share_of_a_text(kind: str, piece: str, spelled: bytes) -> None:
    tokenizer = MADE[kind]()
    token_id = tokenizer.convert_tokens_to_ids(piece)
    assert token_bytes(Vocabulary(tokenizer), token_id) == spelled


@pytest.mark.parametrize("kind", MADE)
def test_an_id_without_a_token_spells_nothing(kind: str) -> None:
    tokenizer = MADE[kind]()
    assert token_bytes(Vocabulary(tokenizer), len(tokenizer) + 5) == b""
