"""Commands in the documentation exist, links are valid, and code blocks can be parsed."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from tests.cli.ready import tf_dist

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PAGES += sorted((ROOT / "examples").glob("*.md"))


def _commands(program: str) -> list[tuple[str, ...]]:
    """All commands of a program in console blocks, without comments."""
    found = set()
    for page in PAGES:
        text = page.read_text().replace("\\\n", "")
        for line in re.findall(rf"^\$ ({program} .*)$", text, flags=re.MULTILINE):
            found.add(tuple(shlex.split(re.split(r" (?:\||&&) ", line)[0], comments=True)))
    return sorted(found)


@cache
def _help(*verbs: str) -> str:
    done = tf_dist(*verbs, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", _commands("tf-dist"), ids=" ".join)
def test_documented_commands_and_flags_exist(command: tuple[str, ...]) -> None:
    words = [word for word in command[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    verbs = words[:2] if words and words[0] in ("local", "workflows") else words[:1]
    told = _help(*verbs)
    ours = takewhile(lambda word: word != "--", command)  # arguments after -- are for a script
    for flag in (word.split("=")[0] for word in ours if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}\b", told), f"tf-dist {' '.join(verbs)} has no {flag}"


@pytest.mark.parametrize("command", _commands("make"), ids=" ".join)
def test_documented_make_targets_exist(command: tuple[str, ...]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {word for word in command[1:] if "=" not in word} <= set(targets)


def _shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_shown)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    paths = list(re.findall(r"`((?:docs|examples|tf_dist|benchmarks|tests|workflows|dags|deploy)/[\w./-]+)`", text))
    missing = [path for path in paths if not (ROOT / path).exists()]
    for link in links:
        target, _, anchor = link.partition("#")
        there = page.parent / target if target else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in _anchors(there)):
            missing.append(link)
    assert not missing


@cache
def _anchors(page: Path) -> set[str]:
    """The valid anchors of a page, by the rules of GitHub and of the site."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for title in re.findall(r"^#{1,6} (.+)$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        kept = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKC", plain)).strip().lower()
        found |= {re.sub(r"\s", "-", kept), re.sub(r"[-\s]+", "-", kept)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=_shown)
def test_code_blocks_can_be_parsed(page: Path) -> None:
    for kind, code in re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        if kind == "yaml":
            assert list(yaml.safe_load_all(code))
        elif kind == "json":
            json.loads(code)
        elif kind == "python":
            compile(code, str(page), "exec")
        else:
            assert kind in ("console", "text", "promql"), f"a block of {kind}: nothing checks that"


def test_all_pages_are_in_navigation() -> None:
    """``mkdocs build`` reports this too, but this test does not need mkdocs."""
    navigation = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(navigation) == sorted(pages)
