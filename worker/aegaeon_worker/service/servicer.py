"""WorkerService: validate, convert, hand over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from aegaeon.errors import (
    AegaeonError,
    ErrorReason,
    InvalidRequestError,
    ModelLoadError,
    PreconditionError,
)
from aegaeon.rpc.status import abort
from aegaeon.v1 import worker_pb2, worker_pb2_grpc
from aegaeon_worker.engine.commands import Attach, Command
from aegaeon_worker.engine.loading import ModelPreparer
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.passing_thread import on_passing_thread
from aegaeon_worker.service import convert
from aegaeon_worker.service.execute_stream import ExecuteStream
from aegaeon_worker.service.metrics import WorkerMetrics
from aegaeon_worker.service.sequence_spans import SequenceSpans

logger = logging.getLogger(__name__)


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """One engine, or one rank of one, behind gRPC."""

    def __init__(
        self,
        status: Callable[[], EngineStatus],
        submit: Callable[[Command], None] | None,
        preparer: ModelPreparer,
        metrics: WorkerMetrics | None = None,
        spans: SequenceSpans | None = None,
    ) -> None:
        """``submit`` hands a command to the engine; none where rank 0 drives this rank."""
        self._status = status
        self._submit = submit
        self._preparer = preparer
        self._metrics = metrics
        self._spans = spans
        self._stream: ExecuteStream | None = None
        #: Called when the open stream has ended without another one in its place.
        self.on_stream_end: Callable[[], None] = lambda: None

    async def Execute(  # noqa: N802 (the contract's name)
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: Any,
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """The command and event stream."""
        try:
            stream = self._open(await anext(aiter(request_iterator), None))
        except AegaeonError as error:
            await abort(context, error)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        lost: AegaeonError | None = None
        try:
            async for event in stream.events():
                if self._metrics is not None:
                    self._metrics.on_event(event)
                if self._spans is not None:
                    self._spans.on_event(event)
                yield convert.event_to_pb(event)
        except AegaeonError as error:
            lost = error
        finally:
            reader.cancel()
            self._detach(stream)
        if lost is not None:
            await abort(context, lost)
        if self._stream is not None:
            await abort(context, _superseded(self._stream.epoch))

    async def InspectModel(  # noqa: N802 (the contract's name)
        self, request: worker_pb2.InspectModelRequest, context: Any
    ) -> worker_pb2.InspectModelResponse:
        """Facts from a model's files."""
        try:
            spec = convert.spec_from_pb(request.spec)
            facts = await on_passing_thread(self._preparer.inspect, spec)
        except AegaeonError as error:
            await abort(context, error)
        except Exception as error:  # a checkpoint may break the libraries that read it in any way
            logger.exception("%s: its files cannot be read", request.spec.name)
            reason = f"{request.spec.path}: reading it failed: {type(error).__name__}: {error}"
            await abort(context, ModelLoadError(reason, metadata={"path": request.spec.path}))
        return worker_pb2.InspectModelResponse(facts=convert.facts_to_pb(facts))

    async def GetStatus(  # noqa: N802 (the contract's name)
        self, request: worker_pb2.GetStatusRequest, context: Any
    ) -> worker_pb2.GetStatusResponse:
        """What the engine last said of itself; never waits for it."""
        status = self._status()
        return worker_pb2.GetStatusResponse(
            memory=convert.memory_to_pb(status.memory),
            models=[convert.loaded_to_pb(model) for model in status.models],
            current_model=status.current_model,
            epoch=self._stream.epoch if self._stream else 0,
        )

    def close_streams(self) -> None:
        """End the open stream, for shutdown."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self, first: worker_pb2.ExecuteRequest | None) -> ExecuteStream:
        if first is None or first.WhichOneof("command") != "hello":
            raise InvalidRequestError("the first command of an Execute stream must be hello")
        if self._submit is None:
            raise PreconditionError("this worker is not rank 0 of its engine; dial the one that is")
        epoch = first.hello.epoch
        if self._stream is not None:
            if epoch <= self._stream.epoch:
                raise _superseded(self._stream.epoch)
            self._stream.close()
        self._stream = ExecuteStream(epoch)
        self._hand_over(Attach(self._stream.publish))
        logger.info("epoch %d: the scheduler's command stream is open", epoch)
        return self._stream

    async def _read(
        self, requests: AsyncIterator[worker_pb2.ExecuteRequest], stream: ExecuteStream
    ) -> None:
        """Hand commands over until the stream ends or another one takes its place."""
        try:
            async for request in requests:
                if self._stream is not stream:
                    return
                self._hand_over(convert.command_from_pb(request))
        except AegaeonError:
            logger.exception("epoch %d: command refused, closing the stream", stream.epoch)
        finally:
            stream.close()

    def _hand_over(self, command: Command) -> None:
        if self._spans is not None:
            self._spans.on_command(command)
        assert self._submit is not None
        self._submit(command)

    def _detach(self, stream: ExecuteStream) -> None:
        if self._stream is stream:
            self._stream = None
            self._hand_over(Attach(None))
            logger.info("epoch %d: the scheduler's command stream has ended", stream.epoch)
            self.on_stream_end()


def _superseded(epoch: int) -> PreconditionError:
    return PreconditionError(
        f"a command stream of epoch {epoch} is open; register again for a newer one",
        reason=ErrorReason.STALE_LEASE,
    )
