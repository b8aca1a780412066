"""``tf-dist run``: one job on this machine, from start to end, with nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options

if TYPE_CHECKING:
    from tf_dist.cli.bundle import Bundle, Entry
    from tf_dist.cli.running.session import Result
    from tf_dist.cli.running.signals import Signals
    from tf_dist.cluster.api import Cluster
    from tf_dist.driver.embedded import EmbeddedCluster, EmbeddedSettings


def run(
    file: options.File,
    changes: options.Set = None,
    timeout: options.Timeout = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep logs and volumes, and say where.")] = False,
    network: options.Network = "auto",
    node: options.Node = "",
    entrypoint: options.Entrypoint = None,
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Where containers run that name no folder. [FILE's]")
    ] = "",
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="The summary as text or json.")] = (
        options.TextFormat.TEXT
    ),
    plain: options.Plain = False,
) -> None:
    """Run a job on this machine and show it: state, progress and logs of every replica, and a summary at the end.

    Ctrl-C stops it: pods get their grace period, a second one kills them at once. Nothing is left behind.
    Exits with 0 when the job succeeded, 1 when it failed or took longer than --timeout, 2 when it can never run here,
    75 when it was evicted or got no place in time.
    """
    from tf_dist.cli import arguments
    from tf_dist.cli.bundle import load, one_job
    from tf_dist.driver.embedded import EmbeddedSettings

    limit = arguments.seconds(timeout)
    mode, capacity = arguments.network_mode(network), arguments.resources(node)
    images = arguments.entrypoints(entrypoint or ())
    bundle = load([file], changes or ())
    entry = one_job(bundle)
    _refuse_suspended(entry)
    kept = _folder(entry) if keep else None
    settings = EmbeddedSettings(
        data_dir=kept,
        keep_logs_dir=kept / "logs" if kept else Path("logs"),
        workdir=_workdir(workdir, file),
        network=mode,
        capacity=capacity,
        entrypoints=images,
        serve=False,
    )
    result = _run(entry, bundle, settings, limit, data_wanted=form is options.TextFormat.JSON)
    raise typer.Exit(_summarise(result, form, kept))


def _run(entry: Entry, bundle: Bundle, settings: EmbeddedSettings, limit: float | None, *, data_wanted: bool) -> Result:
    from tf_dist.cli.running.preflight import check
    from tf_dist.cli.running.signals import Signals
    from tf_dist.driver.embedded import EmbeddedCluster

    with Signals() as signals, EmbeddedCluster(settings) as embedded:
        check(entry, bundle.companions, settings, embedded.network)
        return _session(entry, bundle, embedded, signals, limit, data_wanted=data_wanted)


def _session(
    entry: Entry, bundle: Bundle, embedded: EmbeddedCluster, signals: Signals, limit: float | None, *, data_wanted: bool
) -> Result:
    from contextlib import closing

    from tf_dist.cli.commands.submit import create_companion, create_job
    from tf_dist.cli.running.session import Session
    from tf_dist.cli.running.views import view_of

    cluster = embedded.cluster
    logs = embedded.node.state_dir / (embedded.settings.keep_logs_dir or "")
    _make_namespace(cluster, entry.job.key.namespace)
    for written in bundle.companions:
        namespace = (written.content["metadata"]).get("namespace") or "default"
        _make_namespace(cluster, namespace)
        create_companion(cluster, written, namespace)
    with closing(view_of(entry.job, data_wanted=data_wanted)) as view:
        job = create_job(cluster, entry, workdir="")
        return Session(cluster, job, view, signals, logs=logs, timeout=limit).run()


def _make_namespace(cluster: Cluster, name: str) -> None:
    from tf_dist.cluster.api import NAMESPACES
    from tf_dist.errors import AlreadyExists

    try:
        cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    except AlreadyExists:
        return


def _summarise(result: Result, form: options.TextFormat, kept: Path | None) -> int:
    from tf_dist.cli import output
    from tf_dist.cli.running.summary import code_of, report, show_summary

    if form is options.TextFormat.JSON:
        output.data("json", report(result, kept))
    else:
        show_summary(result, kept)
    return code_of(result)


def _workdir(asked: str, file: str) -> Path:
    from tf_dist.errors import InvalidJob, Problem

    if not asked:
        return Path.cwd() if file == "-" else Path(file).absolute().parent
    folder = Path(asked).absolute()
    if not folder.is_dir():
        raise InvalidJob([Problem("--workdir", f"{asked} is no folder", "name one that exists")])
    return folder


def _refuse_suspended(entry: Entry) -> None:
    from tf_dist.cli.bundle import InvalidFiles
    from tf_dist.cli.yaml_files import FileProblem
    from tf_dist.errors import Problem

    if entry.job.run_policy.suspend:
        hint = "take the suspension out, or submit it: tf-dist local up, tf-dist submit, tf-dist resume"
        problem = Problem("", "the job is suspended, so it would never start", hint)
        written = entry.written
        raise InvalidFiles([FileProblem(written.file, written.number, written.line(""), problem)])


def _folder(entry: Entry) -> Path:
    """A fresh folder that stays."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"tf-dist-{entry.job.key.name}-"))
