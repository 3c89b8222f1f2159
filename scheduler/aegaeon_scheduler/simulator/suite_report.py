"""What a part of the suite found: JSON and a picture per part, and one page of tables."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from collections.abc import Sequence as Items
from datetime import date
from pathlib import Path
from typing import Any

from aegaeon_scheduler.simulator.experiment import SCALE
from aegaeon_scheduler.simulator.mix import kind_of
from aegaeon_scheduler.simulator.picture import Chart
from aegaeon_scheduler.simulator.policies import DEFAULT_POLICY
from aegaeon_scheduler.simulator.report import describe
from aegaeon_scheduler.simulator.suite import Part, part_names
from aegaeon_scheduler.simulator.sweep import BOUND, Point, capacity, lines_of

#: The policy that the default one must never fall behind by more than two points, and all that it
#: is compared with; round-robin is an order of turns of this project's own.
_PUBLISHED = "published"
_BASELINES = (_PUBLISHED, "request-level", "static")


def write_part(folder: Path, part: Part, points: Items[Point]) -> None:
    """``NAME.json`` and, for a part along an axis, ``NAME.svg``."""
    rows = [describe(point) | _kinds(part, point) for point in points]
    found: dict[str, Any] = {
        "title": part.title,
        "x": part.x_label,
        "axis": part.between is not None,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "capacity": {},
        "points": rows,
    }
    if part.between is not None:
        lines = lines_of(points)
        found["capacity"] = {policy: _capacity(line) for policy, line in lines.items()}
        picture = Chart(lines, part.x_label).svg()
        (folder / f"{part.name}.svg").write_text(picture, encoding="utf-8")
    text = json.dumps(found, indent=1)
    (folder / f"{part.name}.json").write_text(text + "\n", encoding="utf-8")


def write_page(folder: Path) -> None:
    """``README.md`` from the parts that the folder has."""
    parts = {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in part_names()
        if (folder / f"{name}.json").exists()
    }
    lines = [
        "# Simulated capacity",
        "",
        "Written by `aegaeon simulate --suite all --out FOLDER`; what is simulated, and what it",
        "means, is in [Scheduling](../scheduling.md). Shares are those of token deadlines met.",
        "",
        *_capacities(parts),
        *_margins(parts),
    ]
    for name, part in parts.items():
        lines += _section(name, part)
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _capacity(line: Items[tuple[float, float]]) -> float | None:
    found = capacity(line)
    return None if found is None else round(found, 3)


def _capacities(parts: dict[str, Any]) -> Iterator[str]:
    """Where each policy falls below 90 %, one row per part, with factors of ours to others."""
    along = {name: part for name, part in parts.items() if part["axis"]}
    if not along:
        return
    policies = list(dict.fromkeys(p for part in along.values() for p in part["capacity"]))
    yield "## Capacity at 90 %"
    yield ""
    yield from _table_head(["experiment", *policies, "ours / published", "ours / best baseline"])
    for name, part in along.items():
        found = part["capacity"]
        cells = [_number(found[policy]) if policy in found else "" for policy in policies]
        yield _row([f"[{name}](#{_anchor(part['title'])}), {part['x']}", *cells, *_factors(found)])
    yield ""


def _factors(found: dict[str, float | None]) -> list[str]:
    ours = found.get(DEFAULT_POLICY)
    known = [found[policy] for policy in _BASELINES if policy in found]
    best = None if None in known else max((x for x in known if x), default=None)
    return [
        f"{ours / other:.2f}" if ours and other else "" for other in (found.get(_PUBLISHED), best)
    ]


def _margins(parts: dict[str, Any]) -> Iterator[str]:
    """The points at which ours is least ahead of, or most behind, the others."""
    yield "## Where the default policy is least ahead"
    yield ""
    yield from _table_head(["experiment", "than", "workload", "ours", "theirs", "points ahead"])
    for name, part in parts.items():
        worst: dict[str, tuple[float, list[str]]] = {}
        for row in part["points"]:
            policy, theirs = row["policy"], row["token_attainment"]
            ours = _share(part, row["workload"], DEFAULT_POLICY)
            if policy in (DEFAULT_POLICY, BOUND) or ours is None:
                continue
            margin = ours - theirs
            cells = [row["workload"], f"{ours:.1%}", f"{theirs:.1%}", f"{100 * margin:+.1f}"]
            group = policy if policy in _BASELINES else "other orders of turns"
            worst[group] = min(worst.get(group, (2.0, cells)), (margin, cells))
        for group, (_, cells) in worst.items():
            yield _row([name, group, *cells])
    yield ""


def _share(part: dict[str, Any], workload: str, policy: str) -> float | None:
    for row in part["points"]:
        if (row["workload"], row["policy"]) == (workload, policy):
            return float(row["token_attainment"])
    return None


def _section(name: str, part: dict[str, Any]) -> Iterator[str]:
    yield f"## {part['title']}"
    yield ""
    yield f"`{name}.json`, {part['date']}, Python {part['python']}."
    yield ""
    if part["axis"]:
        yield f"![{part['title']}]({name}.svg)"
        yield ""
    if name == "scale":
        yield from _scale_table(part)
        return
    yield from _shares_table(part, "token_attainment")
    yield "Share of requests whose TTFT and every gap between tokens meet the limits:"
    yield ""
    yield from _shares_table(part, "request_attainment")
    yield from _kinds_table(part)


def _shares_table(part: dict[str, Any], key: str) -> Iterator[str]:
    """Workloads by policies, without those that only the search for a capacity added."""
    rows: dict[str, dict[str, float]] = {}
    places: dict[str, float] = {}
    for row in part["points"]:
        if key in row:
            rows.setdefault(row["workload"], {})[row["policy"]] = row[key]
            places[row["workload"]] = row["x"]
    if part["axis"]:
        shared = [item for item in rows.items() if len(item[1]) > 1]
        rows = dict(sorted(shared, key=lambda item: places[item[0]]))
    policies = list(dict.fromkeys(policy for shares in rows.values() for policy in shares))
    yield from _table_head([part["x"] if part["axis"] else "workload", *policies])
    for workload, shares in rows.items():
        first = f"{places[workload]:g}" if part["axis"] else workload
        cells = [f"{shares[p]:.1%}" if p in shares else "" for p in policies]
        yield _row([first, *cells])
    yield ""


def _kinds(part: Part, point: Point) -> dict[str, Any]:
    if part.x_label != SCALE or point.result is None:
        return {}
    shares = point.result.token_attainment_by(kind_of)
    return {"kinds": {kind: round(share, 4) for kind, share in shares.items()}}


def _kinds_table(part: dict[str, Any]) -> Iterator[str]:
    """Each kind of model of a mix, where the default policy is near its capacity."""
    known = [row for row in part["points"] if "kinds" in row]
    if not known:
        return
    at = min(known, key=lambda row: abs(row["x"] - (part["capacity"][DEFAULT_POLICY] or row["x"])))
    rows = {row["policy"]: row["kinds"] for row in known if row["x"] == at["x"]}
    yield f"By kind of model, at {at['x']:g} times the rates:"
    yield ""
    yield from _table_head(["kind", *rows])
    for kind in at["kinds"]:
        yield _row([kind, *(f"{kinds[kind]:.1%}" for kinds in rows.values())])
    yield ""


def _scale_table(part: dict[str, Any]) -> Iterator[str]:
    yield from _table_head(["engines", "models", "requests", "events", "decision", "simulation"])
    for row in part["points"]:
        counts = (round(row["x"] / 5), round(row["x"]), row["requests"], row["events"])
        decision = f"{row['decision_us']:.1f} us per event"
        cells = [*(f"{count:,}" for count in counts), decision, f"{row['processor_seconds']:.1f} s"]
        yield _row(cells)
    yield ""


def _table_head(cells: list[str]) -> Iterator[str]:
    yield _row(cells)
    yield _row(["---"] * len(cells))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if not value:
        return "beyond" if value is None else "below"
    return f"{value:.3g}"


def _anchor(title: str) -> str:
    kept = [c for c in title.lower() if c.isalnum() or c in " -_"]
    return "".join(kept).replace(" ", "-")
