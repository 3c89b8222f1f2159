"""A worker without a model: registers, keeps its lease, runs turns, makes predictable tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc

from aegaeon.capability import Capability
from aegaeon.rpc.channel import open_channel, server_options
from aegaeon.rpc.needs import WORKER, contract_names
from aegaeon.rpc.status import abort, to_detail
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc, model_pb2, worker_pb2, worker_pb2_grpc
from tests.scheduler.stub_model import CONTEXT, EOS, VOCAB, StubSequence, tell, tell_prompts
from tests.scheduler.stub_settings import StubSettings, StubTurn, broken


class StubWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Start it with `start`; `kill` drops everything at once, as kill -9 would."""

    def __init__(self, scheduler: str, settings: StubSettings | None = None) -> None:
        self.settings = settings or StubSettings()
        self.epoch = 0
        self.sequences: dict[int, StubSequence] = {}
        self.models: dict[str, model_pb2.ModelSpec] = {}
        self.turn_log: list[str] = []
        self.steps = 0
        #: Handed off and not released, by handle; and tokens of KV that were taken over.
        self.held: set[int] = set()
        self.imported = 0
        self.last_spec: worker_pb2.SequenceSpec | None = None
        #: What it was sent and would have ignored.
        self.not_known: set[Capability] = set()
        self._turns: deque[StubTurn] = deque()
        self._out: asyncio.Queue[worker_pb2.ExecuteResponse] = asyncio.Queue()
        self._work = asyncio.Event()
        self._channel = open_channel(scheduler)
        self._scheduler = cluster_pb2_grpc.ClusterServiceStub(self._channel)
        self._server = grpc.aio.server(options=server_options())
        self._tasks: list[asyncio.Task[Any]] = []
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)

    async def start(self) -> StubWorker:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._address = f"127.0.0.1:{port}"
        await self.register()
        self._tasks += [
            asyncio.create_task(self._renew()),
            asyncio.create_task(self._run_turns()),
        ]
        return self

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(0)
        self.sequences.clear()
        await self._channel.close()

    async def goodbye(self) -> None:
        request = cluster_pb2.DeregisterWorkerRequest(epoch=self.epoch)
        await self._scheduler.DeregisterWorker(request)
        await self.kill()

    def send(self, event: worker_pb2.ExecuteResponse) -> None:
        """Send an event of the test's own."""
        self._out.put_nowait(event)

    def stop_renewing(self) -> None:
        """Hang, as a stopped process does: the stream stays open, the lease ends."""
        for task in self._tasks:
            task.cancel()

    async def Execute(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        self.sequences.clear()
        self._turns.clear()
        self._out = asyncio.Queue()
        hello = await anext(request_iterator)
        assert hello.WhichOneof("command") == "hello"
        loaded = [self._loaded(spec) for spec in self.models.values()]
        yield worker_pb2.ExecuteResponse(ready=worker_pb2.Ready(models=loaded))
        reader = asyncio.create_task(self._take_commands(request_iterator))
        try:
            while True:
                yield await self._out.get()
        finally:
            reader.cancel()

    async def InspectModel(  # noqa: N802
        self, request: worker_pb2.InspectModelRequest, context: Any
    ) -> worker_pb2.InspectModelResponse:
        await asyncio.sleep(self.settings.inspect_s)
        if request.spec.name in self.settings.broken:
            await abort(context, broken(request.spec.path))
        return worker_pb2.InspectModelResponse(facts=self._facts(request.spec))

    async def register(self) -> None:
        settings = self.settings
        answer = await self._scheduler.RegisterWorker(
            cluster_pb2.RegisterWorkerRequest(
                contract_version=settings.contract_version,
                capabilities=contract_names(settings.capabilities),
                node_id=settings.node_id,
                worker_index=settings.worker_index,
                address=self._address,
                device=cluster_pb2.DeviceFacts(
                    kind="cpu", name="stub", pool_bytes=settings.pool_bytes, chunk_bytes=1 << 20
                ),
                memory=cluster_pb2.NodeMemory(
                    cpu_num_slabs=4,
                    cpu_slab_bytes=1 << 20,
                    weight_cache_bytes=settings.weight_cache_bytes,
                ),
                incarnation=f"{id(self)}",
                role=f"ENGINE_ROLE_{settings.role}",
                max_batch_sequences=settings.max_batch_sequences,
            ),
            wait_for_ready=True,
        )
        self.epoch = answer.epoch
        self._ttl_s = answer.lease_ttl_ns / 1e9

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                await self._scheduler.RenewLease(cluster_pb2.RenewLeaseRequest(epoch=self.epoch))
            except grpc.aio.AioRpcError:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self.register()

    async def _take_commands(self, commands: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        async for command in commands:
            kind = command.WhichOneof("command")
            await getattr(self, f"_on_{kind}")(getattr(command, kind))

    async def _on_load_model(self, command: worker_pb2.LoadModel) -> None:
        spec = command.spec
        await asyncio.sleep(self.settings.load_s)
        if spec.name in self.settings.broken:
            failed = worker_pb2.ModelFailed(model=spec.name, error=to_detail(broken(spec.path)))
            self._out.put_nowait(worker_pb2.ExecuteResponse(model_failed=failed))
            return
        self.models[spec.name] = spec
        progress = worker_pb2.LoadProgress(model=spec.name, packed_bytes=1, total_bytes=1)
        self._out.put_nowait(worker_pb2.ExecuteResponse(load_progress=progress))
        loaded = worker_pb2.ModelLoaded(model=self._loaded(spec))
        self._out.put_nowait(worker_pb2.ExecuteResponse(model_loaded=loaded))

    async def _on_unload_model(self, command: worker_pb2.UnloadModel) -> None:
        self.models.pop(command.model, None)
        unloaded = worker_pb2.ModelUnloaded(model=command.model)
        self._out.put_nowait(worker_pb2.ExecuteResponse(model_unloaded=unloaded))

    async def _on_add_sequences(self, command: worker_pb2.AddSequences) -> None:
        for spec in command.sequences:
            self.last_spec = spec
            self.not_known |= WORKER.needs(spec) - self.settings.capabilities
            prompt = spec.prompt_token_ids
            base = sum(prompt) * 31 + len(prompt) * 7
            self.sequences[spec.handle] = StubSequence(spec, base, len(spec.generated_token_ids))

    async def _on_release_sequences(self, command: worker_pb2.ReleaseSequences) -> None:
        self.held.difference_update(command.handles)

    async def _on_cancel_sequences(self, command: worker_pb2.CancelSequences) -> None:
        known = [handle for handle in command.handles if self.sequences.pop(handle, None)]
        if known:
            step = worker_pb2.StepBatch(
                handles=known, token_ids=[0] * len(known), finish_reasons=[3] * len(known)
            )
            self._out.put_nowait(worker_pb2.ExecuteResponse(step=step))

    async def _on_queue_turn(self, command: worker_pb2.QueueTurn) -> None:
        members = dict.fromkeys(command.handles)
        self._turns.append(
            StubTurn(command.turn_id, command.model, members, command.quota_ns, command.stage)
        )
        self._work.set()

    async def _on_join_turn(self, command: worker_pb2.JoinTurn) -> None:
        for turn in self._turns:
            if turn.turn_id == command.turn_id:
                turn.members.update(dict.fromkeys(command.handles))

    async def _on_leave_turn(self, command: worker_pb2.LeaveTurn) -> None:
        for turn in self._turns:
            if turn.turn_id == command.turn_id:
                for handle in command.handles:
                    turn.members.pop(handle, None)

    async def _on_limit_turn(self, command: worker_pb2.LimitTurn) -> None:
        for turn in self._turns:
            if turn.turn_id == command.turn_id:
                turn.quota_ns = command.quota_ns

    async def _run_turns(self) -> None:
        while True:
            if not self._turns:
                self._work.clear()
                await self._work.wait()
                continue
            await self._run_turn(self._turns[0])

    async def _run_turn(self, turn: StubTurn) -> None:
        switched = not self.turn_log or self.turn_log[-1] != turn.model
        self.turn_log.append(turn.model)
        started = worker_pb2.TurnStarted(
            turn_id=turn.turn_id, switched=switched, switch_time_ns=1_000_000
        )
        self._out.put_nowait(worker_pb2.ExecuteResponse(turn_started=started))
        loop = asyncio.get_running_loop()
        begin, steps, reason = loop.time(), 0, 1
        while self._step(turn):
            steps += 1
            await asyncio.sleep(self.settings.step_s)
            if turn.quota_ns and (loop.time() - begin) * 1e9 >= turn.quota_ns:
                reason = 2
                break
        ended = worker_pb2.TurnEnded(
            turn_id=turn.turn_id,
            reason=reason,
            steps=steps,
            elapsed_ns=int(1e9 * (loop.time() - begin)),
        )
        if turn in self._turns:
            self._turns.remove(turn)
            self._out.put_nowait(worker_pb2.ExecuteResponse(turn_ended=ended))

    def _step(self, turn: StubTurn) -> bool:
        """One step of every member; False when there are none."""
        handles, tokens, reasons, specs = [], [], [], []
        begun: list[worker_pb2.SequenceSpec] = []
        for handle in list(turn.members):
            sequence = self.sequences.get(handle)
            if sequence is None:
                del turn.members[handle]
                continue
            self._import(sequence)
            if not sequence.made:
                begun.append(sequence.spec)
            token = sequence.next_token()
            handles.append(handle)
            specs.append(sequence.spec)
            tokens.append(token)
            reasons.append(sequence.finish(token))
            if reasons[-1]:
                del turn.members[handle], self.sequences[handle]
        if not handles or turn not in self._turns:
            return False
        self.steps += 1
        step = worker_pb2.StepBatch(
            turn_id=turn.turn_id,
            handles=handles,
            token_ids=tokens,
            finish_reasons=reasons,
            step_time_ns=int(self.settings.step_s * 1e9),
            prefill_tokens=sum(len(spec.prompt_token_ids) for spec in begun),
            decode_sequences=len(handles) - len(begun),
        )
        tell(step, specs)
        tell_prompts(step, begun)
        self._out.put_nowait(worker_pb2.ExecuteResponse(step=step))
        if turn.stage == cluster_pb2.TURN_STAGE_PREFILL:
            self._hand_off(turn)
        return True

    def _import(self, sequence: StubSequence) -> None:
        spec = sequence.spec
        if spec.kv.num_tokens and sequence.made == len(spec.generated_token_ids):
            self.imported += spec.kv.num_tokens
            imported = worker_pb2.SequenceImported(
                handle=spec.handle,
                imported_tokens=spec.kv.num_tokens,
                bytes=1024,
                copy_time_ns=7,
            )
            self._out.put_nowait(worker_pb2.ExecuteResponse(sequence_imported=imported))

    def _hand_off(self, turn: StubTurn) -> None:
        """Every member has its first token now, so that every one that is left goes on."""
        for handle in turn.members:
            spec = self.sequences.pop(handle).spec
            known = len(spec.prompt_token_ids) + len(spec.generated_token_ids)
            run = worker_pb2.BlockRun(slab=1, slab_generation=2, first_block=3, num_blocks=4)
            place = worker_pb2.KvPlace(num_tokens=known, block_bytes=1024, runs=[run])
            handed = worker_pb2.SequenceHandedOff(handle=handle, kv=place, copy_time_ns=5)
            self.held.add(handle)
            self._out.put_nowait(worker_pb2.ExecuteResponse(sequence_handed_off=handed))
        turn.members.clear()

    def _loaded(self, spec: model_pb2.ModelSpec) -> worker_pb2.LoadedModel:
        return worker_pb2.LoadedModel(spec=spec, facts=self._facts(spec))

    def _facts(self, spec: model_pb2.ModelSpec) -> model_pb2.ModelFacts:
        return model_pb2.ModelFacts(
            fingerprint=f"of {spec.path}",
            packed_bytes=self.settings.packed_bytes,
            kv_block_bytes=1024,
            kv_block_tokens=16,
            vocab_size=VOCAB,
            max_model_len=spec.max_model_len or CONTEXT,
            eos_token_ids=EOS,
        )
