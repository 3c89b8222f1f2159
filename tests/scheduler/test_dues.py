"""Lateness of waiting sequences from sorted sums equals the plain sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core.backlog import Backlog
from aegaeon_scheduler.core.dues import Dues
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.values import MAX_PRIORITY, MIN_PRIORITY, Slo, StopConditions

STOP = StopConditions(9, 0, (), (), False, 99)
sequences = st.lists(
    st.builds(
        lambda arrival, made, priority: Sequence(
            *(1, "", "a", (1,), STOP, arrival, [5] * made, 0, 9, 9, 1, 1, Slo(100, 10), Backlog()),
            priority=priority,
        ),
        st.integers(0, 300),
        st.integers(0, 9),
        st.integers(MIN_PRIORITY, MAX_PRIORITY),
    ),
    min_size=1,
)


@given(sequences, st.integers(0, 600), st.integers(0, 200))
def test_lateness_is_the_weighted_sum_with_a_cap(
    waiting: list[Sequence], at_ns: int, most_ns: int
) -> None:
    late = [(s.weight, min(max(at_ns - s.due_ns, 0), most_ns)) for s in waiting]
    dues = Dues.of(waiting)
    assert dues.lateness(at_ns, most_ns) == sum(weight * ns for weight, ns in late)
    assert dues.earliest_ns == min(s.due_ns for s in waiting)
