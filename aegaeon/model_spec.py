"""A model as clients name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aegaeon.errors import ConfigError

DEFAULT_TTFT_SLO_S = 10.0
DEFAULT_TPOT_SLO_S = 0.1

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ModelSpec:
    """Where a model comes from and how it is served; usually an entry of the YAML file."""

    #: Unique in the cluster.
    name: str
    #: Folder with config.json and safetensors files; None means the local Hugging Face cache.
    model_path: str | None = None
    #: Numeric type; "auto" is float32 on CPUs and bfloat16 on GPUs.
    dtype: DTypeName = "auto"
    #: Context limit in tokens; None means the smallest that the model's files name.
    max_model_len: int | None = None
    trust_remote_code: bool = False
    #: Objectives: seconds to the first token, seconds per further token. None: the scheduler's,
    #: which are `DEFAULT_TTFT_SLO_S` and `DEFAULT_TPOT_SLO_S` unless it was told otherwise.
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    #: Requests that begin with the same tokens share the KV of these.
    prefix_caching: bool = True
    #: Parameters in units of 2^30, as in the YAML file.
    params: float | None = None
    id: int | str | None = None
    #: How the model writes calls of tools, by a name of `aegaeon.tool_parsers.TOOL_PARSERS`; None
    #: means that its chat template tells.
    tool_parser: str | None = None

    def path(self) -> str:
        """The model's folder, absolute. Raises ConfigError when it is nowhere on this machine."""
        if self.model_path is not None:
            folder = Path(self.model_path).expanduser().absolute()
            if not folder.is_dir():
                raise ConfigError(
                    f"model {self.name!r}: its path {folder} is not a folder on this machine",
                    metadata={"field": "path", "value": folder},
                )
            return str(folder)
        return self._cached_snapshot()

    def _cached_snapshot(self) -> str:
        # Imported here: most specs have a path, and the import costs a third of a second.
        from huggingface_hub import snapshot_download

        try:
            return str(snapshot_download(self.name, local_files_only=True))
        except Exception as error:
            raise ConfigError(
                f"model {self.name!r}: it has no path in the YAML file and is not in the local "
                f"Hugging Face cache; set its path, or run: hf download {self.name}",
                metadata={"field": "path", "value": self.name},
            ) from error
