"""Between the client's objects and the contract's messages; requests are checked here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aegaeon.client.fields import MAX_UINT32, any_integer, integer, invalid
from aegaeon.client.sampling import to_sampling
from aegaeon.errors import ErrorReason, InvalidRequestError
from aegaeon.model_spec import ModelSpec
from aegaeon.request import Request
from aegaeon.rpc.channel import MAX_MESSAGE_BYTES
from aegaeon.step_output import FinishReason
from aegaeon.tool_parsers import check_tool_parser
from aegaeon.v1 import inference_pb2, model_pb2

_MAX_LABEL_BYTES = 256
_MAX_SALT_BYTES = 256
_MAX_PRIORITY = 8
_MAX_TRACE_PARENT_BYTES = 64
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
        raise invalid("request", request, "expected a Request")
    if not isinstance(request.model, ModelSpec | str) or not request.model_name:
        raise invalid("model", request.model, "expected a ModelSpec or a model's name")
    label = str(request.request_id)
    if len(label.encode()) > _MAX_LABEL_BYTES:
        raise invalid("request_id", label, f"at most {_MAX_LABEL_BYTES} bytes")
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
        stop=_stop_conditions(request, 0 if limit is None else integer("max_model_len", limit, 1)),
        priority=_priority(request.priority),
        ttft_slo_ns=slo_ns("ttft_slo_s", request.ttft_slo_s),
        tpot_slo_ns=slo_ns("tpot_slo_s", request.tpot_slo_s),
        sampling=to_sampling(request.sampling),
        no_prefix_caching=not _boolean("prefix_caching", request.prefix_caching),
        cache_salt=_cache_salt(request.cache_salt),
        trace_parent=_trace_parent(request.trace_parent),
    )
    if request.prompt_logprobs is not None:
        message.prompt_logprobs = integer("prompt_logprobs", request.prompt_logprobs, 0)
    size = message.ByteSize() + _ENVELOPE_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise invalid(
            "prompt_token_ids", len(prompt), f"{size} bytes, above the limit of {MAX_MESSAGE_BYTES}"
        )
    return message


def timeout_ns(request: Request) -> int:
    """The request's own deadline in nanoseconds; 0 means none."""
    seconds = request.timeout_s
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise invalid("timeout_s", seconds, "expected a number of seconds")
    if not math.isfinite(seconds) or seconds <= 0:
        raise invalid("timeout_s", seconds, "expected a number above 0, or None")
    return max(1, int(seconds * 1e9))


def slo_ns(field: str, seconds: float | None) -> int:
    """An objective in nanoseconds; 0 for None. Raises InvalidRequestError."""
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise invalid(field, seconds, "expected a number of seconds")
    if not _MIN_SLO_S <= seconds <= _MAX_SLO_S:
        raise invalid(field, seconds, f"expected {_MIN_SLO_S} to {_MAX_SLO_S} seconds, or None")
    return round(seconds * 1e9)


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_PRIORITY:
        raise invalid(
            "priority", value, f"expected an integer from {-_MAX_PRIORITY} to {_MAX_PRIORITY}"
        )
    return value


def _trace_parent(text: str) -> str:
    if not isinstance(text, str) or len(text.encode()) > _MAX_TRACE_PARENT_BYTES:
        raise invalid("trace_parent", text, f"at most {_MAX_TRACE_PARENT_BYTES} bytes of text")
    return text


def _cache_salt(salt: str) -> str:
    if not isinstance(salt, str):
        raise invalid("cache_salt", salt, "expected text")
    try:
        size = len(salt.encode())
    except UnicodeEncodeError:
        raise invalid("cache_salt", salt, "expected text without lone surrogates") from None
    if size > _MAX_SALT_BYTES:
        raise invalid("cache_salt", salt, f"at most {_MAX_SALT_BYTES} bytes")
    return salt


def _boolean(field: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise invalid(field, value, "expected True or False")
    return value


def _stop_conditions(request: Request, max_model_len: int) -> inference_pb2.StopConditions:
    limit = request.decode_tokens
    new_tokens = 0 if limit is None else integer("decode_tokens", limit, 1)
    min_tokens = integer("min_tokens", request.min_tokens, 0)
    if new_tokens and min_tokens > new_tokens:
        raise invalid("min_tokens", min_tokens, f"at most decode_tokens ({new_tokens})")
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
        raise invalid(field, values, "expected a list of token ids") from None
    # Two passes over plain integers are far cheaper than a check of each of a million ids.
    if not all(type(token) is int for token in ids):
        ids = [any_integer(f"{field}[{position}]", token) for position, token in enumerate(ids)]
    if ids and (min(ids) < 0 or max(ids) > MAX_UINT32):
        wrong = next(i for i, token in enumerate(ids) if not 0 <= token <= MAX_UINT32)
        raise InvalidRequestError(
            f"{field}[{wrong}]: token id {ids[wrong]} is outside any vocabulary",
            reason=ErrorReason.TOKEN_OUT_OF_VOCABULARY,
            metadata={"token_id": ids[wrong]},
        )
    return ids


def finish_reason(number: int) -> FinishReason | None:
    """The contract's reason; None while unspecified, and for a cancel."""
    return _FINISH.get(number)


def to_model_spec(spec: ModelSpec) -> model_pb2.ModelSpec:
    """A spec with its folder resolved on this machine. Raises ConfigError, InvalidRequestError."""
    tool_parser = spec.tool_parser or ""
    check_tool_parser("tool_parser", tool_parser)
    return model_pb2.ModelSpec(
        name=spec.name,
        path=spec.path(),
        dtype=_DTYPES[spec.dtype],
        max_model_len=spec.max_model_len or 0,
        trust_remote_code=spec.trust_remote_code,
        ttft_slo_ns=slo_ns("ttft_slo_s", spec.ttft_slo_s),
        tpot_slo_ns=slo_ns("tpot_slo_s", spec.tpot_slo_s),
        no_prefix_caching=not spec.prefix_caching,
        tool_parser=tool_parser,
    )
