"""The file in which a scheduler leaves what a later one has to know."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from aegaeon.errors import ConfigError
from aegaeon_scheduler.core.recovery import saved
from aegaeon_scheduler.core.saved import SavedCluster, SavedModel, SavedTopology
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import (
    DataType,
    DeviceFacts,
    ModelFacts,
    ModelSpec,
    PlacementPolicy,
    RoutingPolicy,
)

_log = logging.getLogger(__name__)

_VERSION = 1
#: Of options of models that are not set.
_DEFAULTS = {one.name: one.default for one in fields(ModelSpec) if one.default is not MISSING}
#: What reading a file leads to that no scheduler wrote.
NONSENSE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
#: Changes within this time are written together, in seconds.
_DELAY_S = 0.05


class StateFile:
    """Written whenever topology, policies or deployed models have changed, and as a whole: a crash
    leaves the file of before. Belongs to one event loop."""

    def __init__(self, path: Path, state: State) -> None:
        self._path = path
        self._state = state
        self._written = SavedCluster()
        self._timer: asyncio.TimerHandle | None = None
        #: One write after another, or an older state might replace a newer one.
        self._lock = asyncio.Lock()
        self._writing: set[asyncio.Task[None]] = set()

    def load(self) -> SavedCluster:
        """What an earlier scheduler left, or nothing. A file that cannot be understood is put
        aside, as workers report what they serve anyway. Raises ConfigError where no file can be
        written."""
        folder = self._path.parent
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--state-file {self._path}: its folder cannot be written to; choose another"
            )
        try:
            self._written = decode(self._path.read_text())
        except FileNotFoundError:
            return SavedCluster()
        except NONSENSE as error:
            aside = self._path.with_name(self._path.name + ".broken")
            self._path.replace(aside)
            _log.error(
                "%s cannot be understood (%s) and was renamed to %s", self._path, error, aside
            )
        return self._written

    def changed(self) -> None:
        """Write soon what differs from the file."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._begin)

    async def flush(self) -> None:
        """Return once everything that has changed by now is in the file, or cannot be written."""
        await asyncio.shield(self._begin())

    async def close(self) -> None:
        """Write what is not written yet."""
        await self.flush()

    def _begin(self) -> asyncio.Task[None]:
        """Start to write, whatever becomes of the caller: a thread cannot be called back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _write(self) -> None:
        async with self._lock:
            await self._write_changes()

    async def _write_changes(self) -> None:
        now = saved(self._state)
        if now == self._written:
            return
        try:
            await asyncio.to_thread(_replace, self._path, encode(now))
        except OSError as error:
            _log.error(
                "%s cannot be written: %s; a restart will not know of the latest deployments",
                self._path,
                error,
            )
            return
        self._written = now


def encode(known: SavedCluster) -> str:
    """As JSON text, which the release before understands as well.

    Options of models are there only where they are set: one that the reader does not know says that
    it cannot serve that model as it was deployed.
    """
    data = {"version": _VERSION, **asdict(known)}
    for model in data["models"]:
        spec = model["spec"]
        model["spec"] = {k: v for k, v in spec.items() if k == "dtype" or v != _DEFAULTS.get(k)}
    topology = data["topology"]
    if topology is not None and topology["routing"] is RoutingPolicy.PREFIX_AWARE:
        topology |= {"routing": RoutingPolicy.LEAST_OUTSTANDING, "prefix_aware": True}
    return json.dumps(data, indent=1)


def decode(text: str) -> SavedCluster:
    """The opposite. Raises one of `NONSENSE` for anything else."""
    data = json.loads(text)
    if not isinstance(data, dict) or data["version"] != _VERSION:
        raise ValueError("it is of another version")
    topology = data["topology"]
    models = [_model(model) for model in data["models"]]
    return SavedCluster(
        None if topology is None else _topology(topology),
        tuple(model for model in models if model is not None),
    )


def _topology(data: dict[str, Any]) -> SavedTopology:
    return SavedTopology(
        tuple(data["node_ids"]),
        PlacementPolicy(data["placement"]),
        RoutingPolicy.PREFIX_AWARE if data.get("prefix_aware") else RoutingPolicy(data["routing"]),
        int(data["stealing_min_batch_gap"]),
    )


def _model(data: dict[str, Any]) -> SavedModel | None:
    """A model; None where it has options of a later release, and would be served otherwise."""
    named = data["spec"]
    unknown = sorted({*named} - _names(ModelSpec))
    if unknown:
        _log.error(
            "model %r was deployed by a later release with %s, which this one does not know: it is "
            "not served until it is deployed again",
            named["name"],
            ", ".join(unknown),
        )
        return None
    spec = ModelSpec(**{**named, "dtype": DataType(named["dtype"])})
    facts, device = data["facts"], data["device"]
    if facts is not None:
        facts = ModelFacts(
            **{**_known(ModelFacts, facts), "eos_token_ids": tuple(facts["eos_token_ids"])}
        )
    if device is not None:
        device = DeviceFacts(**_known(DeviceFacts, device))
    return SavedModel(spec, facts, device, tuple(data["node_ids"]))


def _names(kind: type[Any]) -> set[str]:
    return {one.name for one in fields(kind)}


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """Without what a later release has found out besides; workers tell all of it anew."""
    return {name: value for name, value in data.items() if name in _names(kind)}


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
