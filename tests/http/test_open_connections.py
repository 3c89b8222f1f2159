"""Places of connections, and who loses one to whom."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aegaeon.http.open_connections import OpenConnections

MOST, PER_ADDRESS = 6, 3
HOSTS = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", ""]


class Caller:
    def __init__(self) -> None:
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "work", "rest", "leave"]),
            st.integers(0, 9),
            st.sampled_from(HOSTS),
        )
    )
)
def test_limits_hold_and_only_the_idle_lose_their_places(steps: list[tuple[str, int, str]]) -> None:
    places = OpenConnections(MOST, PER_ADDRESS)
    inside: dict[Caller, str] = {}
    working: set[Caller] = set()
    for step, number, host in steps:
        caller = list(inside)[number % len(inside)] if inside else None
        if step == "enter":
            caller = Caller()
            address = "2001:db8" if ":" in host else host
            mine = [one for one in inside if inside[one] == address]
            refused = places.enter(caller, host)
            full = len(mine) >= PER_ADDRESS or len(inside) >= MOST
            pool = mine if len(mine) >= PER_ADDRESS else list(inside)
            assert (refused is not None) == (full and not set(pool) - working)
            gone = [one for one in inside if one.evicted]
            assert len(gone) == (full and refused is None)
            for one in gone:
                assert one in pool
                assert one not in working
                del inside[one]
            if refused is None:
                inside[caller] = address
        elif caller is None:
            continue
        elif step == "work":
            places.work(caller)
            working.add(caller)
        elif step == "rest":
            places.rest(caller)
            working.discard(caller)
        else:
            places.leave(caller)
            del inside[caller]
        assert len(places) == len(inside) <= MOST
        assert all(count <= PER_ADDRESS for count in Counter(inside.values()).values())


def test_the_oldest_of_the_idle_goes_first() -> None:
    places = OpenConnections(2, 2)
    first, second, third = Caller(), Caller(), Caller()
    places.enter(first, "10.0.0.1")
    places.enter(second, "10.0.0.1")
    places.work(first)
    places.rest(first)
    assert places.enter(third, "10.0.0.1") is None
    assert (first.evicted, second.evicted) == (False, True)


def test_a_caller_without_a_place_may_leave_all_the_same() -> None:
    places = OpenConnections(1, 1)
    one, other = Caller(), Caller()
    places.enter(one, "10.0.0.1")
    places.work(one)
    assert "--max-connections-per-address" in (places.enter(other, "10.0.0.1") or "")
    assert "--max-connections)" in (places.enter(other, "10.0.0.2") or "")
    places.rest(other)
    places.leave(other)
    assert len(places) == 1
