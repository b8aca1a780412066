"""Options that commands share, and the parsing of their values."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import output
from tf_dist.core.model.job import DisruptionPolicy
from tf_dist.core.model.names import is_dns_label, is_dns_subdomain
from tf_dist.core.model.timestamps import seconds_of
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.pipeline.run_options import NAME_HINT, Face, RunOptions, argument_problems, options_of
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode


def _refuse(option: str, message: str, hint: str) -> InvalidJob:
    return InvalidJob([Problem(option, message, hint)])


def parse_seconds(text: str, option: str = "--timeout") -> float | None:
    """Parse ``90``, ``90s`` or ``1h30m`` to seconds. Return None for an empty text."""
    if not text:
        return None
    if problems := [*argument_problems("run_timeout", text, later=lambda _: False, path=option)]:
        raise InvalidJob(problems)
    return float(seconds_of(text))


def parse_resources(text: str, option: str = "--node", example: str = "cpu=8,memory=16Gi") -> dict[str, str]:
    """Parse ``cpu=8,memory=16Gi`` to a mapping of quantities. Raises InvalidJob with all invalid entries."""
    from tf_dist.core.model.quantity import parse_quantity

    found: dict[str, str] = {}
    problems: list[Problem] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            if not equals or not name or parse_quantity(value) < 0:
                raise ValueError(part)
        except ValueError:
            problems.append(Problem(option, f"{part!r} is not an amount of a resource", f"write {example}"))
        found[name] = value
    if problems:
        raise InvalidJob(problems)
    return found


def parse_entrypoints(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse ``IMAGE=COMMAND`` entries to a mapping of images to commands."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        image, _, command = text.partition("=")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise _refuse("--entrypoint", f"cannot read the command {command!r}: {error}", "close the quotes") from None
        if not image or not words:
            raise _refuse("--entrypoint", f"{text!r} is not IMAGE=COMMAND", "write my/image='python train.py'")
        found[image] = words
    return found


def policy_changes(
    fallback: Sequence[str], on_eviction: str | None, on_preemption: str | None, admission_timeout: str
) -> list[str]:
    """The policies of a pipeline as ``PATH=TEXT`` changes of the job's annotations. Raises InvalidJob."""
    import json

    from tf_dist.core.dialects import policy_annotations
    from tf_dist.core.dialects.common_annotations import annotation_path
    from tf_dist.core.model.fieldpath import format_field_path
    from tf_dist.core.model.overrides import shorten_text

    entries: list[Any] = []
    for text in fallback:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = f"{shorten_text(text)} cannot be read as JSON: {error}"
            raise _refuse("--fallback", what, _fallback_hint(text)) from None
        entries += found if isinstance(found, list) else [found]  # the annotation and steps take a list
    if admission_timeout and not fallback:
        raise _refuse(
            "--admission-timeout", "sets the time before a fallback, but there is no fallback", "add --fallback JSON"
        )
    parse_seconds(admission_timeout, "--admission-timeout")
    annotations = policy_annotations(
        fallback=entries if fallback else None,
        on_eviction=on_eviction,
        on_preemption=on_preemption,
        admission_timeout=admission_timeout or None,
        spelling=lambda argument: f"--{argument.replace('_', '-')}",
    )
    return [f"{format_field_path(annotation_path(key))}={value}" for key, value in annotations.items()]


def _fallback_hint(text: str) -> str:
    if text.startswith("@") or text.endswith((".json", ".yaml", ".yml")):
        return f"""pass a file as --fallback "$(cat {text.removeprefix("@")})\""""
    return """write --fallback '{"workers": 4}'"""


def parse_network_mode(text: str) -> NetworkMode:
    """Parse how pods are separated. Raises InvalidJob."""
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode

    try:
        return NetworkMode(text)
    except ValueError:
        modes = ", ".join(NetworkMode)
        raise _refuse("--network", f"there is no network {text!r}", f"known: {modes}") from None


class DataFormat(StrEnum):
    """The format of printed data."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"


class ListFormat(StrEnum):
    """The format of a printed list."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"
    TABLE = "table"


class TextFormat(StrEnum):
    """Text for people, or JSON or YAML for programs."""

    JSON = "json"
    YAML = "yaml"
    TEXT = "text"


class LogFormat(StrEnum):
    """Log lines for people, or for programs."""

    JSON = "json"
    TEXT = "text"


ListOutput = Annotated[ListFormat, typer.Option("--output", "-o", help="table, wide, name, yaml or json.")]
TextOutput = Annotated[TextFormat, typer.Option("--output", "-o", help="text, json or yaml.")]


class Level(StrEnum):
    """The lowest level of log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level of the logging package."""
        return logging.getLevelNamesMapping()[self.name]


def _make_plain(asked: bool) -> bool:
    output.configure(plain=asked)
    return asked


