from __future__ import annotations

import pytest

from aegaeon.v1 import cluster_pb2, model_pb2, worker_pb2
from aegaeon_worker.engine import commands
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.place import NOWHERE, BlockRun, KvPlace
from aegaeon_worker.service import convert

#: Two runs, with a generation of all 64 bits.
PLACE = KvPlace(40, 4096, (BlockRun(2, (1 << 64) - 1, 5, 2), BlockRun(0, 1, 0, 1)))


def added(kv: worker_pb2.KvPlace | None) -> commands.SequenceSpec:
    spec = worker_pb2.SequenceSpec(handle=1, model="m", kv=kv, label="mine")
    command = convert.command_from_pb(
        worker_pb2.ExecuteRequest(add_sequences=worker_pb2.AddSequences(sequences=[spec]))
    )
    assert isinstance(command, commands.AddSequences)
    return command.sequences[0]


def test_a_place_comes_to_another_worker_as_it_left() -> None:
    handed_off = convert.event_to_pb(HandedOff(7, PLACE, 12)).sequence_handed_off
    assert (handed_off.handle, handed_off.copy_time_ns) == (7, 12)
    assert added(handed_off.kv).kv == PLACE
    assert added(handed_off.kv).label == "mine"


def test_no_kv_and_kv_without_tokens_mean_the_same() -> None:
    handed_off = convert.event_to_pb(HandedOff(7, NOWHERE, 12)).sequence_handed_off
    assert handed_off.HasField("kv")
    assert added(handed_off.kv).kv is None
    assert added(None).kv is None


def test_an_import_is_told_with_its_size_and_time() -> None:
    told = convert.event_to_pb(Imported(7, 40, 3 * 4096, 12)).sequence_imported
    assert told == worker_pb2.SequenceImported(
        handle=7, imported_tokens=40, bytes=3 * 4096, copy_time_ns=12
    )


@pytest.mark.parametrize(
    ("stage", "hands_off"),
    [(cluster_pb2.TURN_STAGE_UNSPECIFIED, False), (cluster_pb2.TURN_STAGE_PREFILL, True)],
)
def test_only_turns_of_the_prefill_stage_hand_off(
    stage: cluster_pb2.TurnStage, hands_off: bool
) -> None:
    turn = worker_pb2.QueueTurn(turn_id=1, model="m", stage=stage)
    command = convert.command_from_pb(worker_pb2.ExecuteRequest(queue_turn=turn))
    assert isinstance(command, commands.QueueTurn)
    assert command.hands_off == hands_off


def test_what_a_scheduler_says_about_a_model_comes_back_to_it() -> None:
    """Also what is for others: a scheduler that has lost its memory learns it from workers."""
    spec = model_pb2.ModelSpec(
        name="m",
        path="/m",
        dtype=model_pb2.DATA_TYPE_FLOAT16,
        max_model_len=7,
        trust_remote_code=True,
        ttft_slo_ns=10**6,
        tpot_slo_ns=10**7,
        no_prefix_caching=True,
        tool_parser="hermes",
    )
    assert {field.name for field, _ in spec.ListFields()} == set(spec.DESCRIPTOR.fields_by_name)
    assert convert.spec_to_pb(convert.spec_from_pb(spec)) == spec


def test_released_sequences_are_named() -> None:
    released = worker_pb2.ReleaseSequences(handles=[3, 4])
    command = convert.command_from_pb(worker_pb2.ExecuteRequest(release_sequences=released))
    assert command == commands.ReleaseSequences([3, 4])
