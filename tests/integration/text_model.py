"""A tiny checkpoint with a tokenizer and a chat template, so that text goes in and comes out."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aegaeon.model_spec import ModelSpec
from tests.integration.models import LONG_CONTEXT, tiny_model
from tests.worker.models.tiny import VOCAB_SIZE

#: Of the model of `text_specs` that refuses long prompts.
SHORT_CONTEXT = 48
#: The last token, which was added.
ADDED = "New York"
#: A word that the chat template refuses.
FORBIDDEN = "forbidden"
TEMPLATE = (
    "{% for m in messages %}"
    "{% if '" + FORBIDDEN + "' in m.content %}{{ raise_exception('no such words') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{{ closing | default('') }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

#: Of a model that calls tools as Hermes and Qwen do.
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: What its calls begin with, and its last token where that was added.
BEGIN_CALL = "<tool_call>"
#: Of a model whose form of calls the template does not tell.
UNTOLD_TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
    "<{{ k }}>{{ v }}{% endfor %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def text_model(
    name: str,
    folder: Path,
    *,
    context: int = LONG_CONTEXT,
    template: str = TEMPLATE,
    added: str = ADDED,
) -> ModelSpec:
    """Bytes and two-letter words; ids 0 to 2 are special, and 2 is the end."""
    spec = tiny_model(name, "llama", folder, max_position_embeddings=context)
    special = ["<pad>", "<begin>", "<stop>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġ{a}{b}" for a in "aeiouklmnprst" for b in "aeiouklmnprstvwxyz"]
    count = VOCAB_SIZE - 1
    pieces = [*special, *alphabet, *words][:count]
    pieces += [f"Ġ{number}" for number in range(count - len(pieces))]
    backend = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=special[0], bos_token=special[1], eos_token=special[2]
    )
    tokenizer.add_tokens([added])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(spec.path())
    return spec
