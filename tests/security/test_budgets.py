"""What holders may use per minute, in one place."""

from __future__ import annotations

import pytest

from aegaeon.errors import ResourceExhaustedError
from aegaeon.security import budgets as module
from aegaeon.security.budgets import Budget, Budgets


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_refused_takes_nothing() -> None:
    budgets = Budgets(Clock())
    budget = Budget("h", "h", requests_per_minute=1, tokens_per_minute=100)
    budgets.owe(budget, 0, 60)
    for _ in range(3):
        with pytest.raises(ResourceExhaustedError, match="100 tokens per minute"):
            budgets.take(budget, 1, 50)
    budgets.take(budget, 1, 40)
    with pytest.raises(ResourceExhaustedError, match="1 requests per minute"):
        budgets.take(budget, 1, 0)


def test_what_has_been_used_is_made_up_for_first() -> None:
    clock = Clock()
    budgets = Budgets(clock)
    budget = Budget("h", "name", None, tokens_per_minute=60)
    budgets.owe(budget, 0, 180)
    with pytest.raises(ResourceExhaustedError, match="'name'") as caught:
        budgets.take(budget, 1, 1)
    assert caught.value.metadata["retry_after_ms"] == "121000"
    clock.now_s += 121
    budgets.take(budget, 1, 1)


@pytest.mark.parametrize("none", [None, 0])
def test_no_limit_is_no_limit(none: int | None) -> None:
    budgets = Budgets(Clock())
    for _ in range(3):
        budgets.take(Budget("h", "h", none, none), 1 << 31, 1 << 31)
    assert len(budgets) == 0


def test_no_number_of_holders_takes_memory_without_bound() -> None:
    """Whatever they owe."""
    budgets = Budgets(Clock())
    for number in range(module._MOST + 100):
        budgets.owe(Budget(str(number), "", None, 1), 0, 1_000_000)
    assert len(budgets) == module._MOST
    with pytest.raises(ResourceExhaustedError):
        budgets.take(Budget(str(number), "", None, 1), 1, 1)


def test_holders_that_have_everything_again_are_forgotten_and_no_others() -> None:
    clock = Clock()
    budgets = Budgets(clock)
    debtor = Budget("debtor", "debtor", None, 1)
    budgets.owe(debtor, 0, 1_000)
    for number in range(3 * module._MANY):
        budgets.take(Budget(str(number), "", 60, None), 1, 0)
        clock.now_s += 1
    assert len(budgets) <= module._MANY
    budgets.owe(debtor, 0, 1_000_000)
    for number in range(2 * module._MANY):
        budgets.take(Budget(str(number), "", 60, None), 1, 0)
        clock.now_s += 1
    with pytest.raises(ResourceExhaustedError):
        budgets.take(debtor, 0, 1)
