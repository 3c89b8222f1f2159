"""A line chart as SVG text; small enough not to need a plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from html import escape

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 170, 24, 52
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#666666", "#56b4e9")

#: Points of a line, by ascending x.
Line = Items[tuple[float, float]]


def draw_attainment(lines: Mapping[str, Line], x_label: str) -> str:
    """Attainment from 0 to 1 against ``x_label``, one line per name, with a mark at 0.9."""
    xs = [x for line in lines.values() for x, _ in line]
    low, high = min(xs), max(xs)
    span = (high - low) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - low) / span * (_WIDTH - _LEFT - _RIGHT),
            _TOP + (1 - y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        x, y = at(low, share)
        dash = ' stroke-dasharray="6 4"' if share == 0.9 else ""
        parts.append(
            f'<path d="M{x:.0f} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#bbbbbb"{dash}/>'
            f'<text x="{x - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    for tick in sorted(set(xs)):
        x, y = at(tick, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for index, (name, line) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        points = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        key = _TOP + 20 * index
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<rect x="{_WIDTH - _RIGHT + 14}" y="{key}" width="12" height="12" fill="{color}"/>'
            f'<text x="{_WIDTH - _RIGHT + 32}" y="{key + 11}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
