"""Hook of MkDocs: puts generated blocks into pages, and names what is not part of the site by its path."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.generator import blocks  # noqa: E402

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page's Markdown as the site has it."""
    home = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (home / link[2]).resolve()
        inside = target.is_relative_to(ROOT / "docs")
        return link[0] if inside else f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return _OUTSIDE.sub(named, blocks.fill(markdown))
