"""The YAML file's sections. Field names are those that users know from existing files."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from aegaeon.model_spec import DTypeName
from aegaeon.tool_parsers import ToolParserName

PlacementPolicyName = Literal["least-loaded", "round-robin"]
RoutingPolicyName = Literal["least-outstanding", "round-robin", "prefix-aware"]
SchedulingPolicyName = Literal["deadline", "round-robin", "published", "request-level"]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    # Strict: "8" is not 8 and true is not 1; a file that means something else must not load.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, protected_namespaces=(), allow_inf_nan=False
    )


class ServerSection(_Section):
    """How many engines there are, and how much memory each node gives them."""

    nnodes: Positive = 1
    #: Engines per node that prefill and decode; the next two count where there are none.
    num_engines: Count = 0
    num_prefill_engines: Count = 1
    num_decode_engines: Count = 1
    tensor_parallel_size: Positive = 1
    #: Host KV slabs per node; absent means sized from the machine.
    cpu_num_slabs: Positive | None = None
    #: Bytes of one slab; absent means sized from the machine.
    cpu_slab_size_bytes: Positive | None = None
    #: Weight cache per node in GiB; 0 means sized from the machine.
    model_cache_size_gb: Annotated[float, Field(ge=0)] = 0
    #: Share of a GPU's memory for weights and KV.
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.775
    dummy_weights: bool = False
    #: An idle decode engine takes a whole batch that has not run from a loaded one of its node.
    decode_work_stealing: bool = False
    #: Batches by which a loaded engine must lead before one is taken from it.
    decode_work_stealing_min_batch_gap: Annotated[int, Field(ge=2)] = 2
    model_placement_policy: PlacementPolicyName = "least-loaded"
    #: Absent means what the scheduler is started with, which is prefix-aware by default.
    request_routing_policy: RoutingPolicyName | None = None
    #: How a scheduler that is started from this file plans turns.
    scheduling_policy: SchedulingPolicyName = "deadline"
    #: Names of models to deploy at start; absent means all, an empty list none.
    startup_models: tuple[str, ...] | None = Field(default=None, strict=False)
    cuda_graph: Any = None

    @model_validator(mode="after")
    def _engines_are_of_one_kind(self) -> Self:
        for name in ("num_prefill_engines", "num_decode_engines"):
            if self.num_engines and name in self.model_fields_set and getattr(self, name):
                raise ValueError(
                    f"num_engines ({self.num_engines}) and {name} ({getattr(self, name)}) exclude "
                    "each other: keep one of them, or set the other to 0"
                )
        return self


class ModelEntry(_Section):
    """A model that may be deployed."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    #: Folder with config.json and safetensors files, relative to the YAML file; absent means the
    #: local Hugging Face cache under ``name``.
    path: str | None = None
    #: Parameters in units of 2^30.
    params: Annotated[float, Field(gt=0)] | None = None
    #: Name of its rows in the profiles of devices; absent means one that begins its own name.
    profile: str | None = None
    #: Context limit in tokens; absent means the smallest that the model's files name.
    max_model_len: Positive | None = None
    id: int | str | None = None
    #: How the model writes calls of tools; absent means that its chat template tells.
    tool_parser: ToolParserName | None = None
    #: Numeric type of weights and KV; "auto" is float32 on CPUs and bfloat16 on GPUs.
    dtype: DTypeName = "auto"
    #: Runs code from the model's folder.
    trust_remote_code: bool = False
    #: Objective for the time to the first token, in seconds. The scheduler's flags, of the same
    #: defaults, hold for a model whose entry does not name it.
    ttft_slo_s: Seconds = 10.0
    #: Objective for the time per further token, in seconds; as above.
    tpot_slo_s: Seconds = 0.1
    #: Requests that begin with the same tokens share the KV of these.
    prefix_caching: bool = True


class DeviceEntry(_Section):
    """A device type; keys that are not listed here are kept in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    #: GiB.
    memory: Annotated[float, Field(gt=0)] | None = None
    #: Host to device, GiB/s.
    bandwidth: Annotated[float, Field(gt=0)] | None = None
    #: CSV file of measured step times, relative to the YAML file.
    profile: str | None = None


FilePath = Annotated[str, Field(min_length=1)]


class SecuritySection(_Section):
    """Files of certificates and keys, relative to the YAML file; fields are those of
    `aegaeon.security.settings.SecuritySettings`."""

    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    tls_ca: FilePath | None = None
    tls_server_name: Annotated[str, Field(min_length=1)] | None = None
    tls_any_client: bool | None = None
    token_file: FilePath | None = None
    keys_file: FilePath | None = None
    https_cert: FilePath | None = None
    https_key: FilePath | None = None
    https_client_ca: FilePath | None = None


class AegaeonConfig(_Section):
    """A whole file. ``devices`` may be absent: devices are detected."""

    server: ServerSection = ServerSection()
    models: tuple[ModelEntry, ...] = Field(default=(), strict=False)
    devices: tuple[DeviceEntry, ...] = Field(default=(), strict=False)
    security: SecuritySection = SecuritySection()

    @model_validator(mode="after")
    def _names_are_consistent(self) -> Self:
        names = [model.name for model in self.models]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(
                    f"models[{index}].name: {name!r} is already the name of "
                    f"models[{names.index(name)}]; names must be unique"
                )
        for name in self.server.startup_models or ():
            if name not in names:
                raise ValueError(
                    f"server.startup_models: {name!r} is not listed under models; known: "
                    f"{', '.join(names) or 'none'}"
                )
        return self
