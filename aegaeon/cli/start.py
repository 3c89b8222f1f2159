"""``aegaeon start``: a whole instance with one command."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from aegaeon.cli import cluster_options as options
from aegaeon.errors import ConfigError

if TYPE_CHECKING:
    from aegaeon.instances.records import InstanceRecord


def start(
    context: typer.Context,
    models: options.Models = None,
    config: options.Config = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    no_gateway: options.NoGateway = False,
    keys_file: options.KeysFile = None,
    https_cert: options.HttpsCert = None,
    https_key: options.HttpsKey = None,
    https_client_ca: options.HttpsClientCa = None,
    insecure_bind: options.InsecureBind = False,
    listen: options.Listen = None,
    metrics_port: options.MetricsPort = None,
    workers: options.Workers = None,
    prefill: options.Prefill = 0,
    decode: options.Decode = 0,
    device_memory_bytes: options.DeviceBytes = None,
    model_cache_bytes: options.CacheBytes = None,
    cpu_num_slabs: options.Slabs = None,
    cpu_slab_bytes: options.SlabBytes = None,
    shm_dir: options.ShmDir = Path("/dev/shm"),
    instance: options.Instance = None,
    log_dir: options.LogDir = None,
    logs: options.Logs = None,
    timeout_s: options.StartTimeout = 600.0,
    restarts: options.Restarts = 5,
    detach: options.Detach = False,
    as_json: options.Json = False,
    report_fd: options.ReportFd = None,
) -> None:
    """Start scheduler, workers and HTTP gateway on this machine, and deploy models.

    It runs until Ctrl-C, SIGTERM or `aegaeon stop`, and leaves nothing behind.
    """
    from aegaeon.cli.foreground import run_detached, run_here, run_reporting
    from aegaeon.cli.node_choice import NodeOptions, choose_nodes
    from aegaeon.cli.target import instance_name
    from aegaeon.instances.plan import GatewayPlan, InstancePlan

    sizes = NodeOptions(
        workers,
        prefill,
        decode,
        device_memory_bytes,
        model_cache_bytes,
        cpu_num_slabs,
        cpu_slab_bytes,
        shm_dir,
    )
    nodes, policies = choose_nodes(config, models or [], sizes)
    gateway = GatewayPlan(host, port, keys_file, https_cert, https_key, https_client_ca)
    if no_gateway and gateway != GatewayPlan():
        raise ConfigError("--no-gateway: the gateway's options have no effect without it")
    plan = InstancePlan(
        instance=instance_name(instance),
        nodes=tuple(nodes),
        policies=policies,
        gateway=None if no_gateway else gateway,
        listen=listen,
        insecure_bind=insecure_bind,
        metrics_port=metrics_port,
        log_dir=log_dir,
        timeout_s=timeout_s,
        restarts=restarts,
    )
    if detach:
        arguments = [word for word in context.obj if word != "--detach"]
        _show(run_detached(arguments), as_json, "`aegaeon stop` stops it.")
    elif report_fd is not None:
        run_reporting(plan, report_fd)
    else:
        copy = not sys.stderr.isatty() if logs is None else logs
        run_here(plan, copy, lambda record: _show(record, as_json, "Ctrl-C stops it."))


def _show(record: InstanceRecord, as_json: bool, how_to_stop: str) -> None:
    if as_json:
        print(json.dumps(asdict(record)), flush=True)
        return
    print(f"Instance {record.instance} serves, as process {record.pid}.")
    if record.url:
        print(f"  gateway    {record.url}")
    print(f"  scheduler  {record.address}")
    print(f"  logs       {record.log_dir}")
    for url in record.metrics:
        print(f"  metrics    {url}")
    print(how_to_stop, flush=True)
