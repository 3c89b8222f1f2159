"""Between the client's objects and the contract's messages; requests are checked here."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from aegaeon.errors import ErrorReason, InvalidRequestError
from aegaeon.model_spec import ModelSpec
from aegaeon.request import Request
from aegaeon.rpc.channel import MAX_MESSAGE_BYTES
from aegaeon.step_output import FinishReason
from aegaeon.v1 import inference_pb2, model_pb2

_MAX_ID = 2**32 - 1
_MAX_LABEL_BYTES = 256
_MAX_PRIORITY = 8
_MIN_SLO_S = 1e-4
_MAX_SLO_S = 86_400
# Room in a session message besides the request itself.
_ENVELOPE_BYTES = 1024

_DTYPES = {
    "auto": model_pb2.DATA_TYPE_UNSPECIFIED,
    "float32": model_pb2.DATA_TYPE_FLOAT32,
    "bfloat16": model_pb2.DATA_TYPE_BFLOAT16,
    "float16": model_pb2.DATA_TYPE_FLOAT16,
}
_FINISH: dict[int, FinishReason] = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
}


def to_generate_request(request: Request) -> inference_pb2.GenerateRequest:
    """Check and convert. Raises InvalidRequestError, whose metadata names field and value."""
    if not isinstance(request, Request):
        raise _invalid("request", request, "expected a Request")
    if not isinstance(request.model, ModelSpec | str) or not request.model_name:
        raise _invalid("model", request.model, "expected a ModelSpec or a model's name")
    label = str(request.request_id)
    if len(label.encode()) > _MAX_LABEL_BYTES:
        raise _invalid("request_id", label, f"at most {_MAX_LABEL_BYTES} bytes")
    prompt = _token_ids("prompt_token_ids", request.prompt_token_ids)
    if not prompt:
        raise InvalidRequestError(
            f"request {label!r}: prompt_token_ids is empty; at least one token is needed",
            reason=ErrorReason.EMPTY_PROMPT,
        )
    limit = request.max_model_len
    message = inference_pb2.GenerateRequest(
        model=request.model_name,
        label=label,
        prompt_token_ids=prompt,
        stop=_stop_conditions(request, 0 if limit is None else _integer("max_model_len", limit, 1)),
        priority=_priority(request.priority),
        ttft_slo_ns=slo_ns("ttft_slo_s", request.ttft_slo_s),
        tpot_slo_ns=slo_ns("tpot_slo_s", request.tpot_slo_s),
    )
    size = message.ByteSize() + _ENVELOPE_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise _invalid(
            "prompt_token_ids", len(prompt), f"{size} bytes, above the limit of {MAX_MESSAGE_BYTES}"
        )
    return message


def timeout_ns(request: Request) -> int:
    """The request's own deadline in nanoseconds; 0 means none."""
    seconds = request.timeout_s
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid("timeout_s", seconds, "expected a number of seconds")
    if not math.isfinite(seconds) or seconds <= 0:
        raise _invalid("timeout_s", seconds, "expected a number above 0, or None")
    return max(1, int(seconds * 1e9))


def slo_ns(field: str, seconds: float | None) -> int:
    """An objective in nanoseconds; 0 for None. Raises InvalidRequestError."""
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid(field, seconds, "expected a number of seconds")
    if not _MIN_SLO_S <= seconds <= _MAX_SLO_S:
        raise _invalid(field, seconds, f"expected {_MIN_SLO_S} to {_MAX_SLO_S} seconds, or None")
    return round(seconds * 1e9)


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_PRIORITY:
        raise _invalid(
            "priority", value, f"expected an integer from {-_MAX_PRIORITY} to {_MAX_PRIORITY}"
        )
    return value


def _stop_conditions(request: Request, max_model_len: int) -> inference_pb2.StopConditions:
    new_tokens = _integer("decode_tokens", request.decode_tokens, 1)
    min_tokens = _integer("min_tokens", request.min_tokens, 0)
    if min_tokens > new_tokens:
        raise _invalid("min_tokens", min_tokens, f"at most decode_tokens ({new_tokens})")
    return inference_pb2.StopConditions(
        max_new_tokens=new_tokens,
        min_new_tokens=min_tokens,
        eos_token_ids=_token_ids("eos_token_ids", request.eos_token_ids),
        stop_token_ids=_token_ids("stop_token_ids", request.stop_token_ids),
        ignore_eos=bool(request.ignore_eos),
        max_model_len=max_model_len,
    )


def _token_ids(field: str, values: Sequence[int]) -> list[int]:
    try:
        ids = list(values)
    except TypeError:
        raise _invalid(field, values, "expected a list of token ids") from None
    # Two passes over plain integers are far cheaper than a check of each of a million ids.
    if not all(type(token) is int for token in ids):
        ids = [_integer(f"{field}[{position}]", token, 0) for position, token in enumerate(ids)]
    if ids and (min(ids) < 0 or max(ids) > _MAX_ID):
        wrong = next(i for i, token in enumerate(ids) if not 0 <= token <= _MAX_ID)
        raise InvalidRequestError(
            f"{field}[{wrong}]: token id {ids[wrong]} is outside any vocabulary",
            reason=ErrorReason.TOKEN_OUT_OF_VOCABULARY,
            metadata={"token_id": ids[wrong]},
        )
    return ids


def _integer(field: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise _invalid(field, value, f"expected an integer, got {type(value).__name__}")
    if field.endswith("]"):  # a token id: its range is checked with all others
        return number
    if not least <= number <= _MAX_ID:
        raise _invalid(field, value, f"expected {least} to {_MAX_ID}")
    return number


def _invalid(field: str, value: object, problem: str) -> InvalidRequestError:
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return InvalidRequestError(
        f"{field} = {text}: {problem}", metadata={"field": field, "value": text}
    )


def finish_reason(number: int) -> FinishReason | None:
    """The contract's reason; None while unspecified, and for a cancel."""
    return _FINISH.get(number)


def to_model_spec(spec: ModelSpec) -> model_pb2.ModelSpec:
    """A spec with its folder resolved on this machine. Raises ConfigError, InvalidRequestError."""
    return model_pb2.ModelSpec(
        name=spec.name,
        path=spec.path(),
        dtype=_DTYPES[spec.dtype],
        max_model_len=spec.max_model_len or 0,
        trust_remote_code=spec.trust_remote_code,
        ttft_slo_ns=slo_ns("ttft_slo_s", spec.ttft_slo_s),
        tpot_slo_ns=slo_ns("tpot_slo_s", spec.tpot_slo_s),
    )
