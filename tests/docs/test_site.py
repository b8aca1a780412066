"""The files that the built site loads, and the text that it copies. ``make site-pictures`` tests it in a browser."""

from __future__ import annotations

from pathlib import Path

import yaml

from docs.generator.hook import commands, on_page_content

ROOT = Path(__file__).parents[2]


def test_copy_button_gets_commands_without_prompt_and_output() -> None:
    shown = "$ tf-dist validate a.yaml\nerror: $HOME is wrong\n  hint: b\n$ helm install a \\\n    --set b=c\n$ c\n"
    assert commands(shown) == "tf-dist validate a.yaml\nhelm install a \\\n    --set b=c\nc"


def test_console_block_contains_text_to_copy() -> None:
    code = '<pre><code><span class="gp">$ </span>echo &quot;a&quot;\nout</code></pre></div>'
    block = f'<div class="language-console highlight">{code}'
    assert on_page_content(block) == f'<div class="language-console highlight" data-copy="echo &quot;a&quot;">{code}'
    other = block.replace("console", "yaml")
    assert on_page_content(other) == other


class _Settings(yaml.SafeLoader):
    """A loader for mkdocs.yml, which can contain names of Python functions."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_site_loads_no_files_from_other_servers() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Settings)
    assert settings["theme"]["font"] is False
    files = [*settings["extra"]["polyfills"], *settings["extra_css"]]
    assert [file for file in files if not (ROOT / "docs" / file).exists()] == []
    assert any("iframe-worker" in file for file in files), "else the offline plugin adds its own, from another server"
    drawn = [path.name for path in (ROOT / "docs").rglob("*.md") if "```mermaid" in path.read_text()]
    assert drawn == [], "the theme loads Mermaid from another server"
