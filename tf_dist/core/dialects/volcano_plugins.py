"""Job plugins of a Volcano Job: their arguments, unsupported plugins, and programs that need a missing plugin.

Arguments and defaults are those of ``pkg/controllers/job/plugins`` (volcano-sh/volcano). Arguments are read as in Go's
``flag`` package (``FlagSet.Parse``, ContinueOnError). Volcano does not reject a plugin with invalid arguments. It logs
the error, uses the arguments before the invalid argument, and ignores those after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tf_dist.core.dialects.common_schema import TF_PORT, template_containers
from tf_dist.core.dialects.field_errors import FieldErrors
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, suggestion, text, value_at
from tf_dist.core.model.job import Document, Plugins, Role, SSHPlugin

# -- Go's flags --


class FlagKind(StrEnum):
    """The type of a flag's value."""

    TEXT = "text"
    BOOL = "true or false"
    INT = "a whole number"


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """Arguments as Go reads them."""

    values: Mapping[str, str]
    """The values in effect, as written."""
    stopped_at: str = ""
    """The argument at which parsing stopped; "": all arguments were read."""
    problem: str = ""
    """Why parsing stopped."""
    unknown: str = ""
    """The name of an unknown flag."""
    unread: tuple[str, ...] = ()
    """The arguments after ``stopped_at``."""


_BOOLEANS: Final = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)} | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)
_FLAG: Final = re.compile(r"--?([^-=][^=]*)(?:=(.*))?", re.DOTALL)
_INT: Final = re.compile(r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO]?(_?[0-7])+|[1-9](_?[0-9])*|0)", re.ASCII)


def parse_go_bool(text: str) -> bool | None:
    """The result of ``strconv.ParseBool``; None for an error."""
    return _BOOLEANS.get(text)


def parse_go_int(text: str) -> int | None:
    """The result of ``strconv.ParseInt(text, 0, 64)``; None for an error."""
    if len(text) > 64 or not _INT.fullmatch(text):
        return None
    found = int(re.sub(r"^([+-]?)0(_?[0-7])", r"\g<1>0o\2", text), 0)  # Go's 017 is Python's 0o17
    return found if -(2**63) <= found < 2**63 else None


def parse_go_flags(arguments: Sequence[str], kinds: Mapping[str, FlagKind]) -> ParsedFlags:
    """The flags among ``arguments``: ``--port=22``, ``-port=22``, ``--port 22``. A boolean flag alone is true.

    Parsing stops at ``--``, and at the first invalid argument.
    """
    values: dict[str, str] = {}
    waiting = list(arguments)

    def stopped(problem: str, unknown: str = "") -> ParsedFlags:
        return ParsedFlags(values, argument, problem, unknown, tuple(waiting))

    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            return stopped("ends the flags") if waiting else ParsedFlags(values)
        match = _FLAG.fullmatch(argument)
        if match is None:
            return stopped("is not a flag")
        name, value = match[1], match[2]
        if name not in kinds:
            return stopped("is not known", name)
        kind = kinds[name]
        if value is None and kind is FlagKind.BOOL:
            value = "true"
        if value is None:
            if not waiting:
                return stopped("needs a value")
            value = waiting.pop(0)
        if kind is FlagKind.BOOL and parse_go_bool(value) is None:
            return stopped(f"must be {kind}, not {value[:40]!r}")
        values[name] = value
        if kind is FlagKind.INT and parse_go_int(value) is None:
            return stopped(f"must be {kind}, not {value[:40]!r}")
    return ParsedFlags(values)


# -- plugins --

PluginArguments = Mapping[str, Sequence[str] | None]

