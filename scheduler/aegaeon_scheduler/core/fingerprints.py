"""Whether workers mean the same weights by a model's name."""

from __future__ import annotations

from dataclasses import replace

from aegaeon_scheduler.core.values import ModelFacts, ModelSpec


def known_to_differ(one: ModelFacts | None, other: ModelFacts) -> bool:
    """Whether the fingerprints are made in the same way, and are not the same.

    Workers of another release may make theirs in another way. They are taken at the word of the
    model's name and path: to refuse them would leave an upgrade half way without the model.
    """
    if one is None or _way(one) != _way(other):
        return False
    return one.fingerprint != other.fingerprint


def loaded_alike(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether a worker loads the same by both. What only gateways read does not count: a worker of
    an older release has not kept it."""
    return replace(one, tool_parser="") == replace(other, tool_parser="")


def _way(facts: ModelFacts) -> str:
    way, colon, _ = facts.fingerprint.partition(":")
    return way if colon else ""
