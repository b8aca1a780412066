"""Shell lines that cannot do what they were written for, recognised in a container's command and arguments.

The Volcano tutorial for distributed TensorFlow builds TF_CONFIG in the shell from ``/etc/volcano/<task>.host`` and
forgets the quotes around the hosts: ``{"cluster":{"ps":[job-ps-0.job:2222]}}`` is no JSON, and TensorFlow fails on it
with an error about a decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.dialects.problems import Findings, Loc
from tf_dist.core.dialects.shape import containers
from tf_dist.core.untyped import at, items

_ASSIGNED: Final = re.compile(
    r"\b(?P<name>[A-Za-z_]\w*)=\"?(?:`(?P<ticks>[^`]*)`|\$\((?P<body>(?:[^()]|\([^()]*\))*)\))"
)
_HOST_FILE: Final = re.compile(r"/etc/volcano/[\w.-]+\.host")
_HOSTS_VARIABLE: Final = re.compile(r"\$\{?(VC_\w+_HOSTS)\b")
_QUOTE_ADDED: Final = re.compile(r"'[^']*\"[^']*'|\\\"|\\x22|\\042|\bjq\b|\bpython3?\b|json")
_PLAYERS: Final = re.compile(r"\bV[KC]_TASK_INDEX\b")
_FIX: Final = r"""add quotes to each host: cat /etc/volcano/ps.host | sed 's/^/"/;s/$/:2222"/' | paste -sd,"""


def script(container: Mapping[str, Any]) -> str:
    """Everything a container is told to run, as one text."""
    words = (*items(container.get("command")), *items(container.get("args")))
    return "\n".join(word for word in words if isinstance(word, str))


def unquoted_hosts(text: str) -> list[str]:
    """The variables that hold host names without quotes and are put into a JSON list of TF_CONFIG as they are."""
    if "TF_CONFIG" not in text or "cluster" not in text:
        return []
    bare = dict.fromkeys(_HOSTS_VARIABLE.findall(text))
    quoted: set[str] = set()
    for name, command in _assignments(text):
        if _QUOTE_ADDED.search(command):
            quoted.add(name)
        elif _HOST_FILE.search(command) or any(_used(other, command) for other in bare):
            bare[name] = None
    return [name for name in bare if name not in quoted and re.search(rf"\[\s*\$(?:{name}\b|{{{name}\}})\s*\]", text)]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Each ``NAME=`command``` or ``NAME=$(command)``, in order."""
    for match in _ASSIGNED.finditer(text):
        yield match["name"], match["ticks"] if match["ticks"] is not None else match["body"]


def _used(name: str, command: str) -> bool:
    return re.search(rf"\$(?:{name}\b|{{{name}\}})", command) is not None


def advise(template: object, loc: Loc, out: Findings, *, env: bool, svc: bool) -> None:
    """Warn about a Volcano task's shell lines; ``env`` and ``svc``: whether the job has these plugins."""
    for place, container in containers(template):
        text = script(container)
        where = (*loc, *place, "args" if container.get("args") else "command")
        for name in unquoted_hosts(text):
            out.warn(where, f"${{{name}}} puts host names without quotes into TF_CONFIG, which is then no JSON", _FIX)
        own = [at(entry, "name") for entry in items(container.get("env"))]
        used = [name for name in _PLAYERS.findall(text) if name not in own]
        if used and not env:
            out.warn(where, f"{used[0]} is set by the env plugin, which the job does not have", "plugins: env: []")
        if "/etc/volcano/" in text and not svc and not _mounted(container):
            out.warn(where, "/etc/volcano is made by the svc plugin, which the job does not have", "plugins: svc: []")


def _mounted(container: Mapping[str, Any]) -> bool:
    """Whether the user puts something there himself."""
    mounts = (mount for mount in items(container.get("volumeMounts")) if isinstance(mount, Mapping))
    return any(str(mount.get("mountPath", "")).startswith("/etc/volcano") for mount in mounts)