_ROLES: Final = ("ps", "worker", "chief", "evaluator")
_NOT_READY, _NO_POLICY, _HOSTS_ENV = "publish-not-ready-addresses", "disable-network-policy", "inject-hosts-env"
_KEY_PATH, _PRIVATE, _PUBLIC, _SSH_PORT = "ssh-key-file-path", "ssh-private-key", "ssh-public-key", "ssh-port"
_FLAGS: Final[Mapping[str, Mapping[str, FlagKind]]] = {
    "env": {},
    "svc": dict.fromkeys((_NOT_READY, _NO_POLICY, _HOSTS_ENV), FlagKind.BOOL),
    "ssh": {**dict.fromkeys((_KEY_PATH, _PRIVATE, _PUBLIC), FlagKind.TEXT), _SSH_PORT: FlagKind.INT},
    "tensorflow": {**dict.fromkeys(_ROLES, FlagKind.TEXT), "port": FlagKind.INT},
}
REFUSED: Final[Mapping[str, str]] = {
    "mpi": "write plugins svc and ssh instead, and mpirun --host $VC_WORKER_HOSTS in the master (WORKER: the name of "
    "the task of the workers); or leave the job to Volcano",
    "pytorch": "leave the job to Volcano, or make it a PyTorchJob of Kubeflow's training operator",
    "ray": "leave the job to Volcano, or make it a RayJob of KubeRay",
    "hcclrank": "leave the job to Volcano; or set the annotation hccl/rankIndex in templates of one replica each",
}
"""The plugins of Volcano that tf-dist does not support, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowPlugin:
    """Arguments of the tensorflow plugin: the role of each task, and the port."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    port: int = TF_PORT


def _flags(given: PluginArguments, plugin: str) -> ParsedFlags:
    return parse_go_flags(given.get(plugin) or (), _FLAGS[plugin])


def job_plugins(given: PluginArguments | None) -> Plugins:
    """The plugins of a job; the tensorflow plugin includes svc."""
    given = given or {}
    svc = _flags(given, "svc").values
    return Plugins(
        env="env" in given,
        svc="svc" in given or "tensorflow" in given,
        publish_not_ready=parse_go_bool(svc.get(_NOT_READY, "")) or False,
        network_policy=not parse_go_bool(svc.get(_NO_POLICY, "")),
        hosts_env=parse_go_bool(svc.get(_HOSTS_ENV, "true")) is not False,
        ssh=_ssh_plugin(given) if "ssh" in given else None,
    )


def _ssh_plugin(given: PluginArguments) -> SSHPlugin:
    found, usual = _flags(given, "ssh").values, SSHPlugin()
    port = parse_go_int(found.get(_SSH_PORT, "")) or 0
    return SSHPlugin(
        path=found.get(_KEY_PATH, usual.path),
        port=port if 1 <= port <= 65535 else usual.port,
        private_key=found.get(_PRIVATE, ""),
        public_key=found.get(_PUBLIC, ""),
    )


def tensorflow_plugin(given: PluginArguments | None) -> TensorFlowPlugin | None:
    """The tensorflow plugin; None if the job sets its own TF_CONFIG."""
    if given is None or "tensorflow" not in given:
        return None
    flags = _flags(given, "tensorflow").values
    port = parse_go_int(flags.get("port", "")) or 0
    return TensorFlowPlugin(
        roles={flags.get(name, name): Role(name) for name in _ROLES}, port=port if 1 <= port <= 65535 else TF_PORT
    )


def check_plugins(given: PluginArguments | None, tasks: Sequence[str], out: FieldErrors) -> None:
    """Errors for unsupported plugins, warnings for arguments that Volcano would not use either."""
    for name, arguments in (given or {}).items():
        loc: FieldPath = ("spec", "plugins", name)
        if name in REFUSED:
            message = f"tf-dist does not support Volcano's {name} plugin, and without it the job would run differently"
            out.error(loc, message, REFUSED[name])
        elif name not in _FLAGS:
            out.error(loc, "unknown plugin", suggestion(name, (*_FLAGS, *REFUSED)))
        elif name == "env" and arguments:
            out.warn(loc, "Volcano's env plugin takes no arguments; these are not used", "leave them out")
        else:
            flags = _flags(given or {}, name)
            _advise_unread(flags, _FLAGS[name], loc, out)
            _check_values(flags.values, loc, tasks, out)


def _advise_unread(flags: ParsedFlags, known: Mapping[str, FlagKind], loc: FieldPath, out: FieldErrors) -> None:
    if not flags.stopped_at:
        return
    also = f", nor {' '.join(flags.unread)}" if flags.unread else ""
    argument = flags.stopped_at[:80]
    names = [f"--{name}" for name in known]
    hint = suggestion(f"--{flags.unknown}", names) if flags.unknown else ""
    if " -" in flags.stopped_at:  # two arguments in one text: report the first, whose value ends at the space
        argument, hint = argument.partition("=")[0], "write each argument as an entry of its own"
    out.warn(loc, f"{argument} {flags.problem}: it is not used{also}, as Volcano stops reading there", hint)


