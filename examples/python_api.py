"""Generate from token ids. Run it from the repository's root.

The YAML file names the model: from the local Hugging Face cache (``hf download Qwen/Qwen3-4B``), or
at a path of this machine. ``make example`` runs this with the demo model in its place.
"""

import os
import time

from aegaeon import LLMService, NodeConfig, Request
from aegaeon.config import get_model_config
from aegaeon.model_registry import get_registry
from aegaeon.models import set_model_registry
from aegaeon.utils import get_tokenizer

config_path = os.path.abspath("docs/en/examples/simple.yaml")  # noqa: PTH100
os.environ["AEGAEON_CONFIG_PATH"] = config_path
set_model_registry(config_path)
spec = get_registry().get_by_name("Qwen/Qwen3-4B")
assert spec is not None
model_config = get_model_config(spec)
tokenizer = get_tokenizer(spec.path())

service = LLMService(
    [
        NodeConfig(
            node_id="node_0",
            num_prefill_engines=0,
            num_decode_engines=0,
            num_engines=1,
            tensor_parallel_size=1,
            cpu_num_slabs=8,
            cpu_slab_size_bytes=1024**3,
            model_cache_size=20 * 1024**3,
            cached_models=[spec],
            config_path=config_path,
        )
    ]
)
request = Request(
    model=spec,
    arrival_time=time.time(),
    request_id=0,
    prompt_token_ids=tokenizer.encode("KV Cache is"),
    decode_tokens=16,
    eos_token_ids=model_config.eos_token_ids,
    max_model_len=model_config.max_model_len,
)
try:
    outputs = service.serve([request])
    if isinstance(outputs[0], BaseException):
        raise outputs[0]
    token_ids = [step.new_token_id for step in outputs[0]]
    print(tokenizer.decode(token_ids, skip_special_tokens=True))
finally:
    service.close()
