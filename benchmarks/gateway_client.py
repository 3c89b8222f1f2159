"""The callers of the gateway's load test: many streams in one process, read and counted.

Run by `benchmarks.gateway_load`, which writes a line to stdin whenever it wants the figures of the
time since the line before, as one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import partial
from itertools import cycle, islice

import uvloop

from benchmarks.http_post import Post
from benchmarks.stdin_lines import stdin_lines

#: More than any measurement lasts.
_ENDLESS = 30_000
_EVENT = b'data: {"id"'


class Caller(Post):
    """One streamed chat; what arrives is counted, and not looked at any further."""

    def __init__(self, model: str) -> None:
        messages = [{"role": "user", "content": "What is a KV cache?"}]
        body = {"model": model, "messages": messages, "stream": True, "ignore_eos": True}
        super().__init__("/v1/chat/completions", {**body, "max_tokens": _ENDLESS})
        self.events = 0
        self.bytes = 0
        self._tail = b""

    def took(self, data: bytes) -> None:
        """Count; an event may be spread over two pieces."""
        joined = self._tail + data
        self.events += joined.count(_EVENT)
        self.bytes += len(data)
        self._tail = data[1 - len(_EVENT) :]


def _same(caller: Caller) -> Caller:
    return caller


async def run(address: str, models: list[str], streams: int) -> None:
    """Serve figures until stdin ends."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    callers = [Caller(model) for model in islice(cycle(models), streams)]
    for caller in callers:
        await loop.create_connection(partial(_same, caller), host, int(port))
    print(json.dumps({"ready": True}), flush=True)
    async for _ in stdin_lines():
        figures = {
            "events": sum(caller.events for caller in callers),
            "least": min(caller.events for caller in callers),
            "bytes": sum(caller.bytes for caller in callers),
            "cpu_s": time.process_time(),
        }
        for caller in callers:
            caller.events = caller.bytes = 0
        print(json.dumps(figures), flush=True)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--streams", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(run(options.address, options.models, options.streams))


if __name__ == "__main__":
    main()
