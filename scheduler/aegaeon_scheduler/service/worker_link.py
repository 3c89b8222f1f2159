"""The scheduler's end of one worker's command and event stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from aegaeon.errors import ErrorReason, UnavailableError
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.status import from_rpc_error
from aegaeon.security.settings import SecuritySettings
from aegaeon.v1 import worker_pb2, worker_pb2_grpc
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.values import ModelFacts, ModelSpec
from aegaeon_scheduler.service.convert import model_facts, model_spec_message
from aegaeon_scheduler.service.worker_events import worker_event

_log = logging.getLogger(__name__)

#: Reading the headers of a checkpoint takes far less, also from a network file system.
_INSPECT_TIMEOUT_S = 60.0


if TYPE_CHECKING:  # generic in its stubs only
    _Call = grpc.aio.StreamStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse]


class WorkerLink:
    """Dials a registered worker, sends commands in order, and passes its events on."""

    def __init__(
        self,
        epoch: int,
        address: str,
        on_event: Callable[[events.Event], None],
        security: SecuritySettings,
    ) -> None:
        self.epoch = epoch
        self._on_event = on_event
        self._channel = open_channel(address, security)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._outgoing: asyncio.Queue[worker_pb2.ExecuteRequest] = asyncio.Queue()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, command: worker_pb2.ExecuteRequest) -> None:
        """Send a command after those sent before."""
        self._outgoing.put_nowait(command)

    async def inspect(self, spec: ModelSpec) -> ModelFacts:
        """Read a model's files there; raises the worker's own `AegaeonError`."""
        request = worker_pb2.InspectModelRequest(spec=model_spec_message(spec))
        try:
            answer = await self._stub.InspectModel(request, timeout=_INSPECT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            # Closing the channel cancels the call, not who waits for it.
            raise UnavailableError(
                "the worker that was reading the model's files was lost; deploy again",
                reason=ErrorReason.WORKER_LOST,
            ) from None
        return model_facts(answer.facts)

    async def close(self) -> None:
        """End the stream; no event is passed on afterwards."""
        self._closed = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._channel.close(None)

    async def _run(self) -> None:
        reason = "its command stream ended"
        call: _Call = self._stub.Execute()  # type: ignore[call-arg]  # written to by `_send`
        sender = asyncio.get_running_loop().create_task(self._send(call))
        try:
            async for message in call:
                event = worker_event(self.epoch, message)
                if event is not None and not self._closed:
                    self._on_event(event)
        except grpc.aio.AioRpcError as error:
            reason = f"its command stream broke: {error.code().name}: {error.details()}"
        except Exception:  # a message that breaks the contract: this worker cannot be trusted
            _log.exception("an event of the worker of epoch %d cannot be handled", self.epoch)
            reason = "it sent an event that cannot be handled; the scheduler's log has the details"
        finally:
            sender.cancel()
            call.cancel()
        if not self._closed:
            self._on_event(events.WorkerLost(self.epoch, reason))

    async def _send(self, call: _Call) -> None:
        hello = worker_pb2.ExecuteRequest(hello=worker_pb2.Hello(epoch=self.epoch))
        # A broken stream is reported by the reading side, which knows its status.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(hello)
            while True:
                await call.write(await self._outgoing.get())
