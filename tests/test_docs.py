"""What the documents tell people to type exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "examples").glob("*.md"))
TF_DIST = Path(sys.executable).with_name("tf-dist")


def _commands(program: str) -> list[tuple[str, ...]]:
    """Every command of that program in a console block, without its comment."""
    found = set()
    for page in PAGES:
        for line in re.findall(rf"^(?:\$ )?({program} .*)$", page.read_text(), flags=re.MULTILINE):
            found.add(tuple(shlex.split(line.partition(" | ")[0], comments=True)))
    return sorted(found)


@cache
def _help(*verbs: str) -> str:
    return subprocess.run([TF_DIST, *verbs, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", _commands("tf-dist"), ids=" ".join)
def test_every_command_and_flag_of_the_documents_exists(command: tuple[str, ...]) -> None:
    words = [word for word in command[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    verbs = words[:2] if words[0] in ("local", "workflows") else words[:1]
    told = _help(*verbs)
    for flag in (word.split("=")[0] for word in command if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}\b", told), f"tf-dist {' '.join(verbs)} has no {flag}"


@pytest.mark.parametrize("command", _commands("make"), ids=" ".join)
def test_every_make_target_of_the_documents_exists(command: tuple[str, ...]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(command[1:]) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_path_of_the_documents_is_there(page: Path) -> None:
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    paths = list(re.findall(r"`((?:docs|examples|tf_dist|benchmarks|tests|workflows)/[\w./-]+)`", text))
    missing = [link for link in links if link and not (page.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_the_documents_say_of_every_security_field_what_becomes_of_it() -> None:
    """What the node reads of a pod's security is in the table, and the other way round."""
    code = (ROOT / "tf_dist/cluster/kubelet/pod/security_context.py").read_text()
    table = (ROOT / "docs/node.md").read_text().partition("## Security and limits")[2].partition("\n## ")[0]
    told = set(re.findall(r"`([a-zA-Z]+)[`.:]", table))
    fields = {"runAsUser", "runAsGroup", "runAsNonRoot", "supplementalGroups", "fsGroup", "readOnlyRootFilesystem"}
    fields |= {"privileged", "allowPrivilegeEscalation", "seccompProfile", "appArmorProfile", "seLinuxOptions"}
    fields |= {"windowsOptions", "sysctls", "hostNetwork", "hostPID", "hostIPC", "hostUsers", "capabilities", "limits"}
    assert fields <= told
    assert all(f'"{field}"' in code for field in fields)
    read = set(re.findall(r'"((?:runAs|host|se|windows|supplemental|fs|readOnly|allow|app)[A-Z]\w+)"', code))
    assert read <= fields
