"""``tf-dist logs``: the logs of all replicas of a job."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output
from tf_dist.client import exit_codes

if TYPE_CHECKING:
    from tf_dist.cli.job_output import LinePrefixes
    from tf_dist.client.log_follower import LogEnded, LogLine
    from tf_dist.client.monitor import JobEvent
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.cluster.api import Cluster, LogOptions, Object


def logs(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has finished.")] = False,
    replica: Annotated[
        list[str] | None, typer.Option("--replica", "-r", metavar="REPLICA", help="Only this one: worker-1, or ps.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only so many last lines of each.")] = None,
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only lines of the last 5m, 1h.")] = "",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="With the time of each line.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the containers before the last restart.")
    ] = False,
    plain: options.Plain = False,
) -> None:
    """Print the logs of all replicas together, each line with the name of the replica that wrote it."""
    from tf_dist.cli.options import parse_seconds
    from tf_dist.client.connection import connect
    from tf_dist.client.stored_jobs import find_job
    from tf_dist.cluster.api import LogOptions

    wanted = LogOptions(
        follow=follow,
        tail=tail,
        since_seconds=parse_seconds(since, "--since"),
        timestamps=timestamps or not follow,
        previous=previous,
    )
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find_job(cluster, name, namespace)
    chosen = _chosen(job, replica or [])
    if follow:
        _follow(cluster, job, wanted, chosen)
    else:
        _print(cluster, job, wanted, chosen, timestamps=timestamps)


def _chosen(job: StoredJob, wanted: list[str]) -> frozenset[str]:
    """The names of the replicas to show; InvalidJob for one that the job does not have."""
    from tf_dist.core.api.assignment import largest_job
    from tf_dist.core.api.fieldpath import suggestion
    from tf_dist.errors import InvalidJob, Problem

    # With --follow, those are wanted, too, that come when it grows.
    replicas = [str(replica) for replica in largest_job(job.job).replicas]
    types = [spec.type for spec in job.job.replica_specs]
    for word in wanted:
        if word not in replicas and word not in types:
            hint = suggestion(word, [*replicas, *types], f"there are {', '.join(replicas[:10])}")
            raise InvalidJob([Problem("--replica", f"{job.shown} has no replica {word!r}", hint)])
    found = (one for one in replicas if not wanted or one in wanted or one.rpartition("-")[0] in wanted)
    return frozenset(found)


def _wanted(pod: Object, chosen: frozenset[str]) -> bool:
    from tf_dist.client.log_follower import replica_of

    return str(replica_of(pod)) in chosen


def _print(cluster: Cluster, job: StoredJob, wanted: LogOptions, chosen: frozenset[str], *, timestamps: bool) -> None:
    """What there is, in the order in which it was written."""
    from tf_dist.cli.job_output import LinePrefixes
    from tf_dist.client.log_follower import LogFollower, LogLine, log_opener
    from tf_dist.client.stored_jobs import pods_of

    found: queue.SimpleQueue[LogLine | LogEnded] = queue.SimpleQueue()
    following = LogFollower(job.job, log_opener(cluster, wanted), found.put)
    silent = []
    for pod in pods_of(cluster, job):
        if _wanted(pod, chosen) and not following.notice(pod):
            silent.append(pod["metadata"]["name"])
    lines: list[LogLine] = []
    problems: list[str] = []
    for _ in range(following.count):
        while isinstance(item := found.get(), LogLine):
            lines.append(item)
        problems += [item.problem] if item.problem else []
    prefixes = LinePrefixes(job.job)
    for line in sorted(lines, key=lambda line: line.text.partition(" ")[0]):
        text = line.text if timestamps else line.text.partition(" ")[2]
        output.line(prefixes.line(line.source, text))
    for text in (*problems, *(f"{pod} has not started yet" for pod in silent)):
        output.note(text)
    if not following.count:
        _nothing(job)


def _nothing(job: StoredJob) -> None:
    output.note(f"no container of {job.shown} has a log; tf-dist explain {job.shown} says how it stands")
    raise typer.Exit(exit_codes.RETRYABLE)


def _follow(cluster: Cluster, job: StoredJob, wanted: LogOptions, chosen: frozenset[str]) -> None:
    """Lines as they come, of restarted replicas too, until the job has finished and every line is read."""
    from tf_dist.cli.job_output import LinePrefixes
    from tf_dist.client.log_follower import LogFollower, log_opener
    from tf_dist.client.monitor import ObjectsListed, WatchingJobInformer, changed_pods
    from tf_dist.client.stored_jobs import pods_of
    from tf_dist.cluster.api import PODS

    prefixes = LinePrefixes(job.job)
    with WatchingJobInformer(cluster, job) as watch:
        following = LogFollower(job.job, log_opener(cluster, wanted), watch.put)
        while True:
            over = watch.over and not following.pending(watch.ended)
            batch = watch.take(0 if over else None)
            _write(batch, prefixes)
            pods = list(changed_pods(batch))
            if over and not batch:
                # Job and pods are watched apart: the job's end may be known before that of its pods.
                pods = pods_of(cluster, job)
                watch.learn(ObjectsListed(PODS, pods))
            news = [following.notice(pod) for pod in pods if _wanted(pod, chosen)]
            if over and not batch and not any(news) and not following.pending(watch.ended):
                break
        following.close()


def _write(batch: list[JobEvent], prefixes: LinePrefixes) -> None:
    from tf_dist.client.log_follower import LogEnded, LogLine

    for item in batch:
        if isinstance(item, LogLine):
            output.line(prefixes.line(item.source, item.text))
        elif isinstance(item, LogEnded) and item.problem:
            output.note(item.problem)
    output.flush()
