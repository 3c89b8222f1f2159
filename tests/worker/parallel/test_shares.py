"""The parts of all ranks make up the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_worker.models.checkpoint import Checkpoint
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.models.shares import FIRST_ONLY, Extent, Share
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.ranks import Ranks
from tests.worker.models.paged_runner import allocate
from tests.worker.models.tiny import make_checkpoint


@st.composite
def shared(draw: st.DrawFn) -> tuple[Share, tuple[int, ...], int]:
    """A share of a tensor of some shape, and how many ranks there are."""
    size = draw(st.sampled_from([2, 3, 4, 6]))
    pieces = st.sampled_from([n for n in range(1, size + 1) if size % n == 0])
    extents = [
        Extent(draw(st.integers(1, 4)) * (count := draw(pieces)), count)
        for _ in range(draw(st.integers(1, 3)))
    ]
    dim = draw(st.integers(0, 2))
    shape = [2, 3, 4]
    shape[dim] = sum(extent.length for extent in extents)
    return Share(tuple(extents), dim), tuple(shape), size


@given(shared())
def test_every_row_is_on_the_ranks_that_share_its_piece(
    case: tuple[Share, tuple[int, ...], int],
) -> None:
    share, shape, size = case
    whole = torch.randn(shape)
    parts = []
    for rank in range(size):
        part = torch.full(share.shape(shape), float("nan"))
        share.write(part, whole, Ranks(rank, size))
        parts.append(part)
    start = read = 0
    for extent in share.extents:
        length, copies = extent.piece_length, size // extent.pieces
        pieces = [part.narrow(share.dim, start, length) for part in parts]
        joined = torch.cat(pieces[::copies], share.dim)
        assert torch.equal(joined, whole.narrow(share.dim, read, extent.length))
        for rank, piece in enumerate(pieces):
            assert torch.equal(piece, pieces[rank // copies * copies])
        start, read = start + length, read + extent.length


def test_a_vocabulary_that_does_not_divide_is_filled_up_with_zeros() -> None:
    share, whole = Share((Extent(7, 4),)), torch.arange(1.0, 8.0)
    parts = [torch.full(share.shape(whole.shape), float("nan")) for _ in range(4)]
    for rank, part in enumerate(parts):
        share.write(part, whole, Ranks(rank, 4))
    assert torch.cat(parts).tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


def test_what_is_added_to_a_sum_is_added_once() -> None:
    whole, parts = torch.ones(3), [torch.empty(3), torch.empty(3)]
    for rank, part in enumerate(parts):
        FIRST_ONLY.write(part, whole, Ranks(rank, 2))
    assert torch.equal(parts[0] + parts[1], whole)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_packing_reads_each_tensor_once_for_all_ranks(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    path = make_checkpoint(family, tmp_path)
    model, reader = TransformersLoader(cpu, Communicator(Ranks(0, 2), cpu, 1.0)).open(
        path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
    )
    reads: list[str] = []
    plain = Checkpoint.reader

    def counted(self: Checkpoint) -> object:
        context = plain(self)
        read = context.__enter__()

        class Reading:
            def __enter__(self) -> object:
                def one(name: str) -> torch.Tensor:
                    reads.append(name)
                    return read(name)

                return one

            def __exit__(self, *error: object) -> None:
                context.__exit__(None, None, None)

        return Reading()

    monkeypatch.setattr(Checkpoint, "reader", counted)
    views = {rank: allocate(model.layout) for rank in range(2)}
    reader.fill_all(views)
    assert sorted(reads) == sorted(Checkpoint.scan(path).tensors)
    assert not any(tensor.isnan().any() for own in views.values() for tensor in own.values())
    assert reader.packed_fingerprint(0) != reader.packed_fingerprint(1)
