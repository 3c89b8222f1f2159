"""Constraints between the contract and Python."""

from __future__ import annotations

from aegaeon.constraint import Constraint, ConstraintKind
from aegaeon.errors import InvalidRequestError
from aegaeon.v1 import inference_pb2


def constraint_message(constraint: Constraint) -> inference_pb2.Constraint:
    """As a message."""
    message = inference_pb2.Constraint()
    setattr(message, constraint.kind.value, constraint.text)
    return message


def constraint_of(sampling: inference_pb2.SamplingParameters) -> Constraint | None:
    """What a message asks for. Raises InvalidRequestError for a constraint without a form."""
    if not sampling.HasField("constraint"):
        return None
    form = sampling.constraint.WhichOneof("form")
    if form is None:
        field = "sampling.constraint"
        raise InvalidRequestError(f"{field}: sets no form", metadata={"field": field})
    return Constraint(ConstraintKind(form), getattr(sampling.constraint, form))
