"""What a reader takes is what came, in order, whatever happens in between."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core import backlog as backlogs
from aegaeon_scheduler.core.backlog import Backlog, Parcel
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import Slo, StopConditions

#: A step of these sequences, the end of one, or a read.
Happening = list[int] | int | None
happenings = st.lists(
    st.one_of(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 4), st.none())
)


def sequence(number: int, backlog: Backlog) -> Sequence:
    stop = StopConditions(1, 0, (), (), False, 1)
    return Sequence(number, "", "m", (), stop, 0, [], 0, 0, 0, 0, 0, Slo(1, 1), backlog, number)


def step(backlog: Backlog, members: list[Sequence], token: int, time: int) -> None:
    """As `steps.on_step` does."""
    parcel = backlog.begin((time, time))
    for member in members:
        member.unread += 1
        parcel.owners.append(member)
        parcel.tokens.append(token)


@given(happenings)
def test_everything_comes_out_once_in_order_and_every_end_after_its_tokens(
    events: list[Happening],
) -> None:
    backlog = Backlog()
    members = [sequence(number, backlog) for number in range(5)]
    put: list[tuple[int, int, int]] = []
    parcels: list[Parcel] = []
    ended: set[int] = set()
    with mock.patch.multiple(backlogs, _FULL_TOKENS=6, _FULL_ENDS=2):
        for time, event in enumerate(events):
            if event is None:
                parcels += filter(None, [backlog.take()])
            elif isinstance(event, int):
                if event not in ended:
                    backlog.end(members[event])
                    ended.add(event)
            elif alive := [members[n] for n in event if n not in ended]:
                step(backlog, alive, time, time)
                put += [(member.sequence_id, time, time) for member in alive]
        assert backlog.ends == len(ended) - sum(len(parcel.ended) for parcel in parcels)
        while (parcel := backlog.take()) is not None:
            parcels.append(parcel)
    assert [row for parcel in parcels for row in rows(parcel)] == put
    assert all(parcel.tokens or parcel.ended for parcel in parcels)
    assert all(len(parcel.tokens) < 6 + 5 and len(parcel.ended) <= 2 for parcel in parcels)
    assert sorted(s.sequence_id for parcel in parcels for s in parcel.ended) == sorted(ended)
    assert all(not member.unread for member in members)
    for position, parcel in enumerate(parcels):
        gone = {s.sequence_id for s in parcel.ended}
        assert not gone & {s.sequence_id for p in parcels[position + 1 :] for s in p.owners}


def rows(parcel: Parcel) -> list[tuple[int, int, int]]:
    """Sequence, token and step time of every token."""
    times = [
        stamp[0]
        for stamp, count in zip(parcel.stamps, parcel.counts(), strict=True)
        for _ in range(count)
    ]
    owners = [owner.sequence_id for owner in parcel.owners]
    return list(zip(owners, parcel.tokens, times, strict=True))


@pytest.mark.parametrize("count", [0, 1])
def test_a_reader_is_told_again_only_after_it_has_taken_everything(count: int) -> None:
    backlog = Backlog(announced=True)
    step(backlog, [sequence(1, backlog)] * count, 1, 1) if count else None
    while backlog.announced:
        backlog.take()
    assert backlog.take() is None
