"""How far estimated times are from measured ones: on profiles with a fifth of the rows held out,
and on a live worker, where every step is foretold before it is learned from.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from aegaeon_scheduler.simulator.catalog import DATA
from benchmarks.estimator_live import Foretold, record_live
from benchmarks.estimator_profiles import ProfileErrors, profile_errors
from benchmarks.live_models import make_models
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Report, Table, Target
from benchmarks.service import NodeSizes

#: Both models of the live part fit beside each other, or neither would be switched to.
_SIZES = NodeSizes(device_bytes=880 << 20, model_cache_bytes=1 << 30, cpu_slab_bytes=128 << 20)
_LIMIT_PERCENT = 10.0


def main() -> None:
    """Measure, write the report, print it."""
    options = _options()
    profiles = profile_errors(options.profiles)
    live = _record(options) if options.seconds > 0 else []
    report = Report(
        title="Estimates against measurements",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.estimator_error"),
        machine=describe_machine(),
        versions=describe_versions(),
        settings={"live load": f"{options.seconds:g} s of arrivals on one worker of one thread"},
        figures=[],
        targets=_targets(profiles, live),
        tables=[_profile_table(profiles), *([_live_table(live)] if live else [])],
    )
    report.write(options.out, "estimator-error")
    print(report.markdown())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--profiles",
        type=Path,
        default=DATA / "latency_profiles.csv",
        help="CSV file of measured step times (default: %(default)s)",
    )
    add(
        "--seconds",
        type=float,
        default=60.0,
        help="of arrivals at the live worker; 0 leaves it out (default: %(default)s)",
    )
    add("--seed", type=int, default=1, help="of the live load (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    return parser.parse_args()


def _record(options: argparse.Namespace) -> list[Foretold]:
    with tempfile.TemporaryDirectory() as folder:
        models = [
            ModelSpec("SmolLM2-135M-Instruct", str(fetch_demo_model())),
            make_models(Path(folder), 10.0, 0.1)[0],
        ]
        return record_live(models, _SIZES, options.seconds, options.seed)


def _profile_table(profiles: dict[str, ProfileErrors]) -> Table:
    rows = [
        [
            device,
            str(len(found.models)),
            *_shares(found.prefill),
            *_shares(found.decode),
            str(found.several_passes),
        ]
        for device, found in sorted(profiles.items())
    ]
    prefill, decode = _of_all(profiles)
    several = sum(found.several_passes for found in profiles.values())
    models = sum(len(found.models) for found in profiles.values())
    rows.append(["all", str(models), *_shares(prefill), *_shares(decode), str(several)])
    header = [
        *("profiles of", "models", "prefills", "median error", "p90"),
        *("decode steps", "median error", "p90", "rows that are no single step"),
    ]
    return Table(header, rows)


def _live_table(live: Sequence[Foretold]) -> Table:
    rows = []
    for model in sorted({step.model for step in live}):
        for kind in ("decode", "prefill", "mixed", "switch"):
            found = [step for step in live if (step.model, step.kind) == (model, kind)]
            if len(found) > 1:
                times = median(step.measured_ns for step in found) / 1e6
                errors = _shares([step.error for step in found])
                rows.append([model, kind, *errors, f"{times:.1f} ms"])
    header = ["live model", "step", "number", "median error", "p90", "median time"]
    return Table(header, rows)


def _targets(profiles: dict[str, ProfileErrors], live: Sequence[Foretold]) -> list[Target]:
    prefill, decode = _of_all(profiles)
    wanted = {"profiles, prefill": prefill, "profiles, decode step": decode}
    if live:
        wanted["live, all steps"] = [step.error for step in live if step.kind != "switch"]
    return [
        Target(f"{name}: median error", 100 * median(errors), "%", _LIMIT_PERCENT, at_least=False)
        for name, errors in wanted.items()
    ]


def _of_all(profiles: dict[str, ProfileErrors]) -> tuple[list[float], list[float]]:
    return (
        [error for found in profiles.values() for error in found.prefill],
        [error for found in profiles.values() for error in found.decode],
    )


def _shares(errors: Sequence[float]) -> list[str]:
    """Number, median and 90th percentile."""
    return [str(len(errors)), f"{median(errors):.1%}", f"{quantiles(errors, n=10)[8]:.1%}"]


if __name__ == "__main__":
    main()
