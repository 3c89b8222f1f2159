"""Figures as JSON for programs and as Markdown for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity."""

    name: str
    unit: str
    samples: list[float]

    @property
    def median(self) -> float:
        """Of the samples."""
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Target:
    """A figure with the limit that it must keep."""

    name: str
    value: float
    unit: str
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        """The value is on the right side of its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Table:
    """Figures that belong together, a row for each case."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> list[str]:
        """Its lines."""
        rules = ["---"] * len(self.header)
        return ["| " + " | ".join(row) + " |" for row in (self.header, rules, *self.rows)]


@dataclass(frozen=True)
class Report:
    """One run of a benchmark."""

    title: str
    date: str
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    figures: Sequence[Figure]
    targets: Sequence[Target]
    tables: Sequence[Table] = ()

    def write(self, folder: Path, name: str) -> Path:
        """Write ``<date>-<name>.json`` and ``.md``; returns the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"{self.date}-{name}"
        stem.with_suffix(".json").write_text(json.dumps(self._data(), indent=2) + "\n")
        stem.with_suffix(".md").write_text(self.markdown())
        return stem.with_suffix(".md")

    def markdown(self) -> str:
        """The tables and what they were measured with."""
        lines = [f"# {self.title}", "", f"{self.date}, `{self.command}`", ""]
        for facts in (self.machine, self.versions, self.settings):
            lines.append("- " + ", ".join(f"{key} {value}" for key, value in facts.items()))
        for table in self.tables:
            lines += ["", *table.markdown()]
        if self.figures:
            lines += ["", "| figure | median | range | unit |", "| --- | --- | --- | --- |"]
        for figure in self.figures:
            low, high = min(figure.samples), max(figure.samples)
            lines.append(
                f"| {figure.name} | {figure.median:.2f} | {low:.2f}-{high:.2f} | {figure.unit} |"
            )
        lines += ["", "| target | measured | required | met |", "| --- | --- | --- | --- |"]
        for target in self.targets:
            bound = "at least" if target.at_least else "at most"
            lines.append(
                f"| {target.name} | {target.value:.2f} {target.unit} | "
                f"{bound} {target.limit:.2f} {target.unit} | {'yes' if target.met else 'no'} |"
            )
        return "\n".join(lines) + "\n"

    def _data(self) -> dict[str, object]:
        data = asdict(self)
        data["figures"] = [asdict(item) | {"median": item.median} for item in self.figures]
        data["targets"] = [asdict(item) | {"met": item.met} for item in self.targets]
        return data
