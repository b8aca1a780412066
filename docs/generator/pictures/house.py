"""The package as a house: its floors are the layers that import-linter holds, and arrows of imports point down."""

from __future__ import annotations

import tomllib
from html import escape

from docs.generator.pictures import ROOT, keep
from docs.generator.pictures.svg import page

_LEFT, _RIGHT = 60, 740
_FLOOR, _ROOM = 62, 30
# What lives on each floor: a name for a visitor, and the colour of its wall.
_ABOUT = {
    "cli": ("commands: no decisions", "#f6cfb8"),
    "airflow | argo": ("operators; steps and their launcher: no decisions", "#f6d9b8"),
    "client": ("the Python API, and all that a face does with jobs", "#f3e3b3"),
    "local": ("one machine: the embedded cluster as one object", "#e4e9b9"),
    "controller": ("the loop: admission, work queue, informers, Leases", "#c9e4c5"),
    "cluster | simulate": ("I/O: any API server, our own, pods as processes; a virtual clock beside it", "#bfdfe0"),
    "core": ("decisions: pure functions, no clock, no network", "#c3d3ee"),
    "errors": ("one tree of errors", "#d9d2e9"),
}


def plan() -> None:
    """Keep ``house.svg``; KeyError for a layer that has no floor here."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    by_name = {one["name"]: one for one in contracts}
    floors = by_name["Data flows one way"]["layers"]
    rooms = by_name["Folders of the core have an order"]["layers"]
    y, parts = 108, [_roof(floors[0])]
    for floor in floors:
        about, colour = _ABOUT[floor]
        height = _FLOOR + (_ROOM * (len(rooms) + 1) // 2 + 16 if floor == "core" else 0)
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{_RIGHT - _LEFT}" height="{height}" fill="{colour}" stroke="#555"/>'
        )
        packages = floor.split(" | ")
        wide = (_RIGHT - _LEFT) / len(packages)
        for number, name in enumerate(packages):
            x = _LEFT + wide * number
            if number:
                parts.append(f'<path d="M{x:.0f} {y}V{y + 34}" stroke="#555"/>')
            parts.append(f'<text x="{x + 14:.0f}" y="{y + 24}" font-weight="600">{name}</text>')
        parts.append(f'<text x="{_LEFT + 14}" y="{y + 48}" fill="#333">{escape(about)}</text>')
        if floor == "core":
            parts.append(_rooms(rooms, y + _FLOOR))
        y += height
    parts.append(f'<path d="M30 {y}H770" stroke="#555" stroke-width="3"/>')
    parts.append(f'<path d="M30 120V{y - 14}l-5 -9m5 9l5 -9" stroke="#333" fill="none" stroke-width="1.5"/>')
    middle = (y + 120) // 2
    turned = f'x="22" y="{middle}" text-anchor="middle" transform="rotate(-90 22 {middle})"'
    parts.append(f'<text {turned} fill="#333">imports point down only</text>')
    keep("house.svg", page(y + 20, "tf_dist, drawn from the import rules in pyproject.toml", "".join(parts)))


def _roof(floor: str) -> str:
    return (
        f'<path d="M{_LEFT - 24} 108L400 34L{_RIGHT + 24} 108z" fill="#c9694b" stroke="#555"/>'
        f'<text x="400" y="84" text-anchor="middle" fill="#fff">you: a terminal, a DAG, a workflow, a notebook</text>'
    )


def _rooms(rooms: list[str], top: int) -> str:
    """The folders of the core, in two columns; each stands on those after it."""
    found, half = [], (len(rooms) + 1) // 2
    wide = (_RIGHT - _LEFT - 42) / 2
    for number, room in enumerate(rooms):
        x = _LEFT + 14 + (wide + 14) * (number // half)
        y = top + _ROOM * (number % half)
        size = f'width="{wide:.0f}" height="{_ROOM - 6}" rx="3"'
        found.append(f'<rect x="{x:.0f}" y="{y}" {size} fill="#e9effa" stroke="#7288b5"/>')
        found.append(f'<text x="{x + 10:.0f}" y="{y + 17}">{number + 1}. {escape(room.replace(" | ", ", "))}</text>')
    return "".join(found)
