"""Whatever commands a worker gets, its engine goes on."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from aegaeon.rpc.channel import make_server, open_channel
from aegaeon.v1 import inference_pb2, model_pb2, worker_pb2, worker_pb2_grpc
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.service.servicer import WorkerServicer
from tests.fuzz.budget import cases, mutated
from tests.fuzz.messages import random_message
from tests.worker.engine.harness import EngineHarness
from tests.worker.models.tiny import make_checkpoint

EXECUTE = "/aegaeon.v1.WorkerService/Execute"
NEW_TOKENS = 12
STREAM_S = 0.15
GOOD_S = 30
#: Streams between two that must be served well.
BETWEEN = 25

Command = worker_pb2.ExecuteRequest


@asynccontextmanager
async def serving(folder: Path, shm_dir: Path) -> AsyncIterator[tuple[WorkerParts, str]]:
    config = EngineHarness(shm_dir, device_memory_bytes=64 << 20, cpu_slab_bytes=1 << 20).config
    parts = WorkerParts(config)
    server = make_server()
    servicer = WorkerServicer(lambda: parts.status, parts.thread.submit, parts.preparer)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    address = f"unix:{folder}/w"
    server.add_insecure_port(address)
    await server.start()
    parts.start()
    try:
        yield parts, address
    finally:
        servicer.close_streams()
        await server.stop(0)
        await asyncio.to_thread(parts.close)


def commands(chance: random.Random, epoch: int) -> list[bytes]:
    """A stream that begins well, and goes on with commands that may contradict each other."""
    stream = [Command(hello=worker_pb2.Hello(epoch=epoch)).SerializeToString()]
    for _ in range(chance.randint(1, 12)):
        data = random_message(Command.DESCRIPTOR, chance).SerializeToString()
        stream.append(mutated(data, chance) if chance.random() < 0.2 else data)
    return stream


async def send(channel: grpc.aio.Channel, stream: list[bytes]) -> None:
    call = channel.stream_stream(EXECUTE)(timeout=STREAM_S)
    try:
        for data in stream:
            await call.write(data)
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass


async def served_well(channel: grpc.aio.Channel, model: Path, epoch: int) -> list[int]:
    """The tokens of a sound stream."""
    call = worker_pb2_grpc.WorkerServiceStub(channel).Execute(timeout=GOOD_S)
    spec = model_pb2.ModelSpec(name="m", path=str(model))
    stop = inference_pb2.StopConditions(
        max_new_tokens=NEW_TOKENS, ignore_eos=True, max_model_len=100
    )
    sequence = worker_pb2.SequenceSpec(handle=1, model="m", prompt_token_ids=[5, 6], stop=stop)
    for command in (
        Command(hello=worker_pb2.Hello(epoch=epoch)),
        Command(load_model=worker_pb2.LoadModel(spec=spec)),
    ):
        await call.write(command)
    tokens: list[int] = []
    async for event in call:
        kind = event.WhichOneof("event")
        assert kind not in ("model_failed", "sequence_failed"), event
        if kind == "model_loaded" and event.model_loaded.model.spec.name == "m":
            added = worker_pb2.AddSequences(sequences=[sequence])
            turn = worker_pb2.QueueTurn(turn_id=1, model="m", handles=[1])
            await call.write(Command(add_sequences=added))
            await call.write(Command(queue_turn=turn))
        if kind == "step":
            tokens += event.step.token_ids
            if any(event.step.finish_reasons):
                break
    call.cancel()
    return tokens


@pytest.mark.timeout(0)
async def test_the_engine_survives_every_command(tmp_path: Path, shm_dir: Path) -> None:
    model = make_checkpoint("llama", tmp_path / "m")
    epochs = itertools.count(1)
    async with serving(tmp_path, shm_dir) as (parts, address), open_channel(address) as channel:
        wanted = await served_well(channel, model, next(epochs))
        assert len(wanted) == NEW_TOKENS
        for number, chance in enumerate(cases("worker")):
            await send(channel, commands(chance, next(epochs)))
            assert parts.thread.failure is None
            if number % BETWEEN == BETWEEN - 1:
                assert await served_well(channel, model, next(epochs)) == wanted
        assert await served_well(channel, model, next(epochs)) == wanted


@pytest.fixture
def shm_dir(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"
