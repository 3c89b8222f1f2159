"""A connection that can be cut, frozen and slowed down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any


class Wire:
    """Forwards every connection to a unix socket to another one, until told otherwise."""

    def __init__(self, listen: str, target: str) -> None:
        self.address = f"unix:{listen}"
        self._listen = listen
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._latency_s = 0.0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self._listen)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        self._flowing.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def freeze(self, duration_s: float) -> None:
        """Nothing moves, and nobody is told."""
        self._flowing.clear()
        await asyncio.sleep(duration_s)
        self._flowing.set()

    async def slow(self, latency_s: float, duration_s: float) -> None:
        """Everything arrives late."""
        self._latency_s = latency_s
        await asyncio.sleep(duration_s)
        self._latency_s = 0.0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if self._latency_s:
                    await asyncio.sleep(self._latency_s)
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            sink.transport.abort()
        finally:
            self._writers.discard(sink)
            with contextlib.suppress(OSError, RuntimeError):
                sink.close()


class Wires:
    """All wires of a cluster, on a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self.wires: dict[str, Wire] = {}

    def add(self, name: str, listen: Path, target: str) -> Wire:
        async def make() -> Wire:
            wire = Wire(str(listen), target.removeprefix("unix:"))
            await wire.open()
            return wire

        self.wires[name] = self._run(make())
        return self.wires[name]

    def cut(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.wires[name].cut)

    def freeze(self, name: str, duration_s: float) -> None:
        self._start(self.wires[name].freeze(duration_s))

    def slow(self, name: str, latency_s: float, duration_s: float) -> None:
        self._start(self.wires[name].slow(latency_s, duration_s))

    def close(self) -> None:
        for wire in self.wires.values():
            self._run(wire.close())
            Path(wire.address.removeprefix("unix:")).unlink(missing_ok=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)
