"""What rank 0 tells the other ranks, and what they answer: small frames of fixed layout.

A frame is its kind, its length, and numbers or a JSON object; only what happens once per group or
per model has the latter. A decode step of 32 sequences takes about 2 KB and a few microseconds.
"""

from __future__ import annotations

import enum
import json
import struct
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from aegaeon_worker.engine.decode_steps import StepOrder
from aegaeon_worker.models.interface import StepInput

HEADER = struct.Struct("<II")


class Kind(enum.IntEnum):
    """Kinds of frames; those from ``HELLO`` on come from the other ranks."""

    FORM = 1
    REFUSE = 2
    RESERVE = 3
    RELEASE = 4
    MAP = 5
    UNMAP = 6
    COPY_WEIGHTS = 7
    COPY_IN = 8
    COPY_OUT = 9
    FENCE_COPIES = 10
    FENCE_COMPUTE = 11
    MARK = 12
    PREPARE = 13
    INSTALL = 14
    DROP = 15
    STEP = 16
    DECODE = 17
    HELLO = 32
    FORMED = 33
    REACHED = 34
    PREPARED = 35
    FAILED = 36


class Frame(NamedTuple):
    """One frame as received."""

    kind: Kind
    body: bytes

    def numbers(self) -> array[int]:
        """The body as 64-bit numbers."""
        found = array("q")
        found.frombytes(self.body)
        return found

    def fields(self) -> dict[str, Any]:
        """The body as a JSON object."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def number_frame(kind: Kind, numbers: Iterable[int] = ()) -> bytes:
    """A frame of 64-bit numbers."""
    body = array("q", numbers).tobytes()
    return HEADER.pack(kind, len(body)) + body


def object_frame(kind: Kind, **fields: object) -> bytes:
    """A frame with a JSON object."""
    body = json.dumps(fields).encode()
    return HEADER.pack(kind, len(body)) + body


def step_frame(model: int, step: StepInput) -> bytes:
    """A forward pass of ``model``, see ``read_step``; positions follow from the lengths."""
    sequences, width = step.block_tables.shape
    numbers = array(
        "i",
        [
            model,
            sequences,
            width,
            step.token_ids.shape[0],
            step.logit_rows.shape[0],
            *step.query_lens,
            *step.context_lens,
            *step.token_ids.tolist(),
            *step.logit_rows.tolist(),
            *step.block_tables.flatten().tolist(),
        ],
    )
    body = numbers.tobytes()
    return HEADER.pack(Kind.STEP, len(body)) + body


class StepFrame:
    """A forward pass as told."""

    def __init__(self, frame: Frame) -> None:
        self._numbers = torch.frombuffer(bytearray(frame.body), dtype=torch.int32)
        self.model = int(self._numbers[0])

    def input(self, kv: torch.Tensor) -> StepInput:
        """The pass over this rank's ``kv``."""
        numbers = self._numbers
        sequences, width, tokens, rows = numbers[1:5].tolist()
        sizes = [sequences, sequences, tokens, rows, sequences * width]
        query_lens, context_lens, token_ids, logit_rows, tables = torch.split(numbers[5:], sizes)
        first = context_lens - query_lens
        # Position in its sequence of every token: its place in the pass, less that of the first.
        before = torch.cumsum(query_lens, 0) - query_lens
        shift = torch.repeat_interleave(first - before, query_lens)
        positions = torch.arange(tokens) + shift
        device = kv.device
        return StepInput(
            token_ids=token_ids.long().to(device),
            positions=positions.long().to(device),
            query_lens=tuple(query_lens.tolist()),
            context_lens=tuple(context_lens.tolist()),
            block_tables=tables.long().view(sequences, width).to(device),
            kv=kv,
            logit_rows=logit_rows.long().to(device),
        )


def order_frame(model: int, order: StepOrder, *, with_tokens: bool) -> bytes:
    """A decode step of ``model``, see ``read_order``."""
    width = len(order.tables[0]) if order.tables else 0
    flags = order.best | order.replays << 1 | with_tokens << 2
    numbers = array("i", [model, order.size, flags, len(order.changed), width])
    numbers.extend(order.staged)
    numbers.extend(order.changed)
    for table in order.tables:
        numbers.extend(table)
    body = numbers.tobytes()
    return HEADER.pack(Kind.DECODE, len(body)) + body


def read_order(frame: Frame) -> tuple[int, StepOrder, bool]:
    """The model, the step, and whether tokens come along."""
    numbers = array("i")
    numbers.frombytes(frame.body)
    model, size, flags, count, width = numbers[:5]
    staged, rest = numbers[5 : 5 + 4 * size].tolist(), numbers[5 + 4 * size :].tolist()
    tables = [rest[at : at + width] for at in range(count, len(rest), width)] if width else []
    order = StepOrder(size, staged, rest[:count], tables, bool(flags & 1), bool(flags & 2))
    return model, order, bool(flags & 4)
