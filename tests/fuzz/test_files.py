"""Whatever files hold, they are refused with a named error."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aegaeon.config.load import load_config
from aegaeon.errors import AegaeonError
from aegaeon_scheduler.core.saved import SavedCluster
from aegaeon_scheduler.service.state_file import NONSENSE, decode, encode
from aegaeon_worker.models.checkpoint import INDEX_FILE, Checkpoint
from tests.fuzz.budget import cases, mutated
from tests.scheduler.test_state_file import KNOWN
from tests.worker.models.tiny import make_checkpoint

EXAMPLES = sorted((Path(__file__).parents[2] / "docs/en/examples").glob("*.yaml"))


def is_refused(read: Callable[[], object], path: Path) -> bool:
    """Whether ``read`` raises a named error, which must say where."""
    try:
        read()
    except AegaeonError as error:
        said = str(error)
    else:
        return False
    assert str(path) in said
    return True


def test_yaml_files(tmp_path: Path) -> None:
    sound = [example.read_bytes() for example in EXAMPLES]
    path = tmp_path / "config.yaml"
    refused = 0
    for chance in cases("yaml"):
        path.write_bytes(mutated(chance.choice(sound), chance))
        refused += is_refused(lambda: load_config(path), path)
    assert refused


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("checkpoint") / "m")


def scan_all(folder: Path) -> None:
    """As far as a worker reads before it believes a checkpoint."""
    found = Checkpoint.scan(folder)
    with found.reader() as read:
        for name in found.tensors:
            read(name)


def test_safetensors_headers(tmp_path: Path, checkpoint: Path) -> None:
    data = (checkpoint / "model.safetensors").read_bytes()
    header_size = 8 + int.from_bytes(data[:8], "little")
    header, rest = data[8:header_size], data[header_size:]
    path = tmp_path / "model.safetensors"
    refused = 0
    for chance in cases("safetensors"):
        broken = _broken_header(header, chance)
        length = len(broken) if chance.random() < 0.8 else chance.randrange(1 << 64)
        path.write_bytes(length.to_bytes(8, "little") + broken + rest)
        refused += is_refused(lambda: scan_all(tmp_path), path)
    assert refused


def _broken_header(header: bytes, chance: random.Random) -> bytes:
    """Broken text, or sound JSON with one value that makes no sense."""
    if chance.random() < 0.5:
        return mutated(header, chance)
    parsed = json.loads(header)
    name = chance.choice([key for key in parsed if key != "__metadata__"])
    values = (None, [], {}, "x", -1, 1 << 70, [1], [-1, 1], ["a", "b"], [[1], [2]], 1.5, True)
    if chance.random() < 0.2:
        parsed[name] = chance.choice(values)
    else:
        parsed[name][chance.choice(("dtype", "shape", "data_offsets"))] = chance.choice(values)
    return json.dumps(parsed).encode()


def test_safetensors_indexes(tmp_path: Path, checkpoint: Path) -> None:
    shard = tmp_path / "a.safetensors"
    shard.write_bytes((checkpoint / "model.safetensors").read_bytes())
    names = list(Checkpoint.scan(checkpoint).tensors)
    sound = json.dumps({"weight_map": dict.fromkeys(names, shard.name)}).encode()
    index = tmp_path / INDEX_FILE
    files = ("../a.safetensors", "/etc/passwd", "\x00", "", ".", "b.safetensors", None, 1, [], {})
    for chance in cases("index"):
        if chance.random() < 0.5:
            index.write_bytes(mutated(sound, chance))
        else:
            parsed = json.loads(sound)
            parsed["weight_map"][chance.choice(names)] = chance.choice(files)
            index.write_text(json.dumps(parsed))
        is_refused(lambda: Checkpoint.scan(tmp_path), tmp_path)


def test_state_files() -> None:
    sound = encode(KNOWN).encode()
    assert decode(sound.decode()) == KNOWN
    for chance in cases("state file"):
        text = mutated(sound, chance).decode(errors="replace")
        with contextlib.suppress(*NONSENSE):
            assert isinstance(decode(text), SavedCluster)
