from aegaeon.v1 import cluster_pb2 as _cluster_pb2
from aegaeon.v1 import errors_pb2 as _errors_pb2
from aegaeon.v1 import inference_pb2 as _inference_pb2
from aegaeon.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("hello", "load_model", "unload_model", "add_sequences", "cancel_sequences", "queue_turn", "join_turn", "leave_turn", "limit_turn", "release_sequences")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOAD_MODEL_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_MODEL_FIELD_NUMBER: _ClassVar[int]
    ADD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TURN_FIELD_NUMBER: _ClassVar[int]
    JOIN_TURN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_TURN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_TURN_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    load_model: LoadModel
    unload_model: UnloadModel
    add_sequences: AddSequences
    cancel_sequences: CancelSequences
    queue_turn: QueueTurn
    join_turn: JoinTurn
    leave_turn: LeaveTurn
    limit_turn: LimitTurn
    release_sequences: ReleaseSequences
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., load_model: _Optional[_Union[LoadModel, _Mapping]] = ..., unload_model: _Optional[_Union[UnloadModel, _Mapping]] = ..., add_sequences: _Optional[_Union[AddSequences, _Mapping]] = ..., cancel_sequences: _Optional[_Union[CancelSequences, _Mapping]] = ..., queue_turn: _Optional[_Union[QueueTurn, _Mapping]] = ..., join_turn: _Optional[_Union[JoinTurn, _Mapping]] = ..., leave_turn: _Optional[_Union[LeaveTurn, _Mapping]] = ..., limit_turn: _Optional[_Union[LimitTurn, _Mapping]] = ..., release_sequences: _Optional[_Union[ReleaseSequences, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class LoadModel(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: _model_pb2.ModelSpec
    def __init__(self, spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ...) -> None: ...

class UnloadModel(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class AddSequences(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceSpec]
    def __init__(self, sequences: _Optional[_Iterable[_Union[SequenceSpec, _Mapping]]] = ...) -> None: ...

class SequenceSpec(_message.Message):
    __slots__ = ("handle", "model", "prompt_token_ids", "generated_token_ids", "stop", "kv", "sampling", "no_prefix_caching", "cache_salt", "label", "trace_parent", "tpot_ns", "prompt_logprobs", "told_prompt_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    TPOT_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOLD_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    model: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop: _inference_pb2.StopConditions
    kv: KvPlace
    sampling: _inference_pb2.SamplingParameters
    no_prefix_caching: bool
    cache_salt: str
    label: str
    trace_parent: str
    tpot_ns: int
    prompt_logprobs: int
    told_prompt_tokens: int
    def __init__(self, handle: _Optional[int] = ..., model: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., generated_token_ids: _Optional[_Iterable[int]] = ..., stop: _Optional[_Union[_inference_pb2.StopConditions, _Mapping]] = ..., kv: _Optional[_Union[KvPlace, _Mapping]] = ..., sampling: _Optional[_Union[_inference_pb2.SamplingParameters, _Mapping]] = ..., no_prefix_caching: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., label: _Optional[str] = ..., trace_parent: _Optional[str] = ..., tpot_ns: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., told_prompt_tokens: _Optional[int] = ...) -> None: ...

class KvPlace(_message.Message):
    __slots__ = ("num_tokens", "block_bytes", "runs", "address", "pieces", "offer", "num_offered")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    NUM_OFFERED_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    block_bytes: int
    runs: _containers.RepeatedCompositeFieldContainer[BlockRun]
    address: str
    pieces: int
    offer: str
    num_offered: int
    def __init__(self, num_tokens: _Optional[int] = ..., block_bytes: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[BlockRun, _Mapping]]] = ..., address: _Optional[str] = ..., pieces: _Optional[int] = ..., offer: _Optional[str] = ..., num_offered: _Optional[int] = ...) -> None: ...

class BlockRun(_message.Message):
    __slots__ = ("slab", "slab_generation", "first_block", "num_blocks")
    SLAB_FIELD_NUMBER: _ClassVar[int]
    SLAB_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    slab: int
    slab_generation: int
    first_block: int
    num_blocks: int
    def __init__(self, slab: _Optional[int] = ..., slab_generation: _Optional[int] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class CancelSequences(_message.Message):
    __slots__ = ("handles",)
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ...) -> None: ...

class QueueTurn(_message.Message):
    __slots__ = ("turn_id", "model", "handles", "quota_ns", "prefetch_model", "stage", "on_device")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_NS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_MODEL_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ON_DEVICE_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    model: str
    handles: _containers.RepeatedScalarFieldContainer[int]
    quota_ns: int
    prefetch_model: str
    stage: _cluster_pb2.TurnStage
    on_device: bool
    def __init__(self, turn_id: _Optional[int] = ..., model: _Optional[str] = ..., handles: _Optional[_Iterable[int]] = ..., quota_ns: _Optional[int] = ..., prefetch_model: _Optional[str] = ..., stage: _Optional[_Union[_cluster_pb2.TurnStage, str]] = ..., on_device: _Optional[bool] = ...) -> None: ...

class JoinTurn(_message.Message):
    __slots__ = ("turn_id", "handles")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, turn_id: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaveTurn(_message.Message):
    __slots__ = ("turn_id", "handles")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, turn_id: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ...) -> None: ...

class LimitTurn(_message.Message):
    __slots__ = ("turn_id", "quota_ns")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    QUOTA_NS_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    quota_ns: int
    def __init__(self, turn_id: _Optional[int] = ..., quota_ns: _Optional[int] = ...) -> None: ...

class ReleaseSequences(_message.Message):
    __slots__ = ("handles",)
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("ready", "load_progress", "model_loaded", "model_failed", "model_unloaded", "turn_started", "step", "turn_ended", "sequence_failed", "memory", "sequence_handed_off", "sequence_imported", "sequence_fetched", "sequence_reused")
    READY_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_LOADED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FAILED_FIELD_NUMBER: _ClassVar[int]
    MODEL_UNLOADED_FIELD_NUMBER: _ClassVar[int]
    TURN_STARTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TURN_ENDED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FAILED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HANDED_OFF_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_IMPORTED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FETCHED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_REUSED_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    load_progress: LoadProgress
    model_loaded: ModelLoaded
    model_failed: ModelFailed
    model_unloaded: ModelUnloaded
    turn_started: TurnStarted
    step: StepBatch
    turn_ended: TurnEnded
    sequence_failed: SequenceFailed
    memory: _cluster_pb2.WorkerMemory
    sequence_handed_off: SequenceHandedOff
    sequence_imported: SequenceImported
    sequence_fetched: SequenceFetched
    sequence_reused: SequenceReused
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., load_progress: _Optional[_Union[LoadProgress, _Mapping]] = ..., model_loaded: _Optional[_Union[ModelLoaded, _Mapping]] = ..., model_failed: _Optional[_Union[ModelFailed, _Mapping]] = ..., model_unloaded: _Optional[_Union[ModelUnloaded, _Mapping]] = ..., turn_started: _Optional[_Union[TurnStarted, _Mapping]] = ..., step: _Optional[_Union[StepBatch, _Mapping]] = ..., turn_ended: _Optional[_Union[TurnEnded, _Mapping]] = ..., sequence_failed: _Optional[_Union[SequenceFailed, _Mapping]] = ..., memory: _Optional[_Union[_cluster_pb2.WorkerMemory, _Mapping]] = ..., sequence_handed_off: _Optional[_Union[SequenceHandedOff, _Mapping]] = ..., sequence_imported: _Optional[_Union[SequenceImported, _Mapping]] = ..., sequence_fetched: _Optional[_Union[SequenceFetched, _Mapping]] = ..., sequence_reused: _Optional[_Union[SequenceReused, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[LoadedModel]
    def __init__(self, models: _Optional[_Iterable[_Union[LoadedModel, _Mapping]]] = ...) -> None: ...

class LoadedModel(_message.Message):
    __slots__ = ("spec", "facts")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    spec: _model_pb2.ModelSpec
    facts: _model_pb2.ModelFacts
    def __init__(self, spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., facts: _Optional[_Union[_model_pb2.ModelFacts, _Mapping]] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("model", "packed_bytes", "total_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    packed_bytes: int
    total_bytes: int
    def __init__(self, model: _Optional[str] = ..., packed_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ModelLoaded(_message.Message):
    __slots__ = ("model", "reused", "load_time_ns")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    model: LoadedModel
    reused: bool
    load_time_ns: int
    def __init__(self, model: _Optional[_Union[LoadedModel, _Mapping]] = ..., reused: _Optional[bool] = ..., load_time_ns: _Optional[int] = ...) -> None: ...

class ModelFailed(_message.Message):
    __slots__ = ("model", "error")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    model: str
    error: _errors_pb2.ErrorDetail
    def __init__(self, model: _Optional[str] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class ModelUnloaded(_message.Message):
    __slots__ = ("model", "device_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    device_bytes: int
    def __init__(self, model: _Optional[str] = ..., device_bytes: _Optional[int] = ...) -> None: ...

class TurnStarted(_message.Message):
    __slots__ = ("turn_id", "switched", "switch_time_ns", "weight_copy_ns", "weight_bytes", "kv_swap_ns", "kv_bytes")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    SWITCH_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_COPY_NS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_SWAP_NS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    switched: bool
    switch_time_ns: int
    weight_copy_ns: int
    weight_bytes: int
    kv_swap_ns: int
    kv_bytes: int
    def __init__(self, turn_id: _Optional[int] = ..., switched: _Optional[bool] = ..., switch_time_ns: _Optional[int] = ..., weight_copy_ns: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., kv_swap_ns: _Optional[int] = ..., kv_bytes: _Optional[int] = ...) -> None: ...

class StepBatch(_message.Message):
    __slots__ = ("turn_id", "handles", "token_ids", "finish_reasons", "step_time_ns", "prefill_tokens", "decode_sequences", "context_tokens", "log_probabilities", "prompt_log_probabilities")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reasons: _containers.RepeatedScalarFieldContainer[_inference_pb2.FinishReason]
    step_time_ns: int
    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    log_probabilities: _inference_pb2.LogProbabilities
    prompt_log_probabilities: _inference_pb2.PromptLogProbabilities
    def __init__(self, turn_id: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reasons: _Optional[_Iterable[_Union[_inference_pb2.FinishReason, str]]] = ..., step_time_ns: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., decode_sequences: _Optional[int] = ..., context_tokens: _Optional[int] = ..., log_probabilities: _Optional[_Union[_inference_pb2.LogProbabilities, _Mapping]] = ..., prompt_log_probabilities: _Optional[_Union[_inference_pb2.PromptLogProbabilities, _Mapping]] = ...) -> None: ...

class TurnEnded(_message.Message):
    __slots__ = ("turn_id", "reason", "elapsed_ns", "steps", "recomputed_sequences")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[TurnEnded.Reason]
        REASON_COMPLETED: _ClassVar[TurnEnded.Reason]
        REASON_QUOTA: _ClassVar[TurnEnded.Reason]
        REASON_FAILED: _ClassVar[TurnEnded.Reason]
    REASON_UNSPECIFIED: TurnEnded.Reason
    REASON_COMPLETED: TurnEnded.Reason
    REASON_QUOTA: TurnEnded.Reason
    REASON_FAILED: TurnEnded.Reason
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    reason: TurnEnded.Reason
    elapsed_ns: int
    steps: int
    recomputed_sequences: int
    def __init__(self, turn_id: _Optional[int] = ..., reason: _Optional[_Union[TurnEnded.Reason, str]] = ..., elapsed_ns: _Optional[int] = ..., steps: _Optional[int] = ..., recomputed_sequences: _Optional[int] = ...) -> None: ...

class SequenceFailed(_message.Message):
    __slots__ = ("handle", "error")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    handle: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, handle: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class SequenceHandedOff(_message.Message):
    __slots__ = ("handle", "kv", "copy_time_ns")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    COPY_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    kv: KvPlace
    copy_time_ns: int
    def __init__(self, handle: _Optional[int] = ..., kv: _Optional[_Union[KvPlace, _Mapping]] = ..., copy_time_ns: _Optional[int] = ...) -> None: ...

class SequenceImported(_message.Message):
    __slots__ = ("handle", "imported_tokens", "bytes", "copy_time_ns")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    imported_tokens: int
    bytes: int
    copy_time_ns: int
    def __init__(self, handle: _Optional[int] = ..., imported_tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., copy_time_ns: _Optional[int] = ...) -> None: ...

class SequenceFetched(_message.Message):
    __slots__ = ("handle", "fetched_tokens", "bytes", "transfer_time_ns", "interruptions", "refusal")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    fetched_tokens: int
    bytes: int
    transfer_time_ns: int
    interruptions: int
    refusal: str
    def __init__(self, handle: _Optional[int] = ..., fetched_tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., transfer_time_ns: _Optional[int] = ..., interruptions: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class SequenceReused(_message.Message):
    __slots__ = ("handle", "reused_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reused_tokens: int
    def __init__(self, handle: _Optional[int] = ..., reused_tokens: _Optional[int] = ...) -> None: ...

class InspectModelRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: _model_pb2.ModelSpec
    def __init__(self, spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ...) -> None: ...

class InspectModelResponse(_message.Message):
    __slots__ = ("facts",)
    FACTS_FIELD_NUMBER: _ClassVar[int]
    facts: _model_pb2.ModelFacts
    def __init__(self, facts: _Optional[_Union[_model_pb2.ModelFacts, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("memory", "models", "current_model", "epoch")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    memory: _cluster_pb2.WorkerMemory
    models: _containers.RepeatedCompositeFieldContainer[LoadedModel]
    current_model: str
    epoch: int
    def __init__(self, memory: _Optional[_Union[_cluster_pb2.WorkerMemory, _Mapping]] = ..., models: _Optional[_Iterable[_Union[LoadedModel, _Mapping]]] = ..., current_model: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...
