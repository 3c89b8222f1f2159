"""Which workers are taken to have the same model, and which are not."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core.fingerprints import known_to_differ, loaded_alike
from aegaeon_scheduler.core.values import ModelFacts, ModelSpec


def facts(fingerprint: str) -> ModelFacts:
    return ModelFacts(fingerprint, 1, 1, 16, 100, 1000, ())


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("files-1:a", "files-1:a", False),
        ("files-1:a", "files-1:b", True),
        ("files-1:a", "files-2:b", False),  # of another release, which cannot be compared
        ("a", "files-1:a", False),  # of a release before they said how they were made
        ("a", "b", True),
    ],
)
def test_only_fingerprints_of_one_kind_are_compared(one: str, other: str, differ: bool) -> None:
    assert known_to_differ(facts(one), facts(other)) is differ
    assert known_to_differ(facts(other), facts(one)) is differ
    assert not known_to_differ(None, facts(one))


def test_what_an_older_worker_has_not_kept_for_gateways_makes_no_other_model() -> None:
    told = ModelSpec("m", "/m", max_model_len=9, tool_parser="hermes")
    assert loaded_alike(told, ModelSpec("m", "/m", max_model_len=9))
    assert not loaded_alike(told, ModelSpec("m", "/m", max_model_len=8, tool_parser="hermes"))
