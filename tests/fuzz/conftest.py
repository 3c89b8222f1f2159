"""Fixtures of the scheduler's tests, and the case at which a test has failed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.fuzz import budget
from tests.scheduler.conftest import start

__all__ = ["start"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Fuzzing", budget.where))
    return report
