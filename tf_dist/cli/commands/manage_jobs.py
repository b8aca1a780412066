"""``tf-dist submit``, ``wait``, ``scale``, ``suspend``, ``resume``, ``delete``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.client.connection import Connection
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.cluster.api import Cluster


def submit(
    files: options.Files,
    namespace: options.Target = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    changes: options.Set = None,
    set_json: options.SetJson = None,
    set_string: options.SetString = None,
    fallback: options.Fallback = None,
    on_eviction: options.OnEviction = None,
    on_preemption: options.OnPreemption = None,
    admission_timeout: options.AdmissionTimeout = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job has finished.")] = False,
    timeout: options.Timeout = "",
    strict: options.Strict = False,
) -> None:
    """Submit jobs, and what stands beside them in their files, to the cluster.

    On the local cluster relative commands run in the folder of the file (annotation tf-dist.dev/workdir).
    """
    from tf_dist.cli.job_output import require_valid_files
    from tf_dist.cli.options import parse_seconds
    from tf_dist.client.connection import connect
    from tf_dist.client.job_files import load_job_files
    from tf_dist.client.stored_jobs import without_driver
    from tf_dist.client.submission import TargetNamespaces, companion_owner, create_companion, create_job
    from tf_dist.client.wait import wait_for
    from tf_dist.core.api.overrides import parse_overrides

    policies = options.policy_changes(fallback or (), on_eviction, on_preemption, admission_timeout)
    overrides = parse_overrides(changes or (), json=set_json or (), strings=[*(set_string or ()), *policies])
    bundle, limit = require_valid_files(load_job_files(files, overrides, strict=strict)), parse_seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, spaces = connection.cluster, TargetNamespaces(namespace, connection.namespace)
    jobs = [(entry, spaces.of(entry.written)) for entry in bundle.jobs]
    companions = [(written, spaces.of(written)) for written in bundle.companions]
    output.announce_target(connection, ", ".join(sorted({where for _, where in (*jobs, *companions)})))
    for written, where in companions:
        done = create_companion(cluster, written, where, owner=companion_owner(written, bundle.jobs))
        output.line(f"{written.content['kind'].lower()}/{written.content['metadata']['name']} {done}")
    # The folder of a file means something to a node on this machine only.
    created = [create_job(cluster, entry, where, workdir=None if connection.here else "") for entry, where in jobs]
    for job in created:
        output.line(f"{job.shown} submitted")
    output.flush()
    if not connection.here and (idle := without_driver(cluster, created)):
        output.warning(*idle)
    if wait:
        wait_for(cluster, created, "finished", limit, output.line)


def wait(
    jobs: options.Names,
    goal: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="STATE",
            help="succeeded, failed, finished, running, admitted, scheduled, suspended or deleted.",
        ),
    ] = "finished",
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    timeout: options.Timeout = "",
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="text or json.")] = options.TextFormat.TEXT,
) -> None:
    """Wait until jobs have come to a state. Exits at once with 1 if one can never come there, with 75 if not in time.

    kubectl's form works too: --for=condition=Succeeded, --for=delete. -o json prints how each job ended, also when it
    failed: see "How it ended" in docs/jobs.md.
    """
    from tf_dist.cli.options import parse_seconds
    from tf_dist.client.connection import connect
    from tf_dist.client.stored_jobs import find_job
    from tf_dist.client.wait import wait_for
    from tf_dist.errors import NotFound

    state, limit = _goal(goal), parse_seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = []
    for name in jobs:
        try:
            found.append(find_job(cluster, name, namespace))
        except NotFound:
            if state != "deleted":
                raise
    if form is options.TextFormat.TEXT:
        wait_for(cluster, found, state, limit, output.line)
        return
    try:
        wait_for(cluster, found, state, limit, output.note)
    finally:
        output.data("json", [_outcome(cluster, job) for job in found])


def _outcome(cluster: Cluster, job: StoredJob) -> dict[str, Any]:
    """What -o json says of a job; its outcome is null while it goes on, and where the cluster cannot be asked."""
    from tf_dist.client.wait import outcome_now
    from tf_dist.errors import ClusterError

    names = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind}
    try:
        outcome = outcome_now(cluster, job)
    except ClusterError as error:
        return {**names, "outcome": None, "error": str(error)}
    return {**names, "outcome": outcome.document() if outcome else None}


_GOAL_ALIASES = {"delete": "deleted", "created": "admitted", "complete": "succeeded", "completed": "succeeded"}


def _goal(text: str) -> str:
    from tf_dist.core.api.fieldpath import suggestion
    from tf_dist.core.diagnostics.outcome import WAIT_CONDITIONS
    from tf_dist.errors import InvalidJob, Problem

    word = text.removeprefix("condition=").removesuffix("=true").removesuffix("=True").lower()
    word = _GOAL_ALIASES.get(word, word)
    if word in WAIT_CONDITIONS:
        return word
    hint = suggestion(word, WAIT_CONDITIONS)
    raise InvalidJob([Problem("--for", f"there is no state {text!r} to wait for", hint)])


# Others write the job, too: its driver the status. So many times it is read anew.
_ATTEMPTS: Final = 5


def scale(
    name: options.Name,
    workers: Annotated[
        int, typer.Option("--workers", "-w", min=0, metavar="N", help="How many workers it is to have.")
    ],
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
) -> None:
    """Give a job another number of workers. Fewer: the last ones stop. More: they start when there is room."""
    from tf_dist.client.connection import connect
    from tf_dist.client.stored_jobs import find_job, refuse_finished

    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find_job(cluster, name, namespace)
    refuse_finished(job)
    before = _count(job)
    shown = f"{workers} {'worker' if workers == 1 else 'workers'}"
    if before == workers == _most(job):
        output.line(f"{job.shown} has {shown} already")
        return
    output.announce_target(connection, namespace)
    job = _write_replicas(cluster, job, workers)
    said = f"scaled from {before} to" if before != workers else "has at most"
    output.line(f"{job.shown} {said} {shown}")
    _scaling_notes(job, before, workers)


def _count(job: StoredJob) -> int:
    from tf_dist.core.api.job import Role

    return next((spec.replicas for spec in job.job.replica_specs if spec.role is Role.WORKER), -1)


def _most(job: StoredJob) -> int:
    """How many workers it may have: more than it asks for, if it is elastic."""
    from tf_dist.core.api.job import Role

    return next((spec.most for spec in job.job.replica_specs if spec.role is Role.WORKER), -1)


def _write_replicas(cluster: Cluster, job: StoredJob, workers: int) -> StoredJob:
    """The job as it is with so many workers; Conflict if others write it all the time."""
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.core.dialects import scale_patch
    from tf_dist.errors import Conflict

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            written = cluster.patch(job.resource, job.namespace, job.name, scale_patch(job.stored, workers))
            return StoredJob(job.resource, written)
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
            job = StoredJob(job.resource, cluster.get(job.resource, job.namespace, job.name))
    raise AssertionError("the last attempt returns or raises")


def _scaling_notes(job: StoredJob, before: int, workers: int) -> None:
    """What follows from it, where one would not expect it."""
    from tf_dist.core.api.assignment import replica_bounds, replica_counts, resize_restarts
    from tf_dist.core.api.job import Role

    after, place = replica_counts(job.job), job.status.admission
    worker = next(spec for spec in job.job.replica_specs if spec.role is Role.WORKER)
    granted = place is not None and place.sizes
    if granted and resize_restarts(job.job, {**after, worker.type: before}, after):
        output.note("all its replicas start again (TF_CONFIG names every worker), which costs none of its restarts")
    least, most = replica_bounds(job.job)[worker.type]
    if (least, most) != (workers, workers):
        output.note(f"it is elastic: depending on what waits, it has from {least} to {most} workers")


def _command(help_text: str, *, suspended: bool) -> Callable[..., None]:
    """A command over jobs. The two differ in nothing but what they make of ``suspended``, and in their help."""

    def command(
        jobs: options.Names,
        namespace: options.Namespace = "",
        kubeconfig: options.Kubeconfig = "",
        context: options.Context = "",
        local: options.Local = False,
    ) -> None:
        from tf_dist.client.connection import connect

        _set(jobs, namespace, connect(kubeconfig, context, local=local), suspended=suspended)

    command.__doc__ = help_text
    return command


suspend = _command(
    "Stop the pods of jobs and give their place back; resume starts them again. Costs none of their restarts.",
    suspended=True,
)
resume = _command("Let suspended jobs, and jobs that a policy aborted, start again.", suspended=False)


def _set(jobs: list[str], namespace: str, connection: Connection, *, suspended: bool) -> None:
    from tf_dist.client.stored_jobs import find_job, refuse_finished
    from tf_dist.core.dialects import suspend_patch

    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = [find_job(cluster, name, namespace) for name in jobs]
    for job in found:
        refuse_finished(job)
    output.announce_target(connection, namespace)
    for job in found:
        patch: dict[str, Any] = suspend_patch(job.stored, suspended)
        if not suspended:
            patch = _with_attempt(job, patch)
        cluster.patch(job.resource, job.namespace, job.name, patch)
        output.line(f"{job.shown} {'suspended' if suspended else 'resumed'}")


def _with_attempt(job: StoredJob, patch: dict[str, Any]) -> dict[str, Any]:
    """A job that a policy aborted is not suspended; which of its attempts is meant to end says this annotation."""
    from tf_dist.core.api import names
    from tf_dist.core.api.status import STOPPED, SUSPENDED

    if job.status.phase not in STOPPED or job.status.reason == SUSPENDED:
        return patch
    metadata = patch.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.RESUME_ATTEMPT: str(job.status.attempts.job)}
    return {**patch, "metadata": {**metadata, "annotations": annotations}}


def delete(
    jobs: options.Names,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until their last pod is gone.")] = False,
    timeout: options.Timeout = "",
    ignore_missing: Annotated[bool, typer.Option("--ignore-not-found", help="No error if there is none.")] = False,
) -> None:
    """Delete jobs with their pods and services. Pods get their grace period to end in."""
    from tf_dist.cli.options import parse_seconds
    from tf_dist.client.connection import connect
    from tf_dist.client.stored_jobs import find_job
    from tf_dist.client.wait import wait_for
    from tf_dist.errors import NotFound

    limit = parse_seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = []
    for name in jobs:
        try:
            found.append(find_job(cluster, name, namespace))
        except NotFound:
            if not ignore_missing:
                raise
    output.announce_target(connection, namespace)
    for job in found:
        # In the foreground the job itself goes last, so that its end is the end of everything.
        propagation = "Foreground" if wait else "Background"
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid, propagation=propagation)
        if not wait:
            output.line(f"{job.shown} deleted")
    if wait:
        wait_for(cluster, found, "deleted", limit, output.line)
