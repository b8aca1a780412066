"""The report as one HTML file: a table, and a picture (SVG) of each policy over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Final

from tf_dist.simulate.engine import Interval, World


def joined(pieces: Iterable[Interval]) -> list[Interval]:
    """Merge adjacent intervals of a job on a node if nothing changes between them. Sorted by node and start."""
    found: list[Interval] = []
    ordered = sorted(pieces, key=lambda p: (p.node, p.run, p.start))
    for _, group in groupby(ordered, key=lambda p: (p.node, p.run)):
        last: Interval | None = None
        for piece in group:
            if last is not None and (last.end, last.units, last.works) == (piece.start, piece.units, piece.works):
                last = Interval(last.run, last.node, last.units, last.start, piece.end, last.works)
                found[-1] = last
            else:
                found.append(piece)
                last = piece
    return sorted(found, key=lambda p: (p.node, p.start, p.run))


def binned(pieces: Iterable[Interval], end: float, bins: int) -> list[float]:
    """Average units of these intervals in each of ``bins`` equal steps until ``end``."""
    width = end / bins
    found = [0.0] * bins
    for piece in pieces:
        first, last = int(piece.start / width), min(int(piece.end / width), bins - 1)
        for step in range(first, last + 1):
            overlap = min(piece.end, (step + 1) * width) - max(piece.start, step * width)
            found[step] += piece.units * max(0.0, overlap) / width
    return found


def highest(samples: Sequence[tuple[float, int]], end: float, bins: int) -> list[int]:
    """Maximum of a value in each of ``bins`` equal steps until ``end``. ``samples`` lists its changes."""
    found: list[int] = []
    number, value = 0, 0
    for step in range(bins):
        most = value
        while number < len(samples) and samples[number][0] <= (step + 1) * end / bins:
            value = samples[number][1]
            most = max(most, value)
            number += 1
        found.append(most)
    return found


WIDTH: Final = 1120
LEFT: Final = 64
_CHART: Final = 70
_GAP: Final = 26
_MOST_PIECES: Final = 4000
_MOST_LANES: Final = 512
_BINS: Final = 280
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def picture(world: World, title: str) -> str:
    """The picture of a recorded world, as an ``svg`` element.

    Jobs are bars on the lanes of their nodes. If there are too many bars, the picture shows the use of each node.
    """
    end = max(world.now, 1e-9)
    pieces = joined(world.pieces or ())
    cluster = world.scenario.cluster
    per_node = cluster.gpus or cluster.cpu
    lanes = cluster.nodes * per_node
    exact = len(pieces) <= _MOST_PIECES and lanes <= _MOST_LANES
    row = max(2.0, min(14.0, 420 / lanes)) * per_node if exact else max(3.0, min(14.0, 420 / cluster.nodes))
    top = 24.0
    body = [_bars(world, pieces, end, top, row) if exact else _heat(world, pieces, end, top, row)]
    body.append(_names(cluster.nodes, top, row))
    height = top + row * cluster.nodes
    body.append(_axis(end, height))
    for text, charts in _charts(world, pieces, end):
        height += _GAP
        body.append(_chart(text, charts, height))
        height += _CHART
    height += 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="0" y="14" font-size="14">{escape(title)}</text>'
        f"{''.join(body)}</svg>"
    )


def _x(time: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT) * time / end


def _bars(world: World, pieces: Sequence[Interval], end: float, top: float, row: float) -> str:
    """Draw each interval on free lanes of its node. Intervals without work are pale."""
    lane = row / (world.scenario.cluster.gpus or world.scenario.cluster.cpu)
    free: dict[int, list[float]] = {}
    found: list[str] = []
    for piece in pieces:
        lanes = free.setdefault(piece.node, [0.0] * round(row / lane))
        open_ = [n for n, until in enumerate(lanes) if until <= piece.start + 1e-6][: piece.units]
        for number in open_:
            lanes[number] = piece.end
        x, right = _x(piece.start, end), _x(piece.end, end)
        path = "".join(
            f"M{x:.1f} {top + row * piece.node + lane * first:.1f}H{right:.1f}v{lane * count - 0.4:.1f}H{x:.1f}z"
            for first, count in _stretches(open_)
        )
        job = world.runs[piece.run].job
        title = f"{job.name}: {piece.units} of node {piece.node}, {_span(piece.end - piece.start)}"
        title += "" if piece.works else ", waits for its other pods or starts again"
        fill = f'fill="hsl({piece.run * 137 % 360} 62% {55 if piece.works else 88}%)"'
        found.append(f'<path d="{path}" {fill}><title>{escape(title)}</title></path>')
    return "".join(found)


def _stretches(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Ranges of consecutive numbers, each as its first number and its length."""
    start = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[start], index - start
            start = index


