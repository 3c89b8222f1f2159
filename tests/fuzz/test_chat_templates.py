"""Whatever a model's chat template says or does, the caller gets a prompt or a named error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from aegaeon.http.chat import chat_prompt
from aegaeon.http.errors import ApiError
from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import ChatBody
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.utils import load_tokenizer
from tests.fuzz.budget import cases, mutated
from tests.integration.text_model import TEMPLATE, text_model

PIECES = (
    "{% for m in messages %}",
    "{% endfor %}",
    "{{ m.role }}",
    "{{ messages[9].content }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% set x = 1 / 0 %}",
    "{{ raise_exception('no') }}",
    "{{ messages | tojson }}",
    "{% include '/etc/passwd' %}",
    "{{ undefined.thing }}",
    "{% if add_generation_prompt %}",
    "{% endif %}",
    "{{ bos_token * 3 }}",
    "<|x|>",
    "{{ strftime_now('%Y') }}",
    "{{",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(text_model("text", tmp_path_factory.mktemp("chat")).path())


def served(folder: Path) -> ServedModel:
    tokenizer = load_tokenizer(folder)
    return ServedModel("text", 4096, 512, (2,), tokenizer, Vocabulary(tokenizer))


def _template(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return mutated(TEMPLATE.encode(), chance).decode(errors="replace")
    return "".join(chance.choices(PIECES, k=chance.randint(1, 6)))


def _messages(chance: random.Random) -> list[dict[str, Any]]:
    roles = ("system", "user", "assistant", "developer")
    texts = ("", "hi", "é\u0000", "{{ 7 * 7 }}", "x" * 1_000)
    return [
        {"role": chance.choice(roles), "content": chance.choice(texts)}
        for _ in range(chance.randint(1, 4))
    ]


def test_chat_templates(folder: Path) -> None:
    model = served(folder)
    prompts, refused = 0, set()
    for chance in cases("chat template"):
        model.tokenizer.chat_template = _template(chance)
        body = ChatBody(model="text", messages=_messages(chance))
        try:
            ids = chat_prompt(model, body.messages, {})
        except ApiError as error:
            refused.add(error.status)
        else:
            prompts += 1
            assert all(0 <= token < 512 for token in ids)
    assert prompts
    assert refused == {400}


def test_a_template_reaches_nothing_of_the_machine(folder: Path) -> None:
    model = served(folder)
    body = ChatBody(model="text", messages=[{"role": "user", "content": "hi"}])
    for template in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ):
        model.tokenizer.chat_template = template
        with pytest.raises(ApiError):
            chat_prompt(model, body.messages, {})


def test_what_a_caller_writes_is_no_template(folder: Path) -> None:
    model = served(folder)
    body = ChatBody(model="text", messages=[{"role": "user", "content": "{{ 7 * 7 }}"}])
    text = model.tokenizer.decode(chat_prompt(model, body.messages, {}))
    assert "{{ 7 * 7 }}" in text
