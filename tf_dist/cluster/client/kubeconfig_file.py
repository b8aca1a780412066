"""Kubeconfig files, read and merged as kubectl does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tf_dist.core.model.fieldpath import nearest_word
from tf_dist.errors import ClusterError

_SECTIONS: Final = (("contexts", "context"), ("clusters", "cluster"), ("users", "user"))
# The fields that name files. Relative names are relative to the folder of the kubeconfig.
_FILES: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}
# Fields whose values other modules read as they are.
_TYPES: Final[Mapping[str, Mapping[str, tuple[type, str]]]] = {
    "context": {},
    "cluster": {
        "certificate-authority": (str, "text"),
        "certificate-authority-data": (str, "text"),
        "extensions": (list, "a list"),
    },
    "user": {
        "client-certificate": (str, "text"),
        "client-certificate-data": (str, "text"),
        "client-key": (str, "text"),
        "client-key-data": (str, "text"),
        "tokenFile": (str, "text"),
        "exec": (Mapping, "a mapping"),
        "auth-provider": (Mapping, "a mapping"),
    },
}


@dataclass(frozen=True, slots=True)
class ResolvedContext:
    """One context of the files: its cluster and user as written there, with absolute file names."""

    name: str
    namespace: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    files: tuple[Path, ...]


def kubeconfig_files(kubeconfig: str | None, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The existing kubeconfig files: the given file, else those of $KUBECONFIG, else ~/.kube/config.

    ClusterError when the given file, or every file of $KUBECONFIG, is missing.
    """
    if kubeconfig:
        path = Path(os.path.expanduser(kubeconfig))
        if os.path.isdir(path):
            raise ClusterError(f"{kubeconfig} is a folder, not a kubeconfig", hint="name the file in --kubeconfig")
        if not _may_be_read(path):
            raise ClusterError(f"there is no kubeconfig {kubeconfig}", hint="check --kubeconfig")
        return (path.absolute(),)
    named = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    # Unlike Path.expanduser, os.path.expanduser accepts users without a home directory.
    places = [Path(os.path.expanduser(part)) for part in named or ["~/.kube/config"]]
    found = tuple(path.absolute() for path in places if not os.path.isdir(path) and _may_be_read(path))
    if named and not found:
        raise ClusterError(
            f"no file in $KUBECONFIG exists: {environ['KUBECONFIG']}",
            hint="unset it, or set it to a kubeconfig",
        )
    return found


def _may_be_read(path: Path) -> bool:
    """Whether there is such a file, or the system does not tell. In the latter case, reading it reports the reason."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def resolve_context(paths: Sequence[Path], context: str | None = None) -> ResolvedContext:
    """The context of that name, or the current context; ClusterError when the files lack a part of it."""
    current, merged = "", {section: dict[str, dict[str, Any]]() for section, _ in _SECTIONS}
    for path in paths:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for section, kind in _SECTIONS:
            merged[section] = _entries(path, document, section, kind) | merged[section]
    contexts, clusters, users = merged.values()
    where, known = ", ".join(map(str, paths)), ", ".join(sorted(contexts)) or "(none)"
    name = context or current
    if not name:
        hint = f"name one with --context: {known}" if contexts else "it has no contexts: check that it is a kubeconfig"
        raise ClusterError(f"{where}: current-context is not set", hint=hint)
    if name not in contexts:
        near = nearest_word(name, contexts)
        hint = f"{f'did you mean {near}? There' if near else 'there'} are: {known}"
        raise ClusterError(f"{where}: there is no context {name}", hint=hint)
    found = contexts[name]
    cluster, user = str(found.get("cluster") or ""), str(found.get("user") or "")
    if cluster not in clusters:
        raise ClusterError(f"{where}: context {name} is of cluster {cluster!r}, which is not defined")
    if user and user not in users:
        raise ClusterError(f"{where}: context {name} is of user {user!r}, which is not defined")
    namespace = str(found.get("namespace") or "")
    return ResolvedContext(name, namespace, clusters[cluster], users.get(user, {}), tuple(paths))


def _entries(path: Path, document: Mapping[str, Any], section: str, kind: str) -> dict[str, dict[str, Any]]:
    """The first entry of each name in a section, with file names made absolute."""
    found: dict[str, dict[str, Any]] = {}
    for entry in document.get(section) or ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise _invalid_kubeconfig(path, f"an entry of {section} has no name")
        body = entry.get(kind) or {}
        if not isinstance(body, Mapping):
            raise _invalid_kubeconfig(path, f"{kind} {entry['name']} is not a mapping")
        for field, (type_, words) in _TYPES[kind].items():
            value = body.get(field)
            if value is not None and (not isinstance(value, type_) or "\0" in str(value)):
                raise _invalid_kubeconfig(path, f"{field} of {kind} {entry['name']} is not {words}")
        found.setdefault(entry["name"], _with_absolute_paths(path.parent, kind, body))
    return found


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        document = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise _invalid_kubeconfig(path, f"it is not YAML{line}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise _invalid_kubeconfig(path, "it is not a mapping")
    for section, _ in _SECTIONS:
        if not isinstance(document.get(section) or [], list):
            raise _invalid_kubeconfig(path, f"{section} is not a list")
    return document


def _invalid_kubeconfig(path: Path, why: str) -> ClusterError:
    return ClusterError(f"{path} is not a kubeconfig: {why}", hint="kubectl config view shows what kubectl makes of it")


def _with_absolute_paths(folder: Path, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with file names made absolute."""
    found = dict(body)
    for name in _FILES.get(kind, ()):
        if found.get(name):
            found[name] = str(folder / os.path.expanduser(str(found[name])))
    plugin = found.get("exec")
    if kind == "user" and isinstance(plugin, Mapping) and "/" in str(plugin.get("command") or ""):
        found["exec"] = {**plugin, "command": str(folder / str(plugin["command"]))}
    return found
