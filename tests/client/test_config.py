"""The YAML file: defaults, and errors that name file, line, key and the nearest valid key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aegaeon.config import ConfigError, load_config
from aegaeon.config.cluster import cluster_config
from aegaeon.config.schema import DeviceEntry, ModelEntry, SecuritySection, ServerSection
from aegaeon.config.unsupported import refuse_unsupported
from aegaeon.model_registry import get_registry
from aegaeon.models import ModelSpec, set_model_registry

ROOT = Path(__file__).parents[2]

WriteYaml = Callable[[str], Path]

FULL = """\
server:
  nnodes: 2
  num_engines: 3
  cpu_num_slabs: 4
  cpu_slab_size_bytes: 1048576
  model_cache_size_gb: 0.5
  model_placement_policy: round-robin
  startup_models: [b]
models:
  - name: a
    path: weights/a
    params: 4
    max_model_len: 4096
    dtype: float32
    ttft_slo_s: 2
  - name: b
    id: 7
    tool_parser: hermes
devices:
  - name: H800
    memory: 80
    bandwidth: 50.0
    price: 3
"""


def test_every_reference_field_loads_with_its_default(write_yaml: WriteYaml) -> None:
    config = load_config(write_yaml("server: {}\nmodels: [{name: a}]\n"))
    server = config.server
    assert (server.nnodes, server.num_engines, server.num_prefill_engines) == (1, 0, 1)
    assert (server.num_decode_engines, server.tensor_parallel_size) == (1, 1)
    assert (server.cpu_num_slabs, server.cpu_slab_size_bytes) == (None, None)
    assert (server.model_cache_size_gb, server.memory_utilization) == (0, 0.775)
    assert (server.dummy_weights, server.decode_work_stealing) == (False, False)
    assert server.decode_work_stealing_min_batch_gap == 2
    assert server.model_placement_policy == "least-loaded"
    assert server.request_routing_policy is None, "left to the scheduler"
    assert (server.startup_models, server.cuda_graph) == (None, None)
    assert (config.models[0].ttft_slo_s, config.models[0].tpot_slo_s) == (10.0, 0.1)
    assert config.devices == ()


def test_a_full_file_becomes_nodes_and_specs(write_yaml: WriteYaml) -> None:
    path = write_yaml(FULL)
    nodes, server = cluster_config(path)
    assert [node.node_id for node in nodes] == ["node_0", "node_1"]
    assert (nodes[0].num_engines, nodes[0].model_cache_size) == (3, 1024**3 // 2)
    assert [spec.name for spec in nodes[0].cached_models] == ["b"]
    assert server.model_placement_policy == "round-robin"
    assert nodes[0].cached_models[0].tool_parser == "hermes"
    assert load_config(path).devices[0].model_extra == {"price": 3}
    set_model_registry(path)
    spec = get_registry().get_by_name("a")
    assert spec is not None
    assert (spec.model_path, spec.max_model_len) == (str(path.parent / "weights/a"), 4096)
    assert [spec.name for spec in get_registry()] == ["a", "b"]
    assert get_registry().get_by_name("c") is None


def test_the_registry_comes_from_the_environment_when_none_was_set(
    write_yaml: WriteYaml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aegaeon.model_registry._registry", None)
    monkeypatch.delenv("AEGAEON_CONFIG_PATH", raising=False)
    with pytest.raises(ConfigError, match="AEGAEON_CONFIG_PATH"):
        get_registry()
    monkeypatch.setenv("AEGAEON_CONFIG_PATH", str(write_yaml(FULL)))
    assert "a" in get_registry()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("- a\n", ":1: expected a mapping"),
        ("serve: {}\n", ":1: unknown key serve; did you mean server?"),
        (
            "server:\n  num_engins: 1\n",
            ":2: unknown key server.num_engins; did you mean num_engines?",
        ),
        (
            "models:\n- name: a\n- name: b\n  max_model_length: 1\n",
            ":4: unknown key models[1].max_model_length; did you mean max_model_len?",
        ),
        ("server:\n  nnodes: '2'\n", ":2: server.nnodes: expected an integer, got '2' (string)"),
        ("server:\n  nnodes: true\n", "expected an integer, got True (boolean)"),
        ("server: 3\n", ":1: server: expected a mapping, got 3 (integer)"),
        ("models: {name: a}\n", "models: expected a list, got"),
        ("models:\n- path: /x\n", ":2: models[0].name is required"),
        ("models:\n- name: a\n- name: a\n", "'a' is already the name of models[0]"),
        (
            "server:\n  nnodes: 1\n  nnodes: 2\n",
            ":3: server.nnodes is given twice, first in line 2",
        ),
        (
            "server:\n  model_placement_policy: least-load\n",
            "got 'least-load' (string); did you mean least-loaded?",
        ),
        ("server:\n  memory_utilization: 1.5\n", ":2: server.memory_utilization:"),
        ("server:\n  memory_utilization: 0\n", ":2: server.memory_utilization:"),
        ("server:\n  decode_work_stealing_min_batch_gap: 1\n", "greater than or equal to 2"),
        ("server:\n  num_engines: 1\n  num_decode_engines: 2\n", ":1: server: num_engines (1) and"),
        ("server:\n  startup_models: [x]\nmodels: [{name: a}]\n", "'x' is not listed under models"),
        ("models:\n- name: a\n  tpot_slo_s: .inf\n", "models[0].tpot_slo_s"),
        (
            "models:\n- name: a\n  tool_parser: qwen3_code\n",
            "got 'qwen3_code' (string); did you mean qwen3_coder?",
        ),
        ("server: {\n", "not valid YAML"),
        ("server: !!python/name:os.system\n", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_place(
    write_yaml: WriteYaml, text: str, expected: str
) -> None:
    path = write_yaml(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_every_field_is_explained() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for section in (ServerSection, ModelEntry, DeviceEntry, SecuritySection):
        assert [name for name in section.model_fields if f"`{name}`" not in page] == []


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        load_config(tmp_path / "missing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(binary)


def test_several_errors_are_reported_together(write_yaml: WriteYaml) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write_yaml("server:\n  nnodes: 0\n  tensor_parallel_size: x\n"))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("server: {cuda_graph: {sizes: [1]}}", "server.cuda_graph"),
        ("server: {dummy_weights: true}", "server.dummy_weights"),
        ("server: {memory_utilization: 0.9}", "server.memory_utilization"),
        ("models: [{name: a, profile: p.json}]", "models[0].profile"),
    ],
)
def test_what_cannot_be_acted_on_loads_but_is_refused_at_start(
    write_yaml: WriteYaml, text: str, name: str
) -> None:
    config = load_config(write_yaml(text))
    with pytest.raises(ConfigError, match="not supported yet") as caught:
        refuse_unsupported(config, "file")
    assert name in str(caught.value)


def test_a_spec_without_files_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        ModelSpec("a", str(tmp_path / "nothing")).path()
    with pytest.raises(ConfigError, match="hf download nobody/nothing"):
        ModelSpec("nobody/nothing").path()


def test_the_documented_file_with_dedicated_engines_means_what_it_says() -> None:
    [node], server = cluster_config(ROOT / "docs/en/examples/dedicated.yaml")
    assert node.engine_roles == ("prefill", "decode", "decode")
    assert (server.scheduling_policy, server.decode_work_stealing) == ("published", True)
