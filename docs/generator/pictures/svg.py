"""Small drawings as SVG: step curves stacked over time, and boxes with lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

FONT = 'font-family="system-ui, sans-serif" font-size="12"'
WIDTH = 800
_LEFT, _TOP, _BOTTOM = 46, 34, 40


def page(height: int, title: str, body: str, width: int = WIDTH) -> str:
    """The whole picture, on white: a page may be dark."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}" {FONT}><rect width="100%" height="100%" fill="#fff" rx="6"/>'
        f'<text x="14" y="20" font-size="14" fill="#222">{escape(title)}</text>{body}</svg>\n'
    )


def stacked(
    title: str,
    unit: str,
    times: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    lines: Mapping[str, float],
    notes: Sequence[tuple[float, str]],
) -> str:
    """Step curves on top of each other, with horizontal ``lines`` and ``notes`` at moments."""
    height, bottom = 300, 300 - _BOTTOM
    most = max(lines.values())
    end = times[-1]

    def x(time: float) -> float:
        return _LEFT + (WIDTH - _LEFT - 120) * time / end

    def y(value: float) -> float:
        return bottom - (bottom - _TOP - 30) * value / most

    base = [0.0] * len(times)
    parts = []
    for number, (name, values) in enumerate(curves.items()):
        top = [low + value for low, value in zip(base, values, strict=True)]
        forth = "".join(
            f"L{x(t):.1f} {y(v):.1f}H{x(n):.1f}" for t, n, v in zip(times, [*times[1:], end], top, strict=True)
        )
        back = "".join(
            f"L{x(n):.1f} {y(v):.1f}H{x(t):.1f}"
            for t, n, v in reversed([*zip(times, [*times[1:], end], base, strict=True)])
        )
        parts.append(f'<path d="M{x(times[0]):.1f} {bottom}{forth}{back}z" fill="{colours[name]}"/>')
        key = _TOP + 66 + 20 * number
        parts.append(f'<rect x="{WIDTH - 108}" y="{key - 10}" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{WIDTH - 90}" y="{key}">{escape(name)}</text>')
        base = top
    for name, value in lines.items():
        parts.append(
            f'<path d="M{_LEFT} {y(value):.1f}H{x(end):.1f}" stroke="#444" stroke-dasharray="5 4" fill="none"/>'
        )
        parts.append(f'<text x="{x(end) + 6:.1f}" y="{y(value) + 4:.1f}" fill="#444">{escape(name)}</text>')
    for value in range(0, int(most) + 1, 2):
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#666">{value}</text>')
    for second in range(0, int(end) + 1, 5):
        parts.append(f'<text x="{x(second):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{second} s</text>')
    for number, (time, text) in enumerate(notes):
        parts.append(
            f'<path d="M{x(time):.1f} {_TOP + 14 + 14 * (number % 2)}V{bottom}" stroke="#888" stroke-width=".7"/>'
        )
        place = f'x="{x(time) + 4:.1f}" y="{_TOP + 12 + 14 * (number % 2)}"'
        parts.append(f'<text {place} font-size="11" fill="#333">{escape(text)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{bottom + 32}" fill="#666">{escape(unit)}</text>')
    return page(height, title, "".join(parts))
