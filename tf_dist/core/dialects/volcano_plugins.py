"""Volcano's job plugins: which ones tf-dist plays, and what their command-line arguments say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc, suggest
from tf_dist.core.dialects.shape import TF_PORT
from tf_dist.core.dialects.volcano_schema import Spec
from tf_dist.core.model import Plugins, Role

_ROLES: Final = ("ps", "worker", "chief", "evaluator")
_SVC: Final = ("publish-not-ready-addresses", "disable-network-policy", "inject-hosts-env")
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {"env": (), "svc": _SVC, "tensorflow": (*_ROLES, "port")}
_NOT_PLAYED: Final = ("ssh", "mpi", "pytorch", "ray", "hcclrank")
_BOOLEANS: Final = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)} | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowPlugin:
    """What the tensorflow plugin was told: the role of each task, and the port."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    port: int = TF_PORT


def flags(arguments: Sequence[str]) -> dict[str, str]:
    """Arguments as Go's flag package reads them: ``--port=22``, ``-port=22``, ``--port 22``; a lone flag is true."""
    found: dict[str, str] = {}
    waiting = ""
    for argument in arguments:
        if not argument.startswith("-"):
            found[waiting or argument] = argument if waiting else ""
            waiting = ""
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        found[name] = value if equals else "true"
        waiting = "" if equals or name in _SVC else name
    return found


def plugins(spec: Spec) -> Plugins:
    """The plugins of a job; the tensorflow plugin brings svc with it."""
    given = spec.plugins or {}
    svc = flags(given.get("svc") or ())
    return Plugins(
        env="env" in given,
        svc="svc" in given or "tensorflow" in given,
        publish_not_ready=_BOOLEANS.get(svc.get(_SVC[0], "false"), False),
        network_policy=not _BOOLEANS.get(svc.get(_SVC[1], "false"), False),
        hosts_env=_BOOLEANS.get(svc.get(_SVC[2], "true"), True),
    )


def tensorflow(spec: Spec) -> TensorFlowPlugin | None:
    """The tensorflow plugin, None if the job makes its own TF_CONFIG."""
    if "tensorflow" not in (spec.plugins or {}):
        return None
    told = flags((spec.plugins or {})["tensorflow"] or ())
    port = told.get("port", "")
    return TensorFlowPlugin(
        roles={told.get(name, name): Role(name) for name in _ROLES},
        port=int(port) if port.isdecimal() and len(port) <= 5 else TF_PORT,
    )


def check(spec: Spec, tasks: Sequence[str], out: Findings) -> None:
    """Plugins that are unknown or not played, and arguments they do not take."""
    for name, arguments in (spec.plugins or {}).items():
        loc: Loc = ("spec", "plugins", name)
        if name in _NOT_PLAYED:
            out.error(
                loc, f"tf-dist does not play Volcano's {name} plugin, and without it the job would run differently"
            )
        elif name not in _ARGUMENTS:
            out.error(loc, "unknown plugin", suggest(name, _ARGUMENTS))
        else:
            _check_arguments(name, flags(arguments or ()), loc, tasks, out)


def _check_arguments(plugin: str, told: Mapping[str, str], loc: Loc, tasks: Sequence[str], out: Findings) -> None:
    for name, value in told.items():
        if name not in _ARGUMENTS[plugin]:
            known = [f"--{one}" for one in _ARGUMENTS[plugin]]
            hint = suggest(f"--{name}", known) if known else f"{plugin} takes none"
            out.error(loc, f"unknown argument {name!r}", hint)
        elif name in _SVC and value not in _BOOLEANS:
            out.error(loc, f"--{name} is true or false, not {value!r}")
        elif name == "port" and not (value.isascii() and value.isdecimal() and 1 <= int(value[:6]) <= 65535):
            out.error(loc, f"--port is a port from 1 to 65535, not {value!r}")
        elif name in _ROLES and value not in tasks and not out.partial:
            out.error(loc, f"--{name} names the task {value!r}, which the job does not have", suggest(value, tasks))
