"""Fixtures of the scheduler's tests."""

from __future__ import annotations

from tests.scheduler.conftest import start

__all__ = ["start"]