def check_namespaces(option: typer.CallbackParam, given: Any) -> Any:
    """A callback for options with one or several namespaces ("": the default namespace). Raises InvalidJob."""
    names: list[str] = [] if not given else [given] if isinstance(given, str) else given
    wrong = [one for one in names if not is_dns_label(one)]
    if problems := [Problem(option.opts[0], f"{one!r} is not a namespace", NAME_HINT) for one in wrong]:
        raise InvalidJob(problems)
    return given


def check_domain(option: typer.CallbackParam, given: str) -> str:
    """A callback for an option with a domain ("": none). Raises InvalidJob."""
    found = given.strip(".")
    if found and not is_dns_subdomain(found.lower()):
        raise _refuse(option.opts[0], f"{given!r} is not a domain", "write cluster.local")
    return found


File = Annotated[str, typer.Argument(help="A YAML file; - is standard input.", metavar="FILE")]
FileOrScript = Annotated[
    str, typer.Argument(help="A script (train.py), or a YAML file with a job; - is standard input.", metavar="FILE")
]
FilesOrScript = Annotated[
    list[str],
    typer.Argument(
        help="YAML files; - is standard input. Or a script, train.py, with its arguments after --.", metavar="FILE…"
    ),
]
Files = Annotated[list[str], typer.Argument(help="YAML files; - is standard input.", metavar="FILE…")]
DisruptionBudgets = Annotated[
    bool,
    typer.Option(
        "--disruption-budgets",
        help="Like tf-operator, create a PodDisruptionBudget for each v1alpha1 TFJob with several pods. Drains wait.",
    ),
]
ClusterDomain = Annotated[
    str,
    typer.Option(
        "--cluster-domain",
        envvar="CUSTOM_CLUSTER_DOMAIN",
        callback=check_domain,
        help="The domain at the end of host names in TF_CONFIG of TFJobs v1, such as cluster.local.",
    ),
]
Name = Annotated[str, typer.Argument(help="A job: NAME, tfjob/NAME or vcjob/NAME.", metavar="NAME")]
Names = Annotated[list[str], typer.Argument(help="Jobs: NAME, tfjob/NAME or vcjob/NAME.", metavar="NAME…")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NS", callback=check_namespaces, help="The namespace of the job.")
]
Target = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NS", callback=check_namespaces, help="The namespace, if the file names none."
    ),
]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="The cluster of this kubeconfig.")]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="The cluster of this context.")]
LogLevel = Annotated[
    Level,
    typer.Option("--log-level", envvar="TF_DIST_LOG_LEVEL", help="The lowest level of log lines that are written."),
]
Local = Annotated[bool, typer.Option("--local", help="The cluster that tf-dist local up keeps on this machine.")]
Plain = Annotated[
    bool, typer.Option("--plain", callback=_make_plain, help="Plain text even on a terminal (also: NO_COLOR).")
]
Strict = Annotated[bool, typer.Option("--strict", help="Unknown keys are errors instead of warnings.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the job first: spec.tfReplicaSpecs.Worker.replicas=3."),
]
SetJson = Annotated[
    list[str] | None,
    typer.Option("--set-json", metavar="PATH=JSON", help="Like --set, with a list or a mapping."),
]
SetString = Annotated[
    list[str] | None,
    typer.Option("--set-string", metavar="PATH=TEXT", help="Like --set, with a text that is not parsed."),
]


def run_option(row: str, metavar: str | None = None, *, name: str = "", short: str = "", **more: Any) -> Any:
    """An option from the table of run options. The help text is that of its row."""
    names = [name or f"--{row.replace('_', '-')}", *([short] if short else [])]
    about = options_of(RunOptions)[row].about(Face.COMMAND).replace("``", "")
    return typer.Option(*names, metavar=metavar, help=about, **more)


Fallback = Annotated[list[str] | None, run_option("fallback", "JSON")]
OnEviction = Annotated[DisruptionPolicy | None, run_option("on_eviction")]
OnPreemption = Annotated[DisruptionPolicy | None, run_option("on_preemption")]
Driver = Annotated[DriverChoice, run_option("driver")]
StartupTimeout = Annotated[str, run_option("startup_timeout", "TIME")]
AdmissionTimeout = Annotated[
    str, typer.Option("--admission-timeout", metavar="TIME", help="When a --fallback is tried: 90s, 10m, 2h.")
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="The longest wait: 90s, 10m, 2h.")]
Network = Annotated[str, typer.Option("--network", help="How pods are separated: auto, isolated or shared.")]
Node = Annotated[
    str,
    typer.Option(
        "--node", metavar="RESOURCES", help="The resources of this machine: cpu=8,memory=16Gi,nvidia.com/gpu=2."
    ),
]
Entrypoint = Annotated[
    list[str] | None,
    typer.Option("--entrypoint", metavar="IMAGE=COMMAND", help="The command of an image: my/image='python train.py'."),
]
