"""Which fields of the contract an end must know, because it would answer something else without.

An end ignores fields that it does not know. So every field that was added to a message after its
first release stands in one of the tables here, for each end that reads it: either it may be
ignored, for the reason given, or it is sent only to ends that have a capability. A test walks the
contract and finds fields that stand in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from aegaeon.capability import Capabilities, Capability, named
from aegaeon.errors import ErrorReason, PreconditionError


@dataclass(frozen=True, slots=True)
class _Check:
    """One field to look at: it needs a capability when it is set, or its message may."""

    name: str
    capability: Capability | None
    has_presence: bool
    repeated: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """One of the two ends that are asked for something."""

    #: By ``Message.field``.
    needed: Mapping[str, Capability]
    #: Fields that it may ignore, with the reason why the answer is the same.
    ignorable: Mapping[str, str]
    _plans: dict[str, tuple[_Check, ...]] = field(default_factory=dict)

    def needs(self, message: Message) -> Capabilities:
        """What the reader of a message must know for the fields that are set in it."""
        found: set[Capability] = set()
        self._collect(message, found)
        return frozenset(found)

    def _collect(self, message: Message, found: set[Capability]) -> None:
        name = message.DESCRIPTOR.full_name
        plan = self._plans.get(name)
        if plan is None:
            descriptor = cast(Descriptor, message.DESCRIPTOR)  # its stubs also name upb's own
            plan = self._plans[name] = tuple(self._plan(descriptor))
        for check in plan:
            if check.has_presence and not message.HasField(check.name):
                continue
            value = getattr(message, check.name)
            if check.capability is not None:
                if check.has_presence or value:
                    found.add(check.capability)
            elif check.repeated:
                for part in value:
                    self._collect(part, found)
            else:
                self._collect(value, found)

    def _plan(self, descriptor: Descriptor) -> list[_Check]:
        checks = []
        for one in descriptor.fields:
            capability = self.needed.get(f"{descriptor.name}.{one.name}")
            if capability is not None or self._concerned(one.message_type, {descriptor.full_name}):
                checks.append(_Check(one.name, capability, one.has_presence, one.is_repeated))
        return checks

    def _concerned(self, descriptor: Descriptor | None, above: set[str]) -> bool:
        """Whether a message has a field that needs something, somewhere in it."""
        if descriptor is None or descriptor.full_name in above or _is_map(descriptor):
            return False
        above = above | {descriptor.full_name}
        return any(
            f"{descriptor.name}.{one.name}" in self.needed
            or self._concerned(one.message_type, above)
            for one in descriptor.fields
        )


def _is_map(descriptor: Descriptor) -> bool:
    return bool(descriptor.GetOptions().map_entry)


SCHEDULER = Reader(
    needed={
        "SessionRequest.submits": Capability.GROUPED_SUBMISSIONS,
        "SamplingParameters.constraint": Capability.CONSTRAINTS,
        "GenerateRequest.prompt_logprobs": Capability.PROMPT_LOGPROBS,
        "GenerateRequest.told_prompt_tokens": Capability.PROMPT_LOGPROBS,
        "GenerateRequest.cache_salt": Capability.PREFIX_ISOLATION,
        "GenerateRequest.no_prefix_caching": Capability.PREFIX_ISOLATION,
        "ModelSpec.no_prefix_caching": Capability.PREFIX_ISOLATION,
        "ModelSpec.tool_parser": Capability.TOOL_PARSERS,
        "RegisterWorkerRequest.tensor_parallel_size": Capability.TENSOR_PARALLELISM,
    },
    ignorable={
        "GenerateRequest.trace_parent": "a trace has fewer spans",
        "RegisterWorkerRequest.capabilities": "it knows no more than the worker does",
        "RegisterWorkerRequest.kv_sharing": "a scheduler without it asks for no offers",
    },
)

_SEQUENCES = {
    "SequenceSpec.prompt_logprobs": Capability.PROMPT_LOGPROBS,
    "SequenceSpec.told_prompt_tokens": Capability.PROMPT_LOGPROBS,
}
#: The same fields in the requests that sequences are made of: what their workers will have to know.
_REQUESTS = {
    f"GenerateRequest.{name.partition('.')[2]}": capability
    for name, capability in _SEQUENCES.items()
}

WORKER = Reader(
    needed={
        "SamplingParameters.constraint": Capability.CONSTRAINTS,
        "KvPlace.address": Capability.KV_FETCH,
        "KvPlace.pieces": Capability.TENSOR_PARALLELISM,
        "KvPlace.offer": Capability.KV_OFFERS,
        "KvPlace.num_offered": Capability.KV_OFFERS,
        "QueueTurn.on_device": Capability.KV_OFFERS,
        **_SEQUENCES,
        **_REQUESTS,
    },
    ignorable={
        "SequenceSpec.no_prefix_caching": "a worker without it shares no KV",
        "SequenceSpec.cache_salt": "a worker without it shares no KV",
        "SequenceSpec.label": "for its log",
        "SequenceSpec.trace_parent": "a trace has fewer spans",
        "SequenceSpec.tpot_ns": "how prompts are cut into pieces changes no token",
        "ModelSpec.no_prefix_caching": "a worker without it shares no KV",
        "ModelSpec.tool_parser": "for gateways, which have it from the scheduler",
    },
)


def check_scheduler(needs: Capabilities, known: Capabilities) -> None:
    """Raise PreconditionError where a scheduler would ignore part of what it is asked for."""
    missing = needs - known
    if missing:
        raise PreconditionError(
            f"the scheduler is of an older release, which does not know {named(missing)}: it would "
            "answer as if that had not been asked for; upgrade it, or ask without",
            reason=ErrorReason.FEATURE_MISSING,
            metadata={"feature": named(missing)},
        )


def contract_names(capabilities: Capabilities) -> list[str]:
    """For the contract's messages, in order."""
    return [f"CAPABILITY_{capability.name}" for capability in sorted(capabilities)]
