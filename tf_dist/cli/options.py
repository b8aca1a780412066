"""Options and arguments that several commands share: one spelling, one help text."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated

import typer

from tf_dist.cli import output


class DataFormat(StrEnum):
    """How data is printed."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"


class ListFormat(StrEnum):
    """How a list of jobs is printed."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"
    TABLE = "table"


class TextFormat(StrEnum):
    """Text for people, or JSON for programs."""

    JSON = "json"
    TEXT = "text"


class Level(StrEnum):
    """From which level on log lines are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As the logging package counts."""
        return logging.getLevelNamesMapping()[self.name]


def _make_plain(asked: bool) -> bool:
    output.configure(plain=asked)
    return asked


File = Annotated[str, typer.Argument(help="A YAML file; - is standard input.", metavar="FILE")]
Files = Annotated[list[str], typer.Argument(help="YAML files; - is standard input.", metavar="FILE…")]
Name = Annotated[str, typer.Argument(help="A job: NAME, tfjob/NAME or vcjob/NAME.", metavar="NAME")]
Names = Annotated[list[str], typer.Argument(help="Jobs: NAME, tfjob/NAME or vcjob/NAME.", metavar="NAME…")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="Where the job is.")]
Target = Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="Where to, if the file does not say.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="The cluster of this kubeconfig.")]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="The cluster of this context.")]
LogLevel = Annotated[
    Level, typer.Option("--log-level", envvar="TF_DIST_LOG_LEVEL", help="From which level on log lines are written.")
]
Local = Annotated[bool, typer.Option("--local", help="The cluster that tf-dist local up keeps on this machine.")]
Plain = Annotated[
    bool, typer.Option("--plain", callback=_make_plain, help="Plain text even on a terminal (also: NO_COLOR).")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the job first: spec.tfReplicaSpecs.Worker.replicas=3."),
]
SetJson = Annotated[
    list[str] | None,
    typer.Option("--set-json", metavar="PATH=JSON", help="The same, with a list or a mapping."),
]
SetString = Annotated[
    list[str] | None,
    typer.Option("--set-string", metavar="PATH=TEXT", help="The same, with any text as it is."),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Give up after 90s, 10m, 2h.")]
Network = Annotated[str, typer.Option("--network", help="How pods are separated: auto, isolated or shared.")]
Node = Annotated[
    str,
    typer.Option("--node", metavar="RESOURCES", help="What this machine offers: cpu=8,memory=16Gi,nvidia.com/gpu=2."),
]
Entrypoint = Annotated[
    list[str] | None,
    typer.Option("--entrypoint", metavar="IMAGE=COMMAND", help="What an image runs: my/image='python train.py'."),
]
