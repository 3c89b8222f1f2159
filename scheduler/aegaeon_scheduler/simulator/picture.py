"""A line chart as SVG text; small enough not to need a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 780, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 176, 28, 60
_END = _WIDTH - _RIGHT
#: Told apart by most colour-blind readers, and visible on white and on black.
_COLORS = ("#0a7cc4", "#d9630f", "#0f9d76", "#c45fa0", "#b58900", "#7f7f7f", "#4fa3d9", "#8d6bc9")
_DASHES = ("none", "8 3", "2 3", "10 3 2 3", "5 2", "1 4", "12 4", "4 4")
_STYLE = """
.back{fill:#ffffff}.ink{fill:#1f2328}.axis{stroke:#1f2328}.grid{stroke:#d8dee4}
.mark{stroke:#6e7781;stroke-dasharray:3 4}
@media (prefers-color-scheme: dark){.back{fill:#0d1117}.ink{fill:#e6edf3}.axis{stroke:#e6edf3}
.grid{stroke:#30363d}.mark{stroke:#8b949e}}
"""

#: Points of a line, by ascending x.
Line = Items[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Shares from 0 to 1 against ``x_label``, one line per name."""

    lines: Mapping[str, Line]
    x_label: str
    y_label: str = "token deadlines met"
    #: Shares that are marked by a dashed horizontal line.
    targets: Items[float] = (0.9,)
    #: Lowest and highest share at an x, drawn behind the line of the same name.
    bands: Mapping[str, Items[tuple[float, float, float]]] = field(default_factory=dict)
    #: Text at a vertical line, by x.
    marks: Mapping[float, str] = field(default_factory=dict)

    def svg(self) -> str:
        """The picture; it follows the reader's light or dark colour scheme."""
        middle = (_LEFT + _END) / 2
        turned = (_TOP + _HEIGHT - _BOTTOM) / 2
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(self.y_label)} by {escape(self.x_label)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
            *self._grid(),
            *self._marks(),
        ]
        for index, name in enumerate(self.lines):
            parts += self._line(index, name)
        parts += [
            f'<text class="ink" x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>",
            f'<text class="ink" x="18" y="{turned:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 18 {turned:.0f})">{escape(self.y_label)}</text>',
        ]
        return "\n".join([*parts, "</svg>", ""])

    def _grid(self) -> list[str]:
        parts = []
        for share in sorted({0.0, 0.25, 0.5, 0.75, 1.0, *self.targets}):
            kind = "mark" if share in self.targets else "axis" if share == 0 else "grid"
            y = _y(share)
            parts.append(f'<path class="{kind}" d="M{_LEFT} {y:.1f}H{_END}"/>')
            crowded = any(0 < abs(share - other) < 0.05 for other in self.targets)
            if share in self.targets or not crowded:
                parts.append(
                    f'<text class="ink" x="{_LEFT - 8}" y="{y + 4.5:.1f}" text-anchor="end">'
                    f"{share:.0%}</text>"
                )
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{_y(0):.1f}"/>')
        whole = all(x == int(x) for line in self.lines.values() for x, _ in line)
        for tick in _ticks(*self._span(), least=1.0 if whole else 0.0):
            x = self._x(tick)
            parts.append(
                f'<path class="axis" d="M{x:.1f} {_y(0):.1f}v5"/>'
                f'<text class="ink" x="{x:.1f}" y="{_y(0) + 20:.1f}" text-anchor="middle">'
                f"{tick:g}</text>"
            )
        return parts

    def _marks(self) -> list[str]:
        parts = []
        for row, (place, text) in enumerate(sorted(self.marks.items())):
            x = self._x(place)
            parts.append(
                f'<path class="mark" d="M{x:.1f} {_TOP}V{_y(0):.1f}"/>'
                f'<text class="ink" x="{x + 5:.1f}" y="{_y(0.28 - 0.07 * row):.1f}" '
                f'font-size="12">{escape(text)}</text>'
            )
        return parts

    def _line(self, index: int, name: str) -> list[str]:
        color, dash = _COLORS[index % len(_COLORS)], _DASHES[index % len(_DASHES)]
        places = [(self._x(x), _y(share)) for x, share in self.lines[name]]
        stroke = f'fill="none" stroke="{color}" stroke-width="2.2" stroke-dasharray="{dash}"'
        parts = []
        if band := self.bands.get(name):
            edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in band[::-1]]
            around = " ".join(f"{self._x(x):.1f},{_y(share):.1f}" for x, share in edge)
            parts.append(f'<polygon points="{around}" fill="{color}" fill-opacity="0.2"/>')
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points}" {stroke}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        key = _TOP + 8 + 22 * index
        parts.append(
            f'<path d="M{_END + 16} {key}h30" {stroke}/>'
            f'<text class="ink" x="{_END + 54}" y="{key + 4.5}">{escape(name)}</text>'
        )
        return parts

    def _span(self) -> tuple[float, float]:
        xs = [x for line in self.lines.values() for x, _ in line]
        return min(xs), max(xs)

    def _x(self, x: float) -> float:
        low, high = self._span()
        return _LEFT + (x - low) / ((high - low) or 1.0) * (_END - _LEFT)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float, least: float) -> list[float]:
    """Round numbers from low to high, at most ten, at least ``least`` apart."""
    if high <= low:
        return [low]
    rough = max(least, (high - low) / 9)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(step * n, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]
