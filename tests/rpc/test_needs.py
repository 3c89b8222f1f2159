"""Every field of a request is known to all releases, may be ignored, or needs something.

A field that is new is found here. Decide what an end of the release before would make of the
message without it, enter it in `aegaeon.rpc.needs`, and see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from aegaeon.capability import OF_SCHEDULER, OF_WORKER, Capability, from_numbers, named
from aegaeon.errors import ErrorReason, PreconditionError
from aegaeon.rpc.needs import SCHEDULER, WORKER, Reader, check_scheduler
from aegaeon.v1 import (
    cluster_pb2,
    inference_pb2,
    kv_pb2,
    model_pb2,
    worker_pb2,
)

#: Of all messages in requests, the highest field that every release has that has the message.
#: These numbers stay as they are: what is added to a message comes after them.
FROM_THE_BEGINNING = {
    "AddSequences": 1,
    "ApplyTopologyRequest": 4,
    "BlockRun": 4,
    "CancelSequences": 1,
    "Constraint": 3,
    "DeployModelRequest": 3,
    "DeregisterWorkerRequest": 1,
    "DeviceFacts": 7,
    "DrainRequest": 3,
    "ExecuteRequest": 10,
    "GenerateRequest": 9,
    "GetCapabilitiesRequest": 0,
    "GetModelRequest": 1,
    "GetRuntimeRequest": 0,
    "GetStatusRequest": 0,
    "Hello": 1,
    "InspectModelRequest": 1,
    "JoinTurn": 2,
    "KvPlace": 3,
    "KvSharing": 3,
    "LeaveTurn": 2,
    "LimitTurn": 2,
    "ListModelsRequest": 0,
    "LoadModel": 1,
    "ModelSpec": 7,
    "NodeMemory": 3,
    "NodeTopology": 8,
    "QueueTurn": 6,
    "ReadKvRequest": 3,
    "RegisterWorkerRequest": 10,
    "ReleaseSequences": 1,
    "RenewLeaseRequest": 1,
    "ResetStatisticsRequest": 0,
    "SamplingParameters": 10,
    "SequenceSpec": 7,
    "SessionCancel": 1,
    "SessionRequest": 2,
    "SessionSubmit": 3,
    "SessionSubmits": 1,
    "StopConditions": 6,
    "UndeployModelRequest": 2,
    "UnloadModel": 1,
    "UseBudgetRequest": 6,
    "WatchEventsRequest": 0,
}
#: The same of the values of enums in them. A value that is new needs the same thought as a field.
VALUES = {
    "Capability": max(Capability),
    "DataType": 3,
    "EngineRole": 3,
    "PlacementPolicy": 2,
    # A scheduler refuses one that it does not know; none is asked for unless a caller names one.
    "RoutingPolicy": 3,
    "TurnStage": 1,
}
#: Who reads a service's requests.
READERS = {
    "InferenceService": SCHEDULER,
    "ModelService": SCHEDULER,
    "ClusterService": SCHEDULER,
    "WorkerService": WORKER,
    "KvService": WORKER,
}
FILES = (inference_pb2, model_pb2, cluster_pb2, worker_pb2, kv_pb2)


def fields_of(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """Those of a message and of all messages in it."""
    if descriptor.full_name in seen or descriptor.GetOptions().map_entry:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None:
            yield from fields_of(field.message_type, seen)


def requested() -> Iterator[tuple[str, Reader, FieldDescriptor]]:
    """Every field that a request of some service may have, with the service and its reader."""
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            seen: set[str] = set()
            for method in service.methods:
                for field in fields_of(method.input_type, seen):
                    yield service.name, READERS[service.name], field


def name_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


FIELDS = list(requested())


def test_every_field_is_classified_for_every_end_that_reads_it() -> None:
    missing = []
    for service, reader, field in FIELDS:
        message = field.containing_type.name
        if message not in FROM_THE_BEGINNING:
            missing.append(f"{message}: a new message; enter its highest field here")
        elif field.number > FROM_THE_BEGINNING[message]:
            entries = [name_of(field) in reader.needed, name_of(field) in reader.ignorable]
            if sum(entries) != 1:
                missing.append(f"{name_of(field)}, read by {service}, is in {sum(entries)} tables")
    assert not missing, "\n".join(missing)


def test_no_field_of_the_beginning_needs_anything() -> None:
    for _, reader, field in FIELDS:
        if field.number <= FROM_THE_BEGINNING[field.containing_type.name]:
            assert name_of(field) not in {**reader.needed, **reader.ignorable}


def test_every_entry_of_the_tables_is_a_field() -> None:
    known = {name_of(field) for _, _, field in FIELDS}
    for reader in (SCHEDULER, WORKER):
        assert {*reader.needed, *reader.ignorable} <= known


def test_enums_have_no_value_that_nobody_has_thought_of() -> None:
    enums: dict[str, EnumDescriptor] = {
        field.enum_type.name: field.enum_type for _, _, field in FIELDS if field.enum_type
    }
    assert {name: max(v.number for v in enum.values) for name, enum in enums.items()} == VALUES


def test_what_sequences_need_can_be_told_from_their_requests() -> None:
    """The scheduler chooses workers by it. Where KV lies is its own business."""
    for _, reader, field in FIELDS:
        if reader is not WORKER or field.containing_type.name != "SequenceSpec":
            continue
        capability = WORKER.needed.get(name_of(field))
        if capability is not None:
            assert WORKER.needed.get(f"GenerateRequest.{field.name}") is capability
            assert SCHEDULER.needed.get(f"GenerateRequest.{field.name}") is capability


def test_capabilities_are_those_of_the_contract() -> None:
    names = {f"CAPABILITY_{one.name}": one.value for one in Capability}
    assert dict(inference_pb2.Capability.items()) == {"CAPABILITY_UNSPECIFIED": 0, **names}
    assert set(SCHEDULER.needed.values()) <= OF_SCHEDULER
    assert set(WORKER.needed.values()) == OF_WORKER


def test_numbers_of_later_releases_mean_nothing() -> None:
    assert from_numbers([99, *map(int, OF_WORKER), 0]) == OF_WORKER


@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (inference_pb2.GenerateRequest(prompt_logprobs=0), Capability.PROMPT_LOGPROBS),
        (inference_pb2.GenerateRequest(told_prompt_tokens=1), Capability.PROMPT_LOGPROBS),
        (inference_pb2.GenerateRequest(cache_salt="x"), Capability.PREFIX_ISOLATION),
        (inference_pb2.GenerateRequest(no_prefix_caching=True), Capability.PREFIX_ISOLATION),
        (
            inference_pb2.GenerateRequest(
                sampling=inference_pb2.SamplingParameters(constraint=inference_pb2.Constraint())
            ),
            Capability.CONSTRAINTS,
        ),
        (
            model_pb2.DeployModelRequest(spec=model_pb2.ModelSpec(tool_parser="hermes")),
            Capability.TOOL_PARSERS,
        ),
    ],
)
def test_a_field_that_is_set_needs_its_capability(
    request_: inference_pb2.GenerateRequest, capability: Capability
) -> None:
    assert SCHEDULER.needs(request_) == {capability}
    with pytest.raises(PreconditionError, match=capability.name) as caught:
        check_scheduler(SCHEDULER.needs(request_), OF_SCHEDULER - {capability})
    assert caught.value.reason is ErrorReason.FEATURE_MISSING
    check_scheduler(SCHEDULER.needs(request_), OF_SCHEDULER)


def test_fields_are_found_in_messages_of_messages() -> None:
    spec = worker_pb2.SequenceSpec(
        prompt_logprobs=0,
        kv=worker_pb2.KvPlace(address="x"),
        sampling=inference_pb2.SamplingParameters(logit_bias={1: 2.0}),
    )
    plain = worker_pb2.SequenceSpec(kv=worker_pb2.KvPlace(num_tokens=1))
    command = worker_pb2.ExecuteRequest(
        add_sequences=worker_pb2.AddSequences(sequences=[plain, spec])
    )
    assert named(WORKER.needs(command)) == "KV_FETCH, PROMPT_LOGPROBS"
    assert not WORKER.needs(worker_pb2.ExecuteRequest(hello=worker_pb2.Hello(epoch=1)))
