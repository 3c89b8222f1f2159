"""What a starting instance tells, as it goes and across processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TextIO

from aegaeon.deployment import DeployProgress
from aegaeon.errors import AegaeonError, ConfigError
from aegaeon.instances.records import InstanceRecord
from aegaeon.rpc.status import from_detail, to_detail
from aegaeon.v1 import errors_pb2


@dataclass(frozen=True)
class Step:
    """A daemon or a model on its way; both byte counts are 0 where there is nothing to count."""

    what: str
    state: str
    done: bool = False
    packed_bytes: int = 0
    total_bytes: int = 0

    @classmethod
    def of_model(cls, name: str, progress: DeployProgress) -> Step:
        """A model's progress on a node."""
        return cls(
            f"{name} on {progress.node_id}",
            progress.state,
            progress.state in ("ready", "failed"),
            progress.packed_bytes,
            progress.total_bytes,
        )


#: The end of a start: it serves, or why it does not.
Ending = InstanceRecord | AegaeonError
Report = Callable[[Step | Ending], None]


class StepWriter:
    """A `Report` into a pipe, for the process that started this one. Nobody need read it."""

    def __init__(self, fd: int) -> None:
        self._pipe: TextIO | None = os.fdopen(fd, "w", encoding="utf-8")

    @property
    def ended(self) -> bool:
        """The end has been told, or nobody reads."""
        return self._pipe is None

    def __call__(self, item: Step | Ending) -> None:
        """Write one line; the last one closes the pipe."""
        if self._pipe is None:
            return
        try:
            self._pipe.write(_line(item) + "\n")
            self._pipe.flush()
            if not isinstance(item, Step):
                self._pipe.close()
                self._pipe = None
        except OSError:
            self._pipe = None


def read_steps(pipe: TextIO) -> Iterator[Step | Ending]:
    """What a `StepWriter` at the other end wrote, until it closes."""
    for line in pipe:
        kind, fields = json.loads(line)
        if kind == "step":
            yield Step(**fields)
        elif kind == "ready":
            yield InstanceRecord.from_json(fields)
        elif kind == "misuse":
            yield ConfigError(**fields)
        else:
            yield from_detail(errors_pb2.ErrorDetail(**fields))


def _line(item: Step | Ending) -> str:
    if isinstance(item, Step):
        return json.dumps(["step", asdict(item)])
    if isinstance(item, InstanceRecord):
        return json.dumps(["ready", asdict(item)])
    if isinstance(item, ConfigError):  # of the command line alone, so no reason of the contract
        return json.dumps(["misuse", {"message": item.message, "metadata": item.metadata}])
    detail = to_detail(item)
    fields = {
        "reason": detail.reason,
        "message": detail.message,
        "metadata": dict(detail.metadata),
    }
    return json.dumps(["error", fields])
