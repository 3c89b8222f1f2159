from aegaeon.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_GROUPED_SUBMISSIONS: _ClassVar[Capability]
    CAPABILITY_CONSTRAINTS: _ClassVar[Capability]
    CAPABILITY_PROMPT_LOGPROBS: _ClassVar[Capability]
    CAPABILITY_PREFIX_ISOLATION: _ClassVar[Capability]
    CAPABILITY_TOOL_PARSERS: _ClassVar[Capability]
    CAPABILITY_KV_FETCH: _ClassVar[Capability]
    CAPABILITY_TENSOR_PARALLELISM: _ClassVar[Capability]
    CAPABILITY_KV_OFFERS: _ClassVar[Capability]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_GROUPED_SUBMISSIONS: Capability
CAPABILITY_CONSTRAINTS: Capability
CAPABILITY_PROMPT_LOGPROBS: Capability
CAPABILITY_PREFIX_ISOLATION: Capability
CAPABILITY_TOOL_PARSERS: Capability
CAPABILITY_KV_FETCH: Capability
CAPABILITY_TENSOR_PARALLELISM: Capability
CAPABILITY_KV_OFFERS: Capability

class StopConditions(_message.Message):
    __slots__ = ("max_new_tokens", "min_new_tokens", "eos_token_ids", "stop_token_ids", "ignore_eos", "max_model_len")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    min_new_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_model_len: int
    def __init__(self, max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "logprobs", "constraint")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    logprobs: int
    constraint: Constraint
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., logprobs: _Optional[int] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "regex", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ...) -> None: ...

class LogProbabilities(_message.Message):
    __slots__ = ("indexes", "logprobs", "top_counts", "top_token_ids", "top_logprobs")
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, indexes: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogProbabilities(_message.Message):
    __slots__ = ("owners", "starts", "counts", "logprobs", "top_counts", "top_token_ids", "top_logprobs")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, owners: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "label", "prompt_token_ids", "generated_token_ids", "stop", "priority", "ttft_slo_ns", "tpot_slo_ns", "sampling", "cache_salt", "no_prefix_caching", "trace_parent", "prompt_logprobs", "told_prompt_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTFT_SLO_NS_FIELD_NUMBER: _ClassVar[int]
    TPOT_SLO_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOLD_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    label: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop: StopConditions
    priority: int
    ttft_slo_ns: int
    tpot_slo_ns: int
    sampling: SamplingParameters
    cache_salt: str
    no_prefix_caching: bool
    trace_parent: str
    prompt_logprobs: int
    told_prompt_tokens: int
    def __init__(self, model: _Optional[str] = ..., label: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., generated_token_ids: _Optional[_Iterable[int]] = ..., stop: _Optional[_Union[StopConditions, _Mapping]] = ..., priority: _Optional[int] = ..., ttft_slo_ns: _Optional[int] = ..., tpot_slo_ns: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., cache_salt: _Optional[str] = ..., no_prefix_caching: _Optional[bool] = ..., trace_parent: _Optional[str] = ..., prompt_logprobs: _Optional[int] = ..., told_prompt_tokens: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token_ids", "step_times_ns", "received_unix_ns", "finish_reason", "log_probabilities", "cached_tokens", "prompt_log_probabilities")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    step_times_ns: _containers.RepeatedScalarFieldContainer[int]
    received_unix_ns: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    log_probabilities: LogProbabilities
    cached_tokens: int
    prompt_log_probabilities: PromptLogProbabilities
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., step_times_ns: _Optional[_Iterable[int]] = ..., received_unix_ns: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., log_probabilities: _Optional[_Union[LogProbabilities, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., prompt_log_probabilities: _Optional[_Union[PromptLogProbabilities, _Mapping]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("submit", "cancel", "submits")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    submit: SessionSubmit
    cancel: SessionCancel
    submits: SessionSubmits
    def __init__(self, submit: _Optional[_Union[SessionSubmit, _Mapping]] = ..., cancel: _Optional[_Union[SessionCancel, _Mapping]] = ..., submits: _Optional[_Union[SessionSubmits, _Mapping]] = ...) -> None: ...

class SessionSubmit(_message.Message):
    __slots__ = ("stream_id", "request", "timeout_ns")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    request: GenerateRequest
    timeout_ns: int
    def __init__(self, stream_id: _Optional[int] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., timeout_ns: _Optional[int] = ...) -> None: ...

class SessionSubmits(_message.Message):
    __slots__ = ("submits",)
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedCompositeFieldContainer[SessionSubmit]
    def __init__(self, submits: _Optional[_Iterable[_Union[SessionSubmit, _Mapping]]] = ...) -> None: ...

class SessionCancel(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    def __init__(self, stream_id: _Optional[int] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("deltas", "stream_ids", "token_ids", "step_token_counts", "step_times_ns", "received_unix_ns", "log_probabilities", "cached_stream_ids", "cached_tokens", "prompt_log_probabilities")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CACHED_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[SessionDelta]
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    step_token_counts: _containers.RepeatedScalarFieldContainer[int]
    step_times_ns: _containers.RepeatedScalarFieldContainer[int]
    received_unix_ns: _containers.RepeatedScalarFieldContainer[int]
    log_probabilities: LogProbabilities
    cached_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    prompt_log_probabilities: PromptLogProbabilities
    def __init__(self, deltas: _Optional[_Iterable[_Union[SessionDelta, _Mapping]]] = ..., stream_ids: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., step_token_counts: _Optional[_Iterable[int]] = ..., step_times_ns: _Optional[_Iterable[int]] = ..., received_unix_ns: _Optional[_Iterable[int]] = ..., log_probabilities: _Optional[_Union[LogProbabilities, _Mapping]] = ..., cached_stream_ids: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[_Iterable[int]] = ..., prompt_log_probabilities: _Optional[_Union[PromptLogProbabilities, _Mapping]] = ...) -> None: ...

class SessionDelta(_message.Message):
    __slots__ = ("stream_id", "response", "error")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    response: GenerateResponse
    error: _errors_pb2.ErrorDetail
    def __init__(self, stream_id: _Optional[int] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("capabilities",)
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    def __init__(self, capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ...) -> None: ...

class UseBudgetRequest(_message.Message):
    __slots__ = ("holder", "requests_per_minute", "tokens_per_minute", "requests", "tokens", "used")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    holder: str
    requests_per_minute: int
    tokens_per_minute: int
    requests: int
    tokens: int
    used: bool
    def __init__(self, holder: _Optional[str] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., used: _Optional[bool] = ...) -> None: ...

class UseBudgetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
