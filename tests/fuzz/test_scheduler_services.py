"""Whatever is sent to the scheduler, it answers with a named error and goes on serving."""

from __future__ import annotations

import asyncio
import random

import grpc
from google.protobuf.descriptor import MethodDescriptor

from aegaeon.rpc.channel import open_channel
from aegaeon.v1 import cluster_pb2, inference_pb2, model_pb2
from tests.fuzz.budget import cases, mutated
from tests.fuzz.messages import random_message
from tests.scheduler.conftest import Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect

METHODS: list[MethodDescriptor] = [
    method
    for file in (inference_pb2, model_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
#: What a call never ends with: exceptions that nobody foresaw.
UNFORESEEN = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
}
CALL_S = 0.1
#: Cases at once, and cases between two looks at the ledgers.
TOGETHER = 16
LOOK = 160


async def send(channel: grpc.aio.Channel, chance: random.Random) -> None:
    method = chance.choice(METHODS)
    sound = chance.random() < 0.6
    count = chance.randint(0, 6) if method.client_streaming else 1
    requests = []
    for _ in range(count):
        data = random_message(method.input_type, chance).SerializeToString()
        requests.append(data if sound else mutated(data, chance))
    kind = ("stream" if method.client_streaming else "unary") + (
        "_stream" if method.server_streaming else "_unary"
    )
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = getattr(channel, kind)(path)  # bytes in, bytes out
    argument = iter(requests) if method.client_streaming else requests[0]
    try:
        running = call(argument, timeout=CALL_S)
        if method.server_streaming:
            async for _ in running:
                pass
        else:
            await running
    except grpc.aio.AioRpcError as error:
        code, text = error.code(), error.details()
    else:
        return
    # gRPC's own name for a write that meets a stream which has just ended.
    met_the_end = method.client_streaming and text == "Internal error from Core"
    assert met_the_end or code not in UNFORESEEN, f"{method.full_name}: {code}: {text}"


async def test_the_scheduler_foresees_everything(start: Start) -> None:
    harness = await start(recovery_timeout_ns=50_000_000)
    await harness.worker()
    state = harness.server.driver.cluster.state
    async with open_channel(harness.address) as channel:
        group: list[random.Random] = []
        for number, chance in enumerate(cases("scheduler")):
            group.append(chance)
            if len(group) == TOGETHER:
                await asyncio.gather(*(send(channel, one) for one in group))
                group.clear()
            if number % LOOK == LOOK - 1:
                await until(lambda: not state.sequences)
                harness.assert_empty()
                if harness.workers[-1].epoch not in state.engines:
                    await harness.worker()
    # Drains are among what was sent.
    _ = [m async for m in harness.cluster.Drain(cluster_pb2.DrainRequest(resume=True))]
    await harness.worker(StubSettings(node_id="new"))
    spec = model_pb2.ModelSpec(name="a new one", path="/models/m")
    request = model_pb2.DeployModelRequest(spec=spec, node_ids=["new"])
    assert [m async for m in harness.models.DeployModel(request)]
    tokens, _ = await collect(harness, generate_request((3,), 20, "a new one"))
    assert tokens == answer((3,), 20)
    harness.assert_empty()
