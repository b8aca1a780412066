"""``tf-dist run``: runs one job, on this machine or on a cluster, and cleans up at the end."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tf_dist.cli import options, scripts
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.pipeline.adoption import DriverChoice

if TYPE_CHECKING:
    from tf_dist.client.job_files import LoadedJob
    from tf_dist.client.run_session import Result
    from tf_dist.local.embedded import EmbeddedSettings


def run(
    file: options.FileOrScript,
    program: scripts.Program = None,
    workers: scripts.Workers = None,
    ps: scripts.Ps = None,
    chief: scripts.Chief = False,
    evaluator: scripts.Evaluator = False,
    gpus: scripts.Gpus = 0,
    image: scripts.Image = "",
    env: scripts.Env = None,
    env_file: scripts.EnvFile = None,
    code: scripts.Code = "",
    package: scripts.Package = None,
    queue: scripts.Queue = "",
    name: scripts.Name = "",
    dry_run: scripts.DryRun = False,
    namespace: options.Target = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    embedded: Annotated[bool, typer.Option("--embedded", help="Run on this machine, also inside a pod.")] = False,
    changes: options.Set = None,
    set_json: options.SetJson = None,
    set_string: options.SetString = None,
    fallback: options.Fallback = None,
    on_eviction: options.OnEviction = None,
    on_preemption: options.OnPreemption = None,
    admission_timeout: options.AdmissionTimeout = "",
    timeout: options.Timeout = "",
    startup_timeout: options.StartupTimeout = "10m",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep logs and volumes (on a cluster: the job), and print where they are.")
    ] = False,
    network: options.Network = "auto",
    node: options.Node = "",
    entrypoint: options.Entrypoint = None,
    workdir: Annotated[
        str,
        typer.Option(
            "--workdir", metavar="DIR", help="The working directory of containers without one. [the folder of FILE]"
        ),
    ] = "",
    gang_scheduler: Annotated[
        GangScheduler | None,
        typer.Option("--gang-scheduler", help="On a cluster: the gang scheduler, instead of that of FILE."),
    ] = None,
    driver: options.Driver = DriverChoice.AUTO,
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="The summary as text, json or yaml.")] = (
        options.TextFormat.TEXT
    ),
    strict: options.Strict = False,
    plain: options.Plain = False,
) -> None:
    """Run a job and show the state, progress and logs of every replica, and a summary at the end.

    A script becomes a TFJob. All replicas run the script, and its folder is sent with the job.

    The job runs on this machine, unless a cluster is named or the command runs in a pod. On a cluster, the job is
    deleted at the end. If its namespace has no leader, this command is the leader until the job ends.

    Ctrl-C gives the pods their grace period, and a second Ctrl-C kills them immediately. Nothing is left behind.
    Exits with 0 if the job succeeded, 1 if it failed or exceeded --timeout, 2 if it cannot run here, and 75 if it was
    evicted or not admitted in time.
    """
    from tf_dist.cli import output
    from tf_dist.cli.findings import require_valid_files
    from tf_dist.cli.run_output import view_of
    from tf_dist.client.connection import connect
    from tf_dist.client.job_files import one_job
    from tf_dist.client.run_session import RunRequest, run_here, run_on
    from tf_dist.client.submission import TargetNamespaces
    from tf_dist.cluster.signals import Signals
    from tf_dist.core.dialects.common_annotations import with_startup_timeout
    from tf_dist.core.model.overrides import parse_overrides
    from tf_dist.core.model.timestamps import duration_text

    limit = options.parse_seconds(timeout)
    startup = options.parse_seconds(startup_timeout, "--startup-timeout")
    machine = LocalMachineOptions(network, node, tuple(entrypoint or ()), workdir)
    elsewhere = _elsewhere(kubeconfig, context, local=local, embedded=embedded)
    if elsewhere:
        machine.refuse()
    asked = _asked(gang_scheduler, here=local or not elsewhere)
    settings = None if elsewhere else machine.settings(file)
    policies = options.policy_changes(fallback or (), on_eviction, on_preemption, admission_timeout)
    overrides = parse_overrides(
        [*(changes or ()), *asked], json=set_json or (), strings=[*(set_string or ()), *policies]
    )
    # A run on this machine does not pull images.
    to_start = duration_text(startup) if elsewhere and startup else None
    change = partial(with_startup_timeout, timeout=to_start or "")
    asked_of_job = scripts.JobArguments(
        program=program or (),
        workers=workers,
        ps=ps,
        chief=chief,
        evaluator=evaluator,
        gpus=gpus,
        image=image,
        env=env or (),
        env_files=env_file or (),
        code=code,
        packages=package or (),
        queue=queue,
        name=name,
    )
    bundle = require_valid_files(asked_of_job.load([file], overrides, strict=strict, change=change))
    entry = one_job(bundle)
    if dry_run:
        scripts.print_documents(bundle, packed=elsewhere)
        return
    connection = None if settings else connect(kubeconfig, context, local=local)
    request = RunRequest(
        entry=entry,
        companions=bundle.companions,
        spaces=TargetNamespaces(namespace, connection.namespace if connection else "default"),
        timeout=limit,
    )
    request.refuse_idle()
    kept, view = "", partial(view_of, entry.job, data_wanted=form is not options.TextFormat.TEXT)
    if settings is not None and keep:
        kept = _folder(entry)
        settings = replace(settings, data_dir=Path(kept), keep_logs_dir=Path(kept) / "logs")
    with Signals() as signals:
        if settings is not None:
            _warn_of_python(entry)
            _warn_of_keras(file, entry)
            result = run_here(request, settings, view, signals)
        elif connection is not None:
            output.announce_target(connection, request.namespace)
            result = run_on(request, connection, view, signals, keep=keep, choice=driver)
            kept = f"{connection.name}, namespace {request.namespace}" if keep else ""
    raise typer.Exit(_summarise(result, form, kept))


def _warn_of_python(entry: LoadedJob) -> None:
    """Warn if replicas use another Python than the active environment, where the user may have installed packages."""
    from tf_dist.cli import output
    from tf_dist.core.dialects.step_overrides import training_containers

    active = os.environ.get("VIRTUAL_ENV", "")
    if not active or os.path.realpath(active) == os.path.realpath(sys.prefix):
        return
    programs = {(one.get("command") or [""])[0] for _, _, one, _ in training_containers(entry.document)}
    if programs & {"python", "python3"}:
        what = f"replicas run with the Python of tf-dist, {sys.executable}, and not with that of {active}"
        output.warning(what, "install tf-dist into that environment, or install the job's packages where tf-dist is")


_STRATEGY: Final = re.compile(r"\b(MultiWorkerMirrored|ParameterServer)Strategy\b")
_LAYERS: Final = re.compile(r"\btf\.(compat\.v1\.)?layers\.")


def _warn_of_keras(file: str, entry: LoadedJob) -> None:
    """Warn before the start if the script uses features that the installed Keras 3 does not support."""
    if Path(file).suffix != ".py":
        return
    from importlib import metadata

    from tf_dist.cli import output
    from tf_dist.core.dialects.step_overrides import training_containers

    text = Path(file).read_text(encoding="utf-8", errors="replace")
    used = _LAYERS.search(text) or (".fit(" in text and _STRATEGY.search(text))
    variables = {one.get("name") for _, _, container, _ in training_containers(entry.document)
                 for one in container.get("env") or ()}  # fmt: skip
    if not used or "TF_USE_LEGACY_KERAS" in {*variables, *re.findall("TF_USE_LEGACY_KERAS", text)}:
        return
    with suppress(metadata.PackageNotFoundError, ValueError):
        if int(metadata.version("keras").split(".")[0]) >= 3:
            what = used[0].rstrip(".") if _LAYERS.match(used[0]) else f"model.fit with {used[0]}"
            hint = "install tf_keras, and add --env TF_USE_LEGACY_KERAS=1: docs/your-script.md"
            output.warning(f"{file} seems to use {what}, which Keras 3 does not support", hint)


def _elsewhere(kubeconfig: str, context: str, *, local: bool, embedded: bool) -> bool:
    """Whether the job runs on a cluster: a named cluster, or the cluster of this pod."""
    from tf_dist.errors import InvalidJob, Problem

    named = "--kubeconfig" if kubeconfig else "--context" if context else "--local" if local else ""
    if embedded and named:
        raise InvalidJob([Problem("--embedded", f"{named} names a cluster", "leave one of them out")])
    if embedded or named:
        return bool(named)
    from tf_dist.cluster.client.client_config import in_cluster_config

    return in_cluster_config() is not None


def _asked(gang: GangScheduler | None, *, here: bool) -> list[str]:
    """The change that requests a gang scheduler. Raises InvalidJob on this machine, which has only tf-dist's own."""
    from tf_dist.core.model.names import GANG_SCHEDULER
    from tf_dist.errors import InvalidJob, Problem

    if gang is None:
        return []
    if here and gang is not GangScheduler.BUILTIN:
        hint = "name a cluster that has it: --kubeconfig or --context"
        raise InvalidJob([Problem("--gang-scheduler", f"there is no {gang} on this machine", hint)])
    return [f'metadata.annotations["{GANG_SCHEDULER}"]={gang}']