def _heat(world: World, pieces: Sequence[Interval], end: float, top: float, row: float) -> str:
    """The use of each node over time."""
    by_node: dict[int, list[Interval]] = {}
    for piece in pieces:
        by_node.setdefault(piece.node, []).append(piece)
    whole = world.scenario.cluster.gpus or world.scenario.cluster.cpu
    width = (WIDTH - LEFT) / _BINS
    found: list[str] = []
    for node, of_node in sorted(by_node.items()):
        levels = [round(10 * value / whole) for value in binned(of_node, end, _BINS)]
        start = 0
        for step in range(1, _BINS + 1):
            if step == _BINS or levels[step] != levels[start]:
                if levels[start]:
                    x, y = LEFT + start * width, top + row * node
                    size = f'width="{(step - start) * width:.1f}" height="{row - 0.4:.1f}"'
                    found.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill-opacity="{levels[start] / 10}"/>')
                start = step
    return f'<g fill="#2468a8">{"".join(found)}</g>'


def _names(nodes: int, top: float, row: float) -> str:
    """Names of the nodes, with lines between the nodes if the rows are high enough."""
    every = max(1, round(12 / row))
    texts = (
        f'<text x="{LEFT - 6}" y="{top + row * (node + 0.5) + 4:.1f}" text-anchor="end">node {node}</text>'
        for node in range(0, nodes, every)
    )
    lines = "".join(f"M{LEFT} {top + row * node:.1f}H{WIDTH}" for node in range(nodes)) if every == 1 else ""
    return f'{"".join(texts)}<path d="{lines}" stroke="#ccc" stroke-width=".6"/>'


def _axis(end: float, y: float) -> str:
    size, name = next((pair for pair in _UNITS if end >= 2 * pair[0]), _UNITS[-1])
    step = next((size * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if end / (size * n) <= 12), end)
    step = step if end >= size else end
    marks = []
    number = 0
    while number * step <= end:
        x = _x(number * step, end)
        marks.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{number * step / size:g} {name}</text>')
        marks.append(f'<path d="M{x:.1f} {y:.1f}v4" stroke="#888"/>')
        number += 1
    return "".join(marks)


_Curves = tuple[float, tuple[tuple[str, Sequence[float]], ...]]


def _charts(world: World, pieces: Sequence[Interval], end: float) -> Iterable[tuple[str, _Curves]]:
    cluster = world.scenario.cluster
    held = binned(pieces, end, _BINS)
    busy = binned((piece for piece in pieces if piece.works), end, _BINS)
    text = f"{cluster.unit}s in use, of {cluster.units}: held (pale) and working"
    yield text, (float(cluster.units), (("#b8d0ea", held), ("#2468a8", busy)))
    waiting = highest(world.queue, end, _BINS)
    most = max(waiting, default=0)
    yield f"jobs that wait, at most {most}", (float(max(most, 1)), (("#d08030", waiting),))


def _chart(text: str, curves: _Curves, top: float) -> str:
    most, drawn = curves
    found = [f'<text x="{LEFT}" y="{top - 2:.1f}">{escape(text)}</text>']
    bottom = top + _CHART
    width = (WIDTH - LEFT) / _BINS
    for colour, values in drawn:
        steps = "".join(f"V{bottom - (_CHART - 8) * min(1.0, v / most):.1f}h{width:.2f}" for v in values)
        found.append(f'<path d="M{LEFT} {bottom:.1f}{steps}V{bottom:.1f}z" fill="{colour}"/>')
    found.append(f'<path d="M{LEFT} {bottom:.1f}H{WIDTH}" stroke="#888"/>')
    return "".join(found)


def _span(seconds: float) -> str:
    size, name = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds / size:.1f} {name}"


_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f3f6f9}"
    "svg{max-width:100%;height:auto;margin:1rem 0}.wide{overflow-x:auto}"
)


def page(title: str, about: str, titles: Sequence[str], rows: Sequence[Sequence[str]], worlds: dict[str, World]) -> str:
    """The page. ``worlds``: the recorded simulation of each policy."""
    head = "".join(f"<th>{escape(text)}</th>" for text in titles)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    pictures = "\n".join(picture(world, name) for name, world in worlds.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p>{escape(about)}</p>\n<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>\n{pictures}\n</body></html>\n"
    )
