"""Error per layer as an SVG: the package against Transformers in the package's dtype, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 46
FLOOR = 1e-12
"""Errors below this, zero too, are drawn on the lower edge."""


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    label: str
    style: str
    """CSS class."""
    values: Sequence[tuple[int, float]]
    """Layer and error."""


def plot(series: Sequence[Series], axis: str, title: str) -> str:
    """An SVG element. Values that are not finite are drawn as crosses on the upper edge.

    Args:
        axis: what the horizontal axis counts, for instance `decoder layer`.
        title: what is drawn, for readers who cannot see it.
    """
    layers = sorted({layer for line in series for layer, _ in line.values})
    finite = [max(v, FLOOR) for line in series for _, v in line.values if math.isfinite(v)] or [1.0]
    low = math.floor(math.log10(min(finite)) - 0.1)
    high = max(math.ceil(math.log10(max(finite)) + 0.1), low + 1)

    def x(layer: int) -> float:
        span = max(layers[-1] - layers[0], 1)
        return LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * (layer - layers[0]) / span

    def y(value: float) -> float:
        if not math.isfinite(value):
            return float(TOP)
        at = (math.log10(max(value, FLOOR)) - low) / (high - low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(at, 0.0), 1.0))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">']
    parts += _grid(low, high, layers, x, y, axis)
    for line in series:
        good = [(layer, value) for layer, value in line.values if math.isfinite(value)]
        points = " ".join(f"{x(layer):.1f},{y(value):.1f}" for layer, value in good)
        parts.append(f'<polyline class="line {line.style}" points="{points}"/>')
        for layer, value in line.values:
            tip = f"<title>{escape(line.label)}, {axis} {layer}: {value:.3g}</title>"
            if math.isfinite(value):
                parts.append(
                    f'<circle class="dot {line.style}" cx="{x(layer):.1f}" cy="{y(value):.1f}" r="3">{tip}</circle>'
                )
            else:
                parts.append(f'<text class="cross" x="{x(layer):.1f}" y="{TOP + 10}">x{tip}</text>')
    return "".join(parts) + "</svg>"


def _grid(low, high, layers, x, y, axis) -> list[str]:  # type: ignore[no-untyped-def]
    parts = []
    step = max(1, math.ceil((high - low) / 6))
    for power in range(low, high + 1, step):
        at = y(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>')
    every = max(1, math.ceil(len(layers) / 12))
    for layer in layers[::every]:
        parts.append(
            f'<text class="tick" x="{x(layer):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{layer}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(axis)}</text>')
    return parts
