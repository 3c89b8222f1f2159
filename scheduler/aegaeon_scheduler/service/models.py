"""ModelService: which models are served, and where."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Any

from aegaeon.errors import AegaeonError, InvalidRequestError, NotFoundError
from aegaeon.rpc.status import abort, to_detail
from aegaeon.security.guard import current_caller
from aegaeon.tool_parsers import check_tool_parser
from aegaeon.v1 import model_pb2, model_pb2_grpc
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.admission import check_objective
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import ModelSpec
from aegaeon_scheduler.service.convert import model_facts_message, model_spec, model_spec_message
from aegaeon_scheduler.service.driver import Driver

_MAX_NAME = 256
_MAX_PATH = 4096


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Lists, deploys and removes models."""

    def __init__(self, driver: Driver, keep: Callable[[], Awaitable[None]]) -> None:
        """``keep`` returns once what is deployed outlives this scheduler, where anything does."""
        self._driver = driver
        self._keep = keep

    async def ListModels(  # noqa: N802 - named by the contract
        self, request: model_pb2.ListModelsRequest, context: Any
    ) -> model_pb2.ListModelsResponse:
        """Every model that has a replica and that the caller may use."""
        try:
            await self._driver.rejoining.until_all_known()
        except AegaeonError as error:
            await abort(context, error)
        permits = current_caller.get().permits_model
        infos = model_infos(self._driver.cluster.state)
        return model_pb2.ListModelsResponse(models=[i for i in infos if permits(i.spec.name)])

    async def GetModel(  # noqa: N802 - named by the contract
        self, request: model_pb2.GetModelRequest, context: Any
    ) -> model_pb2.GetModelResponse:
        """One model."""
        try:
            current_caller.get().check_model(request.name)
            await self._driver.rejoining.until_known(request.name)
        except AegaeonError as refusal:
            await abort(context, refusal)
        models = {model.spec.name: model for model in model_infos(self._driver.cluster.state)}
        if request.name not in models:
            error = NotFoundError(
                f"model {request.name!r} is not deployed", metadata={"model": request.name}
            )
            await abort(context, error)
        return model_pb2.GetModelResponse(model=models[request.name])

    async def DeployModel(  # type: ignore[override]  # noqa: N802
        self, request: model_pb2.DeployModelRequest, context: Any
    ) -> None:
        """Stream the progress of a deployment, then its result."""
        try:
            spec = _checked(model_spec(request.spec))
            node_ids = tuple(dict.fromkeys(request.node_ids))
            await self._driver.rejoining.until_placeable()
            operation_id, queue = self._driver.begin_deploy(spec, request.replica_count, node_ids)
        except AegaeonError as error:
            await abort(context, error)
        try:
            while True:
                message = await queue.get()
                if not isinstance(message, commands.DeployProgressed):
                    break
                await context.write(_progress(message))
        finally:
            self._driver.forget_operation(operation_id)
        if isinstance(message, AegaeonError):
            await abort(context, message)
        assert isinstance(message, commands.DeployFinished)
        await self._keep()
        if message.error is not None:
            await abort(context, message.error)
        await context.write(model_pb2.DeployModelResponse(result=_result(message)))

    async def UndeployModel(  # noqa: N802 - named by the contract
        self, request: model_pb2.UndeployModelRequest, context: Any
    ) -> model_pb2.UndeployModelResponse:
        """Drain and remove replicas."""
        try:
            node_ids = tuple(dict.fromkeys(request.node_ids))
            await self._driver.rejoining.until_all_known()
            operation_id, queue = self._driver.begin_undeploy(request.name, node_ids)
        except AegaeonError as error:
            await abort(context, error)
        try:
            message = await queue.get()
        finally:
            self._driver.forget_operation(operation_id)
        if isinstance(message, AegaeonError):
            await abort(context, message)
        assert isinstance(message, commands.UndeployFinished)
        await self._keep()
        if message.error is not None:
            await abort(context, message.error)
        return model_pb2.UndeployModelResponse(
            removed_node_ids=message.removed_node_ids, failed=_failures(message.failed)
        )


def model_infos(state: State) -> list[model_pb2.ModelInfo]:
    """Every model that has a replica, by name."""
    infos = []
    for name, model in sorted(state.models.items()):
        replicas = [
            model_pb2.Replica(
                node_id=node.node_id,
                state=model_pb2.ReplicaState.Name(replica.state),
                active_requests=replica.active_requests,
                error=None if replica.error is None else to_detail(replica.error),
            )
            for node, replica in state.replicas(name)
        ]
        if replicas:
            facts = None if model.facts is None else model_facts_message(model.facts)
            spec = model_spec_message(model.spec)
            infos.append(model_pb2.ModelInfo(spec=spec, facts=facts, replicas=replicas))
    return infos


def _checked(spec: ModelSpec) -> ModelSpec:
    _check_text("spec.name", spec.name, _MAX_NAME)
    _check_text("spec.path", spec.path, _MAX_PATH)
    # A name may become part of a path, as that of a Hugging Face repository does; a path that
    # climbs would say one folder and mean another.
    if spec.name.startswith("/") or {"..", "."} & set(spec.name.replace("\\", "/").split("/")):
        raise _field("spec.name", spec.name, "free of '.' and '..' between slashes, and relative")
    if ".." in PurePath(spec.path).parts:
        raise _field("spec.path", spec.path, "a folder without '..' in its path")
    check_objective("spec.ttft_slo_ns", spec.ttft_slo_ns)
    check_objective("spec.tpot_slo_ns", spec.tpot_slo_ns)
    check_tool_parser("spec.tool_parser", spec.tool_parser)
    return spec


def _check_text(field: str, text: str, most: int) -> None:
    if not 1 <= len(text) <= most or any(unicodedata.category(c) == "Cc" for c in text):
        raise _field(field, text, f"1 to {most} characters without control characters")


def _field(name: str, value: str, rule: str) -> AegaeonError:
    return InvalidRequestError(
        f"{name} is {value[:300]!r}; it must be {rule}",
        metadata={"field": name, "value": value[:300]},
    )


def _progress(message: commands.DeployProgressed) -> model_pb2.DeployModelResponse:
    return model_pb2.DeployModelResponse(
        progress=model_pb2.DeployProgress(
            node_id=message.node_id,
            state=model_pb2.ReplicaState.Name(message.state),
            packed_bytes=message.packed_bytes,
            total_bytes=message.total_bytes,
        )
    )


def _result(message: commands.DeployFinished) -> model_pb2.DeployResult:
    return model_pb2.DeployResult(
        ready_node_ids=message.ready_node_ids,
        failed=_failures(message.failed),
        evicted=[
            model_pb2.EvictedReplica(node_id=node_id, model=model)
            for node_id, model in message.evicted
        ],
    )


def _failures(failed: tuple[tuple[str, AegaeonError], ...]) -> list[model_pb2.NodeFailure]:
    return [
        model_pb2.NodeFailure(node_id=node_id, error=to_detail(error)) for node_id, error in failed
    ]