@dataclass(frozen=True, slots=True)
class LocalMachineOptions:
    """Options for runs on this machine."""

    network: str
    node: str
    entrypoints: tuple[str, ...]
    workdir: str

    def refuse(self) -> None:
        """Raise InvalidJob if any of these options is set for a run on a cluster."""
        from tf_dist.errors import InvalidJob, Problem

        options = {
            "--network": self.network != "auto",
            "--node": self.node,
            "--entrypoint": self.entrypoints,
            "--workdir": self.workdir,
        }
        problems = [
            Problem(name, "this is for runs on this machine only", "") for name, said in options.items() if said
        ]
        if problems:
            raise InvalidJob(problems)

    def settings(self, file: str) -> EmbeddedSettings:
        """Settings of the cluster to start for a file. Raises InvalidJob."""
        from tf_dist.local.embedded import EmbeddedSettings

        return EmbeddedSettings(
            keep_logs_dir=Path("logs"),
            workdir=_workdir(self.workdir, file),
            network=options.parse_network_mode(self.network),
            capacity=options.parse_resources(self.node),
            entrypoints=options.parse_entrypoints(self.entrypoints),
            serve=False,
        )


def _summarise(result: Result, form: options.TextFormat, kept: str) -> int:
    from tf_dist.cli import output
    from tf_dist.cli.run_output import run_report, show_summary
    from tf_dist.client import exit_codes

    if form is not options.TextFormat.TEXT:
        output.data(form.value, run_report(result, kept))
    else:
        show_summary(result, kept)
    return exit_codes.exit_code_of_end(result.end)


def _workdir(asked: str, file: str) -> Path:
    from tf_dist.errors import InvalidJob, Problem

    if not asked:
        return Path.cwd() if file == "-" else Path(file).absolute().parent
    folder = Path(asked).absolute()
    if not os.path.isdir(folder):  # false without permission, too
        raise InvalidJob([Problem("--workdir", f"{asked} is not a folder", "name one that exists")])
    return folder


def _folder(entry: LoadedJob) -> str:
    """Create a folder that is not deleted."""
    import tempfile

    return tempfile.mkdtemp(prefix=f"tf-dist-{entry.job.key.name}-")
