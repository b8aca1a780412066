"""Hook of MkDocs: names files outside the site by their path, and has the copy button copy commands only."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)")
_CONSOLE = re.compile(r'(<div class="language-console highlight")>(<pre>.*?</pre>)', re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files that are not part of the site become their path."""
    home = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (home / link[2]).resolve()
        inside = target.is_relative_to(ROOT / "docs")
        return link[0] if inside else f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return _OUTSIDE.sub(named, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The theme copies ``data-copy`` of a block where it is given."""
    return _CONSOLE.sub(lambda block: f'{block[1]} data-copy="{escape(_commands_in(block[2]))}">{block[2]}', html)


def _commands_in(html: str) -> str:
    return commands(unescape(re.sub(r"<[^>]+>", "", html)))


def commands(text: str) -> str:
    """The commands of a console block, without prompts and output. A line that ends with ``\\`` is continued."""
    found: list[str] = []
    continued = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif continued:
            found.append(line)
        else:
            continue
        continued = line.endswith("\\")
    return "\n".join(found)
