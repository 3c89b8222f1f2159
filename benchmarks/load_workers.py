"""The stub workers of the scheduler's load test, all in one process.

Run by `benchmarks.load_bench`, which writes a number of steps per second to stdin, one per line,
and reads one JSON line in answer: figures of the time since the line before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import grpc
import uvloop

from aegaeon.capability import OF_WORKER
from aegaeon.rpc.channel import open_channel, server_options
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.version import CONTRACT_VERSION
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2
from benchmarks.load_engine import BATCH, ENGINES, Pace, StubEngine, model_facts
from benchmarks.stdin_lines import stdin_lines

_GIB = 1 << 30


class StubNode(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """All engines behind one address; the epoch in `hello` tells whose stream it is."""

    def __init__(self, engines: list[StubEngine]) -> None:
        self._engines = engines

    def service(self, handler_call_details: Any) -> Any:
        """See grpc; responses of `Execute` are bytes already."""
        if handler_call_details.method.endswith("/Execute"):
            return grpc.stream_stream_rpc_method_handler(
                self._execute, worker_pb2.ExecuteRequest.FromString, None
            )
        return grpc.unary_unary_rpc_method_handler(
            self._inspect,
            worker_pb2.InspectModelRequest.FromString,
            worker_pb2.InspectModelResponse.SerializeToString,
        )

    async def _execute(self, commands: Any, context: Any) -> None:
        hello = await anext(aiter(commands))
        engine = next(e for e in self._engines if e.epoch == hello.hello.epoch)
        await engine.serve(commands, context)

    async def _inspect(self, request: Any, context: Any) -> worker_pb2.InspectModelResponse:
        return worker_pb2.InspectModelResponse(facts=model_facts())


async def register(
    scheduler: cluster_pb2_grpc.ClusterServiceStub, address: str, engine: StubEngine
) -> float:
    """Make an engine known, on a node of its own; returns the lease in seconds."""
    answer: cluster_pb2.RegisterWorkerResponse = await scheduler.RegisterWorker(  # type: ignore[misc]
        cluster_pb2.RegisterWorkerRequest(
            contract_version=CONTRACT_VERSION,
            capabilities=contract_names(OF_WORKER),
            node_id=f"node{engine.number}",
            address=address,
            device=cluster_pb2.DeviceFacts(
                kind="cpu", name="stub", pool_bytes=64 * _GIB, chunk_bytes=1 << 20
            ),
            memory=cluster_pb2.NodeMemory(
                cpu_num_slabs=1, cpu_slab_bytes=_GIB, weight_cache_bytes=_GIB
            ),
            incarnation=str(engine.number),
            max_batch_sequences=BATCH,
        ),
        wait_for_ready=True,
    )
    engine.epoch = answer.epoch
    return float(answer.lease_ttl_ns / 1e9)


async def run(scheduler_address: str, listen: str, vocabulary: int) -> None:
    """Serve until stdin ends."""
    pace = Pace(vocabulary)
    engines = [StubEngine(number, pace) for number in range(ENGINES)]
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((StubNode(engines),))
    server.add_insecure_port(listen)
    await server.start()
    async with open_channel(scheduler_address) as channel:
        scheduler = cluster_pb2_grpc.ClusterServiceStub(channel)
        for engine in engines:
            lease_s = await register(scheduler, listen, engine)

        async def renew() -> None:
            while True:
                for engine in engines:
                    await asyncio.sleep(lease_s / 3 / ENGINES)
                    await scheduler.RenewLease(cluster_pb2.RenewLeaseRequest(epoch=engine.epoch))

        renewing = asyncio.create_task(renew())
        await asyncio.gather(*(engine.connected.wait() for engine in engines))
        print(json.dumps({"ready": True}), flush=True)
        async for line in stdin_lines():
            print(json.dumps(pace.figures()), flush=True)
            pace.set_rate(float(line))
        renewing.cancel()
    await server.stop(0)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--vocabulary", type=int, default=0, help="see `Pace`")
    options = parser.parse_args()
    uvloop.run(run(options.scheduler, options.listen, options.vocabulary))


if __name__ == "__main__":
    main()
