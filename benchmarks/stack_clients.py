"""The callers of `benchmarks.gateway_stack`: all prompts at once, streamed, from one process.

For every line of stdin they ask everything once more, over HTTP or through `LLMService`, and answer
with one line of JSON: seconds to the end of the last stream, processor seconds of this process up
to then, and the text of every stream, which is made afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from aegaeon import LLMService, Request
from aegaeon.utils import get_tokenizer
from benchmarks.http_post import Post
from benchmarks.stdin_lines import stdin_lines
from benchmarks.workload import Workload, many_prompts

_END = b"data: [DONE]"


class Streamed(Post):
    """One streamed completion, kept as it came until all are over."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("/v1/completions", body)
        self._pieces: list[bytes] = []
        self._tail = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def took(self, data: bytes) -> None:
        """Keep it; the end may be spread over two pieces."""
        self._pieces.append(data)
        joined = self._tail + data
        if _END in joined and not self.ended.done():
            self.ended.set_result(None)
        self._tail = joined[-len(_END) :]

    def connection_lost(self, problem: Exception | None) -> None:
        """Before the end, nobody else would tell."""
        if not self.ended.done():
            self.ended.set_exception(problem or ConnectionError("the gateway hung up"))

    def text(self) -> str:
        """Of all events; raises for an event that is an error."""
        lines = unchunked(b"".join(self._pieces)).decode().splitlines()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def unchunked(answer: bytes) -> bytes:
    """The body of an answer of HTTP's chunks."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(body)


def _same(stream: Streamed) -> Streamed:
    return stream


class HttpCallers:
    """A connection for every prompt."""

    def __init__(self, address: str, model: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._model = model

    async def run(self, workload: Workload) -> Callable[[], list[str]]:
        """Returns when the last stream is over; what it returns makes the texts."""
        fields: dict[str, Any] = {
            "model": self._model,
            "max_tokens": workload.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "prefix_caching": False,
            "stream": True,
        }
        streams = [Streamed({**fields, "prompt": prompt}) for prompt in workload.prompts]
        connect = asyncio.get_running_loop().create_connection
        opened = await asyncio.gather(
            *(connect(partial(_same, stream), *self._place) for stream in streams)
        )
        await asyncio.gather(*(stream.ended for stream in streams))
        for transport, _ in opened:
            transport.close()
        return lambda: [stream.text() for stream in streams]


class GrpcCallers:
    """A stream of one `LLMService` for every prompt."""

    def __init__(self, address: str, model: str, path: str) -> None:
        self._service = LLMService(address=address)
        self._model = model
        self._tokenizer = get_tokenizer(path)

    async def run(self, workload: Workload) -> Callable[[], list[str]]:
        """As `HttpCallers.run`."""
        tokens = await asyncio.gather(
            *(self._tokens(number, workload) for number in range(len(workload.prompts)))
        )
        decode = partial(self._tokenizer.decode, skip_special_tokens=True)
        return lambda: [str(decode(ids)) for ids in tokens]

    async def _tokens(self, number: int, workload: Workload) -> list[int]:
        request = Request(
            model=self._model,
            arrival_time=0.0,
            request_id=number,
            prompt_token_ids=workload.prompts[number],
            decode_tokens=workload.new_tokens,
            ignore_eos=True,
            prefix_caching=False,
        )
        return [step.new_token_id async for step in self._service.stream_async(request)]


async def serve(callers: HttpCallers | GrpcCallers, workload: Workload) -> None:
    """Rounds until stdin ends."""
    print(json.dumps({"ready": True}), flush=True)
    async for _ in stdin_lines():
        start, cpu = time.perf_counter(), time.process_time()
        texts = await callers.run(workload)
        figures = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
        print(json.dumps({**figures, "texts": texts()}), flush=True)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("kind", choices=("http", "grpc"))
    add("--address", required=True, help="of the gateway or the scheduler")
    add("--model", required=True)
    add("--model-path", required=True)
    add("--streams", type=int, required=True)
    add("--prompt-tokens", type=int, required=True)
    add("--new-tokens", type=int, required=True)
    options = parser.parse_args()
    sizes = options.streams, options.prompt_tokens, options.new_tokens
    workload = many_prompts(Path(options.model_path), *sizes)
    if options.kind == "http":
        uvloop.run(serve(HttpCallers(options.address, options.model), workload))
    else:
        callers = GrpcCallers(options.address, options.model, options.model_path)
        uvloop.run(serve(callers, workload))


if __name__ == "__main__":
    main()
