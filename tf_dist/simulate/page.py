"""The report as one HTML file that needs nothing else: the table, and a picture of each policy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tf_dist.simulate.picture import picture
from tf_dist.simulate.world import World

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f3f6f9}"
    "svg{max-width:100%;height:auto;margin:1rem 0}.wide{overflow-x:auto}"
)


def page(title: str, about: str, titles: Sequence[str], rows: Sequence[Sequence[str]], worlds: dict[str, World]) -> str:
    """The page. ``worlds``: by policy the simulation to draw, which was recorded."""
    head = "".join(f"<th>{escape(text)}</th>" for text in titles)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    pictures = "\n".join(picture(world, name) for name, world in worlds.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p>{escape(about)}</p>\n<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>\n{pictures}\n</body></html>\n"
    )
