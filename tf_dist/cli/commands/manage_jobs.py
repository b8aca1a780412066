"""``tf-dist submit``, ``wait``, ``scale``, ``suspend``, ``resume``, ``delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output, scripts

if TYPE_CHECKING:
    from tf_dist.client.client import Client
    from tf_dist.client.stored_jobs import StoredJob


def submit(
    files: options.FilesOrScript,
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
    """Submit jobs and the other objects of their files to a cluster.

    A script becomes a TFJob. All replicas run the script, and its folder is sent with the job.

    On the local cluster, relative commands run in the folder of the file (annotation tf-dist.dev/workdir).
    """
    from tf_dist.cli.findings import require_valid_files, show_leaders
    from tf_dist.client.client import Client
    from tf_dist.client.submission import TargetNamespaces
    from tf_dist.client.wait import wait_for
    from tf_dist.core.model.overrides import parse_overrides

    policies = options.policy_changes(fallback or (), on_eviction, on_preemption, admission_timeout)
    overrides = parse_overrides(changes or (), json=set_json or (), strings=[*(set_string or ()), *policies])
    limit = options.parse_seconds(timeout)
    script = scripts.is_script(files[0])
    asked = scripts.JobArguments(
        program=files[1:] if script else (),
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
    bundle = require_valid_files(asked.load(files[:1] if script else files, overrides, strict=strict))
    if dry_run:
        scripts.print_documents(bundle, packed=not local)
        return
    client = Client(kubeconfig, context, local=local)
    spaces = TargetNamespaces(namespace, client.namespace)
    written = (*(entry.written for entry in bundle.jobs), *bundle.companions)
    output.announce_target(client.connection, ", ".join(sorted({spaces.of(one) for one in written})))
    created = client.submit_files(bundle, namespace=namespace, report=output.line)
    output.flush()
    show_leaders(client, created, wanted=output.watched())
    if slow := client.slow_names(created):
        output.warning(*slow)
    if wait:
        wait_for(client.cluster, created, "finished", limit, output.line, check=True)


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
    form: options.TextOutput = options.TextFormat.TEXT,
) -> None:
    """Wait until jobs reach a state. Exits with 1 as soon as a job can no longer reach it, and with 75 after --timeout.

    The options of kubectl also work: --for=condition=Succeeded, --for=delete. -o json prints how each job ended, even
    if it failed: see docs/reference/exit-codes.md.
    """
    from tf_dist.client.client import Client
    from tf_dist.client.wait import wait_for, wait_goal

    state, limit = wait_goal(goal, "--for"), options.parse_seconds(timeout)
    client = Client(kubeconfig, context, local=local, namespace=namespace)
    found = _jobs(client, jobs, missing_ok=state == "deleted")
    as_data = form is not options.TextFormat.TEXT
    try:
        report = output.note if as_data else output.line
        wait_for(client.cluster, found, state, limit, report, check=state == "finished")
    finally:
        if as_data:
            output.data(form.value, [_outcome(client, job) for job in found])


def _jobs(client: Client, names: list[str], *, missing_ok: bool = False) -> list[StoredJob]:
    """The jobs of these names, without duplicates, because NAME and tfjob/NAME may be the same job."""
    from tf_dist.errors import NotFound

    found: dict[str, StoredJob] = {}
    for name in names:
        try:
            job = client.get(name)
            found[job.uid] = job
        except NotFound:
            if not missing_ok:
                raise
    return [*found.values()]


def _outcome(client: Client, job: StoredJob) -> dict[str, Any]:
    """The entry of a job for -o json. Its outcome is null while the job runs, or if the cluster is unreachable."""
    from tf_dist.client.monitor import observed_outcome
    from tf_dist.client.wait import outcome_now
    from tf_dist.errors import ClusterError

    names = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind}
    try:
        outcome = outcome_now(client.cluster, job)
    except ClusterError as error:
        return {**names, "outcome": None, "error": str(error)}
    return {**names, "outcome": observed_outcome(client.cluster, job, outcome).document() if outcome else None}


def scale(
    name: options.Name,
    workers: Annotated[int, typer.Option("--workers", "-w", min=0, metavar="N", help="The number of workers.")],
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
) -> None:
    """Change the number of workers of a job. The last workers are removed; new ones start when capacity is free."""
    from tf_dist.client.client import Client
    from tf_dist.core.model.wording import counted

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    job = client.get(name)
    output.announce_target(client.connection, client.namespace)
    after = client.scale(job, workers)
    before, _ = job.worker_bounds or (-1, -1)
    shown = counted(workers, "worker")
    if after is job:
        output.line(f"{job.shown} has {shown} already")
        return
    said = f"scaled from {before} to" if before != workers else "has at most"
    output.line(f"{job.shown} {said} {shown}")
    _scaling_notes(after, before, workers)


def _scaling_notes(job: StoredJob, before: int, workers: int) -> None:
    """Explain effects of scaling that a user may not expect."""
    from tf_dist.core.model.assignment import replica_bounds, replica_counts, resize_restarts
    from tf_dist.core.model.job import Role
    from tf_dist.core.model.wording import counted

    after, place = replica_counts(job.job), job.status.admission
    worker = next(spec for spec in job.job.replica_specs if spec.role is Role.WORKER)
    granted = place is not None and place.sizes
    if granted and resize_restarts(job.job, {**after, worker.type: before}, after):
        output.note(
            "all its replicas start again, because TF_CONFIG names every worker; this does not count as a restart"
        )
    least, most = replica_bounds(job.job)[worker.type]
    if (least, most) != (workers, workers):
        output.note(f"it is elastic: depending on waiting jobs, it has from {least} to {counted(most, 'worker')}")


def suspend(
    jobs: options.Names,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
) -> None:
    """Stop the pods of jobs and give up their admission, until resume. Does not count as a restart."""
    from tf_dist.client.client import Client

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    for job in _to_change(client, jobs):
        output.line(f"{client.suspend(job).shown} suspended")


def resume(
    jobs: options.Names,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
) -> None:
    """Let suspended jobs, and jobs that a policy aborted, start again."""
    from tf_dist.client.client import Client

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    for job in _to_change(client, jobs):
        output.line(f"{client.resume(job).shown} resumed")


def _to_change(client: Client, names: list[str]) -> list[StoredJob]:
    """The jobs to change. Raises an error before any change if one of the jobs has finished."""
    from tf_dist.client.stored_jobs import refuse_finished

    found = _jobs(client, names)
    for job in found:
        refuse_finished(job)
    output.announce_target(client.connection, client.namespace)
    return found


def delete(
    jobs: options.Names,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the last pod is deleted.")] = False,
    timeout: options.Timeout = "",
    ignore_missing: Annotated[
        bool, typer.Option("--ignore-not-found", help="No error if the job does not exist.")
    ] = False,
) -> None:
    """Delete jobs with their pods and Services. Pods get their grace period."""
    from tf_dist.client.client import Client
    from tf_dist.client.wait import wait_for

    limit = options.parse_seconds(timeout)
    client = Client(kubeconfig, context, local=local, namespace=namespace)
    found = _jobs(client, jobs, missing_ok=ignore_missing)
    output.announce_target(client.connection, client.namespace)
    for job in found:
        client.delete(job, foreground=wait)
        if not wait:
            output.line(f"{job.shown} deleted")
    if wait:
        wait_for(client.cluster, found, "deleted", limit, output.line)
