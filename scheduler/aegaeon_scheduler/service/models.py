"""ModelService: which models are served, and where."""

from __future__ import annotations

import unicodedata
from typing import Any

from aegaeon.errors import AegaeonError, InvalidRequestError, NotFoundError
from aegaeon.rpc.status import abort, to_detail
from aegaeon.v1 import model_pb2, model_pb2_grpc
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.admission import check_objective
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import ModelSpec
from aegaeon_scheduler.service.convert import model_facts_message, model_spec, model_spec_message
from aegaeon_scheduler.service.driver import Driver

_MAX_NAME = 256


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Lists, deploys and removes models."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def ListModels(  # noqa: N802 - named by the contract
        self, request: model_pb2.ListModelsRequest, context: Any
    ) -> model_pb2.ListModelsResponse:
        """Every model that has a replica."""
        return model_pb2.ListModelsResponse(models=model_infos(self._driver.cluster.state))

    async def GetModel(  # noqa: N802 - named by the contract
        self, request: model_pb2.GetModelRequest, context: Any
    ) -> model_pb2.GetModelResponse:
        """One model."""
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
        if message.error is not None:
            await abort(context, message.error)
        await context.write(model_pb2.DeployModelResponse(result=_result(message)))

    async def UndeployModel(  # noqa: N802 - named by the contract
        self, request: model_pb2.UndeployModelRequest, context: Any
    ) -> model_pb2.UndeployModelResponse:
        """Drain and remove replicas."""
        try:
            node_ids = tuple(dict.fromkeys(request.node_ids))
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
    name = spec.name
    if not 1 <= len(name) <= _MAX_NAME or any(unicodedata.category(c) == "Cc" for c in name):
        raise InvalidRequestError(
            f"spec.name is {name[:300]!r}; it must be 1 to {_MAX_NAME} characters without control "
            "characters",
            metadata={"field": "spec.name", "value": name[:300]},
        )
    if not spec.path:
        raise InvalidRequestError(
            "spec.path is empty; it must name the folder of the checkpoint",
            metadata={"field": "spec.path", "value": ""},
        )
    check_objective("spec.ttft_slo_ns", spec.ttft_slo_ns)
    check_objective("spec.tpot_slo_ns", spec.tpot_slo_ns)
    return spec


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
