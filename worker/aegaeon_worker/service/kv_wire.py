"""Brings KV from other nodes over their KvService."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable

import grpc

from aegaeon.errors import AegaeonError
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.status import from_rpc_error
from aegaeon.security.settings import SecuritySettings
from aegaeon.v1 import kv_pb2, kv_pb2_grpc
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.service import convert

logger = logging.getLogger(__name__)

#: A transfer from which nothing comes for so long has broken off.
_STALL_S = 5.0
#: Below this pace it is given up, since computing is hardly slower.
_LEAST_BYTES_PER_S = 10e6
#: Attempts in a row of which nothing comes.
_FRUITLESS_ATTEMPTS = 3
_RETRY_S = 0.2
#: Answers that another attempt would get again.
_FINAL = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)
#: Other workers to which connections are kept.
_MOST_CHANNELS = 32

Post = Callable[[FetchEnded], None]
"""Takes the end of a transfer; from any thread, never blocks."""


class BrokenTransferError(AegaeonError):
    """Bytes that came are not those that follow."""


class KvWire:
    """Transfers on the running loop; what broke off is resumed after the last byte that came."""

    def __init__(self, security: SecuritySettings) -> None:
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._transfers: set[asyncio.Task[None]] = set()
        self._closed = False

    def carry(self, post: Post, arrival: Arrival) -> None:
        """Begin to fetch; ``post`` gets its end, once it writes no more. From any thread."""
        self._loop.call_soon_threadsafe(self._begin, post, arrival)

    async def close(self) -> None:
        """Break off what is under way; nothing comes from now on."""
        self._closed = True
        for transfer in list(self._transfers):
            transfer.cancel()
        await asyncio.gather(*self._transfers, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(grace=None)

    def _begin(self, post: Post, arrival: Arrival) -> None:
        if self._closed:
            post(FetchEnded(arrival, 0, 0))
            return
        transfer = self._loop.create_task(self._transfer(post, arrival), name="kv transfer")
        self._transfers.add(transfer)
        transfer.add_done_callback(self._transfers.discard)

        def give_up() -> None:
            self._loop.call_soon_threadsafe(transfer.cancel)

        arrival.when_closed(give_up)

    async def _transfer(self, post: Post, arrival: Arrival) -> None:
        start_ns = time.perf_counter_ns()
        attempts = _Attempts(arrival)
        limit_s = _STALL_S + arrival.nbytes / _LEAST_BYTES_PER_S
        try:
            async with asyncio.timeout(limit_s):
                stub = kv_pb2_grpc.KvServiceStub(await self._channel(arrival.place.address))
                while await attempts.go_on():
                    await attempts.make(stub)
        except TimeoutError:
            attempts.broke(f"slower than {_LEAST_BYTES_PER_S / 1e6:.0f} MB/s")
        finally:
            elapsed_ns = time.perf_counter_ns() - start_ns
            post(FetchEnded(arrival, elapsed_ns, attempts.interruptions))

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.pop(address, None)
        if channel is None:
            channel = open_channel(address, self._security)
        self._channels[address] = channel  # the latest comes last
        if len(self._channels) > _MOST_CHANNELS:
            await self._channels.pop(next(iter(self._channels))).close(grace=None)
        return channel


class _Attempts:
    """One transfer, with as many calls as it takes."""

    def __init__(self, arrival: Arrival) -> None:
        self.interruptions = 0
        self._arrival = arrival
        self._fruitless = 0
        self._over = False

    async def go_on(self) -> bool:
        """Whether another call is worth it; waits a moment after one that failed."""
        arrival = self._arrival
        if self._over or arrival.complete or arrival.closed:
            return False
        if self._fruitless >= _FRUITLESS_ATTEMPTS:
            return False
        if self.interruptions:
            await asyncio.sleep(_RETRY_S)
        return True

    async def make(self, stub: kv_pb2_grpc.KvServiceAsyncStub) -> None:
        """One call, from where the one before broke off."""
        before = self._arrival.received
        try:
            await self._read(stub)
        except grpc.aio.AioRpcError as rpc_error:
            self._over |= rpc_error.code() in _FINAL
            self.broke(str(from_rpc_error(rpc_error)))
        except BrokenTransferError as error:
            self.broke(str(error))
        except TimeoutError:
            self._over |= self._arrival.received == before
            self.broke(f"nothing came for {_STALL_S:.0f} s")
        self._fruitless = 0 if self._arrival.received > before else self._fruitless + 1

    def broke(self, reason: str) -> None:
        """Note an interruption."""
        self.interruptions += 1
        arrival = self._arrival
        logger.warning(
            "KV of sequence %d from %s broke off after %d of %d bytes: %s",
            arrival.sequence,
            arrival.place.address,
            arrival.received,
            arrival.nbytes,
            reason,
        )

    async def _read(self, stub: kv_pb2_grpc.KvServiceAsyncStub) -> None:
        arrival = self._arrival
        call = stub.ReadKv(
            kv_pb2.ReadKvRequest(
                kv=convert.place_to_pb(arrival.place),
                content=arrival.content,
                first_byte=arrival.received,
            )
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_STALL_S) as stall:
                async for piece in call:
                    if not arrival.write(_checked(piece, arrival)):
                        return
                    stall.reschedule(loop.time() + _STALL_S)
        finally:
            call.cancel()
        if not arrival.complete:
            raise BrokenTransferError("the stream ended early")


def _checked(piece: kv_pb2.ReadKvResponse, arrival: Arrival) -> bytes:
    data = piece.data  # once: every access makes another copy
    if piece.offset != arrival.received or arrival.received + len(data) > arrival.nbytes:
        raise BrokenTransferError(
            f"bytes {piece.offset} to {piece.offset + len(data)} came after {arrival.received} of "
            f"{arrival.nbytes}"
        )
    if zlib.crc32(data) != piece.crc32:
        raise BrokenTransferError(f"bytes {piece.offset} to {piece.offset + len(data)} are damaged")
    return data
