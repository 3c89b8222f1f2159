"""Options of the subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="Device type; its latency profiles are used.")]
Nodes = Annotated[int, typer.Option(help="Machines.")]
Engines = Annotated[int, typer.Option(help="Devices, on all nodes together.")]
Link = Annotated[
    float | None, typer.Option(help="Host to device, GB/s.", show_default="the device's")
]
Prefetch = Annotated[bool, typer.Option(help="Copy weights while a turn runs.")]
Profile = Annotated[
    str,
    typer.Option(
        help="Models whose sizes and step times are used in turn, comma-separated.",
        show_default="the published testbed's three",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with models.csv and latency_profiles.csv to use instead of the shipped ones."
    ),
]
Mix = Annotated[
    Path | None,
    typer.Option(help="YAML or CSV file with the rate, lengths and limits of each model."),
]
Scales = Annotated[str, typer.Option(help="Factors of the mix's rates, comma-separated.")]
Policies = Annotated[str, typer.Option(help="Comma-separated.", show_default="all of them")]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", help="CSV file or name of a shipped workload; may be repeated."),
]
ModelCounts = Annotated[str, typer.Option(help="Numbers of models, comma-separated.")]
ModelCount = Annotated[int, typer.Option(help="Number of models.")]
Rate = Annotated[float, typer.Option(help="Requests/s of each model.")]
Rates = Annotated[str, typer.Option(help="Requests/s per model, comma-separated.")]
Workload = Annotated[
    str | None, typer.Option(help="CSV file or name of a shipped workload, replayed as it is.")
]
InputTokens = Annotated[
    float | None, typer.Option(help="Mean prompt length.", show_default="that of --lengths")
]
OutputTokens = Annotated[
    float | None, typer.Option(help="Mean output length.", show_default="that of --lengths")
]
EnginesPerNode = Annotated[int, typer.Option(help="Devices that a machine can hold.")]
MostEngines = Annotated[int, typer.Option("--max-engines", help="More are not tried.")]
Targets = Annotated[str, typer.Option(help="Shares of deadlines to hold, comma-separated.")]
PlanSeconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="Length of a drawn workload.",
        show_default="60, or what 300 requests take if that is longer",
    ),
]
Seeds = Annotated[int, typer.Option(help="Workloads drawn; results are their mean and range.")]
Seconds = Annotated[float, typer.Option(help="Length of a drawn workload.")]
Seed = Annotated[int, typer.Option(help="Of drawn arrivals.")]
Lengths = Annotated[str, typer.Option(help="Workload, by name or file, whose lengths are drawn.")]
TtftS = Annotated[float, typer.Option(help="Limit of the first token, seconds.")]
TpotS = Annotated[float, typer.Option(help="Limit of every further token, seconds.")]
Suite = Annotated[
    str,
    typer.Option(
        help="Run experiments of the documentation into --out: 'all', or names, comma-separated. "
        "Other options are theirs.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for tables and pictures.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
