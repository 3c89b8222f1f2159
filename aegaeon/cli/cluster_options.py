"""Options of the subcommands that start or reach a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from aegaeon.cli.completion import complete_models
from aegaeon.tool_parsers import ToolParserName

Address = Annotated[
    str | None,
    typer.Option(
        help="Scheduler, host:port or unix:path.",
        show_default="AEGAEON_ADDRESS, else that of --instance",
    ),
]
Instance = Annotated[
    str | None,
    typer.Option(
        help="Instance that `aegaeon start` runs here.", show_default="AEGAEON_INSTANCE, or default"
    ),
]
Timeout = Annotated[float, typer.Option("--timeout-s", help="Time to answer, in seconds.", min=0.1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=complete_models),
]

# start
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="Models to deploy: NAME=FOLDER, a FOLDER, or a name in --config or in the local "
        "Hugging Face cache.",
        show_default="those that --config starts with",
    ),
]
Config = Annotated[Path | None, typer.Option(help="YAML file with server and models.")]
Host = Annotated[str, typer.Option(help="Address that the gateway listens on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0: any free one.")]
NoGateway = Annotated[bool, typer.Option("--no-gateway", help="Start none.")]
KeysFile = Annotated[
    Path | None, typer.Option(help="File with the keys that its callers need, see aegaeon keys.")
]
HttpsCert = Annotated[Path | None, typer.Option(help="PEM certificate chain for HTTPS.")]
HttpsKey = Annotated[Path | None, typer.Option(help="Its private key.")]
HttpsClientCa = Annotated[
    Path | None, typer.Option(help="PEM authorities of certificates that its callers must show.")
]
InsecureBind = Annotated[
    bool, typer.Option("--insecure-bind", help="Allow addresses beyond loopback without them.")
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--scheduler-listen",
        help="host:port or unix:path of the scheduler.",
        show_default="a socket of this user",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Port of the scheduler's Prometheus metrics, on loopback; workers take the next ones.",
        show_default="none; those of the gateway are at its /metrics",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Workers, one per device.", show_default="the GPUs, or one on a CPU"),
]
Prefill = Annotated[
    int, typer.Option("--prefill-workers", min=0, help="Instead: workers for prompts alone, and")
]
Decode = Annotated[int, typer.Option("--decode-workers", min=0, help="workers for the rest.")]
DeviceBytes = Annotated[
    int | None,
    typer.Option(
        "--device-memory-bytes", min=1, help="Pool of each CPU worker.", show_default="sized"
    ),
]
CacheBytes = Annotated[
    int | None,
    typer.Option("--model-cache-bytes", min=1, help="Weight cache.", show_default="sized"),
]
Slabs = Annotated[
    int | None, typer.Option("--cpu-num-slabs", min=1, help="KV slabs.", show_default="sized")
]
SlabBytes = Annotated[
    int | None,
    typer.Option("--cpu-slab-bytes", min=1, help="Bytes of one slab.", show_default="sized"),
]
ShmDir = Annotated[Path, typer.Option(help="Folder of shared memory.")]
LogDir = Annotated[
    Path | None,
    typer.Option(help="Folder where logs stay.", show_default="they go with the instance"),
]
Logs = Annotated[
    bool | None,
    typer.Option(
        "--logs/--no-logs",
        help="Copy the daemons' logs to standard error.",
        show_default="unless it is a terminal",
    ),
]
StartTimeout = Annotated[
    float, typer.Option("--timeout-s", min=1, help="Time until all models are ready, in seconds.")
]
Restarts = Annotated[
    int,
    typer.Option(min=0, help="So many times a minute a daemon that dies is started again."),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return once it serves, and leave it running.")
]
ReportFd = Annotated[int | None, typer.Option(hidden=True)]

# stop
StopTimeout = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Time to wait for its end, in seconds.")
]
Drain = Annotated[
    bool,
    typer.Option("--drain", help="First let requests under way end, and take no new ones."),
]
DrainTimeout = Annotated[
    float, typer.Option(min=0.01, help="Time for them to end, in seconds; then nothing is stopped.")
]
Force = Annotated[
    bool, typer.Option("--force", help="After that time, kill it; its daemons end within 10 s.")
]

# deploy, undeploy
ModelPath = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="Its folder, as the nodes see it.",
        show_default="that of the deployed model, or the local Hugging Face cache",
    ),
]
Replicas = Annotated[int, typer.Option(min=1, help="Nodes that shall have it, at least.")]
NodeIds = Annotated[
    list[str] | None,
    typer.Option("--node", help="Exactly this node; may be repeated.", show_default="placement's"),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(min=1, help="Context limit in tokens.", show_default="that of its files"),
]
DType = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Numeric type.", show_default="the device's best"),
]
ToolParser = Annotated[
    ToolParserName | None,
    typer.Option(help="How it writes calls of tools.", show_default="as its chat template tells"),
]
TtftSlo = Annotated[
    float | None, typer.Option("--ttft-slo-s", help="Objective for the first token, seconds.")
]
TpotSlo = Annotated[
    float | None, typer.Option("--tpot-slo-s", help="Objective per further token, seconds.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code from the model's folder.")
]
