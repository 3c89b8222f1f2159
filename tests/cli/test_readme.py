"""The README's calls from anywhere do what they show, on an instance that is started as it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from aegaeon.demo_model import fetch_demo_model
from aegaeon.utils import get_tokenizer
from tests.cli.conftest import MIB, Command, two_free_ports
from tests.integration.surroundings import ROOT

README = (ROOT / "README.md").read_text()
SECTION = README.partition("## Use it from anywhere")[2].partition("\n## ")[0]
NODE = ROOT / "examples" / "node"
#: Answers end where the context does, so that the model may say what it likes.
CONTEXT = 80
INSTANCE = "readme"


def example(language: str, beginning: str) -> str:
    """The block that begins like this."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    [found] = [text for kind, text in blocks if kind == language and text.startswith(beginning)]
    return str(found)


@dataclass(frozen=True)
class Served:
    """An instance, and where it is."""

    command: Command
    url: str
    scheduler: str

    def here(self, text: str) -> str:
        """With the ports of this instance."""
        for printed, found in (
            ("http://127.0.0.1:8000", self.url),
            ("127.0.0.1:7700", self.scheduler),
        ):
            text = text.replace(printed, found)
        return text

    def run(self, arguments: list[str], **options: Any) -> str:
        """Standard output of a program that succeeds."""
        environment = {**self.command.surroundings.environment, "AEGAEON_INSTANCE": INSTANCE}
        done = subprocess.run(
            arguments,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture(scope="module")
def served(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`aegaeon start` as it is printed, with other ports, little memory and short answers."""
    printed = example("", "aegaeon start").splitlines()[0].split()[1:]
    [model] = [word for word in printed if "=" in word]
    assert model == "SmolLM2=/models/SmolLM2"
    file = tmp_path_factory.mktemp("readme") / "aegaeon.yaml"
    entry = {"name": "SmolLM2", "path": str(fetch_demo_model()), "max_model_len": CONTEXT}
    file.write_text(json.dumps({"models": [entry]}))
    sizes = {
        "--workers": 1,
        "--device-memory-bytes": 700 * MIB,
        "--model-cache-bytes": 600 * MIB,
        "--cpu-num-slabs": 1,
        "--cpu-slab-bytes": 16 * MIB,
    }
    port = str(two_free_ports())
    given = [word.replace("7700", port) for word in printed if word != model]
    more = [str(word) for flag in sizes.items() for word in flag]
    paths = ["--config", str(file), "--shm-dir", str(command.shm_dir)]
    status, out, err = command.run(
        *given, *paths, *more, "--port", "0", "--instance", INSTANCE, "--detach", "--json"
    )
    assert status == 0, err
    record = json.loads(out)
    yield Served(command, record["url"], record["address"])
    assert command.run("stop", "--instance", INSTANCE)[0] == 0


def test_the_command_line_answers(served: Served) -> None:
    words = shlex.split(example("", "aegaeon start").splitlines()[1])
    assert words[0] == "aegaeon"
    assert served.run([sys.executable, "-m", "aegaeon.cli", *words[1:]], cwd=ROOT).strip()


def test_curl_streams_chunks(served: Served) -> None:
    words = shlex.split(served.here(example("", "curl")))
    out = served.run([*words, "--silent", "--show-error", "--fail"])
    *events, end = [line.removeprefix("data: ") for line in out.splitlines() if line[:1] == "d"]
    assert end == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas)


def test_python_prints_the_answer(served: Served) -> None:
    assert served.run([sys.executable, "-c", served.here(example("python", "from openai"))])


def test_node_prints_the_answer(served: Served) -> None:
    # Modules are looked for where the program is said to be.
    program = served.here(example("js", "import OpenAI"))
    arguments = ["node", "--input-type=module", "--eval", program]
    assert served.run(arguments, cwd=NODE)


def test_grpcurl_s_call_is_one_of_the_server_s(served: Served) -> None:
    """What the program does with these arguments: it asks the server for its services, reads the
    body as JSON of the request, and calls."""
    words = shlex.split(served.here(example("", "grpcurl")))
    program, plaintext, data, body, address, method = words
    assert (program, plaintext, data) == ("grpcurl", "-plaintext", "-d")
    with grpc.insecure_channel(address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service, _, name = method.partition("/")
        found = pool.FindServiceByName(service).FindMethodByName(name)
        answers = list(call(channel, found, body))
    tokens = [token for answer in answers for token in answer.token_ids]
    assert 1 <= len(tokens) <= json.loads(body)["stop"]["max_new_tokens"]
    assert answers[-1].finish_reason
    tokenizer = get_tokenizer(fetch_demo_model())
    prompt = json.loads(body)["prompt_token_ids"]
    assert f'("{tokenizer.decode(prompt)}")' in SECTION


def call(channel: grpc.Channel, method: MethodDescriptor, body: str) -> Iterator[Any]:
    """The messages that a server streams back."""
    assert method.server_streaming
    assert not method.client_streaming
    request = json_format.Parse(body, GetMessageClass(method.input_type)())
    stream = channel.unary_stream(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return iter(stream(request, timeout=60))