def _check_values(values: Mapping[str, str], loc: FieldPath, tasks: Sequence[str], out: FieldErrors) -> None:
    for name, value in values.items():
        port = parse_go_int(value) or 0 if name in ("port", _SSH_PORT) else 1
        if name == "port" and not 1 <= port <= 65535:
            out.error(loc, f"--port is a port from 1 to 65535, not {value[:40]!r}")
        elif not 1 <= port <= 65535:
            out.warn(loc, f"--{name} is a port from 1 to 65535, not {value[:40]!r}: Volcano takes 22")
        elif name == _KEY_PATH and (not value.startswith("/") or ":" in value):
            out.error(loc, f"--{name} is an absolute path without ':', not {value[:80]!r}")
        elif name in _ROLES and value not in tasks and not out.partial:
            message = f"--{name} names the task {value!r}, which the job does not have: no task has this role"
            out.warn(loc, message, suggestion(value, tasks))
    if bool(values.get(_PRIVATE)) != bool(values.get(_PUBLIC)):
        message = f"--{_PRIVATE} and --{_PUBLIC} belong together"
        out.warn(loc, message, "write both, or neither to have a pair generated")
    if values.get(_PRIVATE):
        message = f"--{_PRIVATE}: every user who may read the job can read the key"
        out.warn(loc, message, "leave it out to have a pair generated")
    roles = [values.get(name, name) for name in _ROLES]
    if doubled := sorted({one for one in roles if roles.count(one) > 1 and one in tasks}):
        out.error(loc, f"gives the task {doubled[0]!r} two roles", "one task has one role")


# -- programs that use variables or files of a plugin --

_INDEX: Final = re.compile(r"V[CK]_TASK_INDEX(?!\w)")
_HOSTS: Final = re.compile(r"(VC_[A-Z0-9_]+)_(?:HOSTS|NUM)(?!\w)")
_FOLDER: Final = "/etc/volcano"


def advise_missing_plugins(
    plugins: Plugins, tasks: Sequence[str], templates: Sequence[Document], out: FieldErrors
) -> None:
    """Warnings about programs that read their index or addresses of peers, if no plugin of the job provides these."""
    variables = {names.hosts_prefix(name) for name in tasks}
    for index, template in enumerate(templates):
        for place, container in (*template_containers(template), *template_containers(template, "initContainers")):
            loc = ("spec", "tasks", index, "template", *place)
            own = {text(value_at(entry, "name")) for entry in list_items(container.get("env"))}
            mounted = {text(value_at(entry, "mountPath")) for entry in list_items(container.get("volumeMounts"))}
            said = "\n".join(_program(container))
            if not plugins.env and (found := _INDEX.search(said)) and found[0] not in own:
                out.warn(loc, f"uses ${found[0]}, which is not set without the env plugin", "write plugins: {env: []}")
            if not plugins.svc and _FOLDER in said and not any(_FOLDER.startswith(path) for path in mounted if path):
                message = f"reads {_FOLDER}, which does not exist without the svc plugin"
                out.warn(loc, message, "write plugins: {svc: []}")
            hosts = next((one for one in _HOSTS.finditer(said) if one[1] in variables and one[0] not in own), None)
            if hosts and not (plugins.svc and plugins.hosts_env):
                why = f"with --{_HOSTS_ENV}=false" if plugins.svc else "without the svc plugin"
                hint = "leave that argument out" if plugins.svc else "write plugins: {svc: []}"
                out.warn(loc, f"uses ${hosts[0]}, which is not set {why}", hint)


def _program(container: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a container that its program or shell may read."""
    probes = [container.get(key) for key in ("livenessProbe", "readinessProbe", "startupProbe")]
    hooks = list(mapping(container.get("lifecycle")).values())
    for handler in (container, *(value_at(one, "exec") for one in (*probes, *hooks))):
        for key in ("command", "args"):
            yield from (one for one in list_items(value_at(handler, key)) if isinstance(one, str))
    for entry in list_items(container.get("env")):
        if isinstance(value := value_at(entry, "value"), str):
            yield value
