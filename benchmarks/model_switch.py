"""Switching between two models through the whole stack, beside copying as many bytes."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc, model_pb2, model_pb2_grpc
from benchmarks.memory_copy import MemoryCopy
from benchmarks.service import NodeSizes, WholeStack, start_service

_TIMEOUT_S = 60.0
_PROMPT = [[1, 2, 3, 4]]
_WARM_UP = 2


@dataclass(frozen=True)
class SwitchTimes:
    """One entry per switch and per copy, in milliseconds, taken alternately."""

    weight_bytes: int
    switch_ms: list[float]
    copy_ms: list[float]

    @property
    def beyond_copy_ms(self) -> list[float]:
        """Per switch: how much longer it took than the copy before it."""
        return [s - c for s, c in zip(self.switch_ms, self.copy_ms, strict=True)]


class TurnWatch:
    """Follows the cluster's events on a thread; remembers the turns that started."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._changed = threading.Condition()
        self._started: list[cluster_pb2.TurnChanged] = []
        stub = cluster_pb2_grpc.ClusterServiceStub(self._channel)
        self._events = stub.WatchEvents(cluster_pb2.WatchEventsRequest(), wait_for_ready=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def take(self) -> cluster_pb2.TurnChanged:
        """The next turn that started; waits for it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._started, timeout=_TIMEOUT_S):
                raise TimeoutError(f"no turn started within {_TIMEOUT_S:.0f} s")
            return self._started.pop(0)

    def close(self) -> None:
        """Stop following."""
        self._events.cancel()  # type: ignore[no-untyped-call]
        self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        try:
            for response in self._events:
                turn = response.event.turn
                if turn.change == cluster_pb2.TurnChanged.CHANGE_STARTED:
                    with self._changed:
                        self._started.append(turn)
                        self._changed.notify()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


def measure_switches(model_path: Path, rounds: int) -> SwitchTimes:
    """Serve two models in turn on a device that holds one of them."""
    with tempfile.TemporaryDirectory() as folder:
        save_sibling(model_path, Path(folder))
        models = [ModelSpec("first", str(model_path)), ModelSpec("second", folder)]
        weights = (model_path / "model.safetensors").stat().st_size
        # The files may hold 16-bit weights, which take twice their size in float32.
        sizes = NodeSizes(device_bytes=weights * 3, model_cache_bytes=weights * 5)
        with start_service(models, sizes) as service:
            return _alternate(
                [WholeStack(service, model) for model in models], service.address, rounds
            )


def save_sibling(model_path: Path, folder: Path) -> None:
    """A model of the same shapes with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


def _alternate(stacks: list[WholeStack], address: str, rounds: int) -> SwitchTimes:
    weight_bytes = _packed_bytes(address)
    copy = MemoryCopy(weight_bytes)
    watch = TurnWatch(address)
    switch_ms, copy_ms = [], []
    try:
        for number in range(rounds + _WARM_UP):
            copied = copy.run_ms()
            stacks[number % 2].generate(_PROMPT, 1)
            turn = watch.take()
            if number >= _WARM_UP:
                copy_ms.append(copied)
                switch_ms.append(turn.switch_time_ns / 1e6)
    finally:
        watch.close()
    return SwitchTimes(weight_bytes, switch_ms, copy_ms)


def _packed_bytes(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        models = stub.ListModels(model_pb2.ListModelsRequest()).models
    return max(model.facts.packed_bytes for model in models)
