"""The client of the scheduler's load test: many sessions in one process.

It counts tokens and tells how old they are, see `benchmarks.send_time`. Run by
`benchmarks.load_bench`, which writes a line to stdin whenever it wants the figures of the time
since the line before, as one JSON line. ``--way`` tells how tokens are read: ``session`` (messages
of the contract), ``generate`` (one call per request) or ``python`` (the session of the Python
client, a `StepOutput` per token).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
import uvloop

from aegaeon.client.session import Session
from aegaeon.rpc.channel import open_channel
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from benchmarks.send_time import age, now
from benchmarks.stdin_lines import stdin_lines

_PROMPT = list(range(1, 65))


class Meter:
    """Tokens and their ages since the figures were last asked for."""

    def __init__(self) -> None:
        self.messages = 0
        self.ends = 0
        self._ages: Counter[int] = Counter()

    def add(self, token: int, count: int) -> None:
        """``count`` tokens of one step have arrived."""
        self._ages[age(token, now())] += count

    def figures(self) -> dict[str, float]:
        """Counts and ages in ms since the call before, and the processor time so far."""
        ages, self._ages = sorted(self._ages.items()), Counter()
        tokens = sum(count for _, count in ages)
        figures = {
            "tokens": tokens,
            "messages": self.messages,
            "ends": self.ends,
            "cpu_s": time.process_time(),
            "p50_ms": _quantile(ages, tokens, 0.5),
            "p99_ms": _quantile(ages, tokens, 0.99),
            "max_ms": _quantile(ages, tokens, 1.0),
        }
        self.messages = self.ends = 0
        return figures


@dataclass(frozen=True)
class Plan:
    """Requests, which go to the engines in turn."""

    engines: int
    numbers: list[int]
    new_tokens: int


def request(plan: Plan, number: int, new_tokens: int) -> inference_pb2.GenerateRequest:
    """Request ``number``."""
    return inference_pb2.GenerateRequest(
        model=f"model{number % plan.engines}",
        prompt_token_ids=_PROMPT,
        stop=inference_pb2.StopConditions(max_new_tokens=new_tokens, ignore_eos=True),
    )


async def read_session(channel: grpc.aio.Channel, plan: Plan, meter: Meter) -> None:
    """Requests that are opened again when they have ended; the first ones have any length, so that
    they do not end together."""
    call = inference_pb2_grpc.InferenceServiceStub(channel).Session()  # type: ignore[call-arg]

    async def submit(number: int, count: int) -> None:
        message = inference_pb2.SessionSubmit(
            stream_id=number, request=request(plan, number, count)
        )
        await call.write(inference_pb2.SessionRequest(submit=message))

    for number in plan.numbers:
        await submit(number, random.Random(number).randint(1, plan.new_tokens))
    async for message in call:
        meter.messages += 1
        position = 0
        for count in message.step_token_counts:
            meter.add(message.token_ids[position], count)
            position += count
        for delta in message.deltas:
            meter.ends += 1
            await submit(delta.stream_id, plan.new_tokens)


async def read_generate(channel: grpc.aio.Channel, plan: Plan, meter: Meter) -> None:
    """One call per request."""
    stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def one(number: int) -> None:
        async for message in stub.Generate(request(plan, number, plan.new_tokens)):
            meter.messages += 1
            for token in message.token_ids:
                meter.add(token, 1)

    await asyncio.gather(*map(one, plan.numbers))


async def read_python(channel: grpc.aio.Channel, plan: Plan, meter: Meter) -> None:
    """The Python client's own session, whose steps are counted and dropped ten times a second; how
    old tokens are is looked at for the last of every request."""
    async with Session(channel) as session:
        opened = [session.submit(request(plan, n, plan.new_tokens)) for n in plan.numbers]
        while True:
            await asyncio.sleep(0.1)
            for pending in opened:
                if pending.steps:
                    meter.add(pending.steps[-1].new_token_id, len(pending.steps))
                    pending.steps.clear()


WAYS: dict[str, Callable[[grpc.aio.Channel, Plan, Meter], Awaitable[None]]] = {
    "session": read_session,
    "generate": read_generate,
    "python": read_python,
}


async def run(options: argparse.Namespace) -> None:
    """Read until stdin ends."""
    meter = Meter()
    channels = [open_channel(options.scheduler) for _ in range(options.channels)]
    plans = [Plan(options.engines, [], options.new_tokens) for _ in channels]
    for number in range(options.requests):  # every channel has requests on every engine
        plans[number // options.engines % len(channels)].numbers.append(number)
    tasks = [
        asyncio.ensure_future(WAYS[options.way](channel, plan, meter))
        for channel, plan in zip(channels, plans, strict=True)
    ]
    print(json.dumps({"ready": True}), flush=True)
    async for _ in stdin_lines():
        for task in tasks:
            if task.done():
                task.result()
        print(json.dumps(meter.figures()), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close(None)


def _quantile(ages: list[tuple[int, int]], total: int, share: float) -> float:
    """Nearest rank, of ages in units of 10 microseconds, in ms."""
    rank, seen = math.ceil(share * total), 0
    for value, count in ages:
        seen += count
        if seen >= rank:
            return value / 100
    return 0.0


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--channels", type=int, required=True)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
