"""Which batch sizes have a step of their own."""

from __future__ import annotations

import pytest

from aegaeon_worker.engine.decode_steps import padded_sizes


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 31, 32, 33, 100, 256])
def test_every_batch_fits_with_little_padding(largest: int) -> None:
    sizes = padded_sizes(largest)
    assert sizes[-1] == largest
    assert sorted(set(sizes)) == list(sizes)
    for batch in range(1, largest + 1):
        padded = next(size for size in sizes if size >= batch)
        assert padded < 2 * batch
        assert padded < batch + 32
