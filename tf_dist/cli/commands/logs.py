"""``tf-dist logs``: the logs of all replicas of a job."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output
from tf_dist.client import exits

if TYPE_CHECKING:
    from tf_dist.cli.lines import Prefixes
    from tf_dist.client.following import Ended, LogLine
    from tf_dist.client.jobs import StoredJob
    from tf_dist.client.watching import Item
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
    from tf_dist.cli.arguments import seconds
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find
    from tf_dist.cluster.api import LogOptions

    wanted = LogOptions(
        follow=follow,
        tail=tail,
        since_seconds=seconds(since, "--since"),
        timestamps=timestamps or not follow,
        previous=previous,
    )
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find(cluster, name, namespace)
    chosen = _chosen(job, replica or [])
    if follow:
        _follow(cluster, job, wanted, chosen)
    else:
        _print(cluster, job, wanted, chosen, timestamps=timestamps)


def _chosen(job: StoredJob, wanted: list[str]) -> frozenset[str]:
    """The names of the replicas to show; InvalidJob for one that the job does not have."""
    import difflib

    from tf_dist.core.sizes import largest
    from tf_dist.errors import InvalidJob, Problem

    # Whoever follows wants to see those, too, that come when it grows.
    replicas = [str(replica) for replica in largest(job.job).replicas]
    types = [spec.type for spec in job.job.replica_specs]
    for word in wanted:
        if word not in replicas and word not in types:
            near = difflib.get_close_matches(word, [*replicas, *types], n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(replicas[:10])}"
            raise InvalidJob([Problem("--replica", f"{job.shown} has no replica {word!r}", hint)])
    found = (one for one in replicas if not wanted or one in wanted or one.rpartition("-")[0] in wanted)
    return frozenset(found)


def _wanted(pod: Object, chosen: frozenset[str]) -> bool:
    from tf_dist.client.following import replica_of

    return str(replica_of(pod)) in chosen


def _print(cluster: Cluster, job: StoredJob, wanted: LogOptions, chosen: frozenset[str], *, timestamps: bool) -> None:
    """What there is, in the order in which it was written."""
    from tf_dist.cli.lines import Prefixes
    from tf_dist.client.following import Following, LogLine, opener
    from tf_dist.client.jobs import pods_of

    found: queue.SimpleQueue[LogLine | Ended] = queue.SimpleQueue()
    following = Following(job.job, opener(cluster, wanted), found.put)
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
    prefixes = Prefixes(job.job)
    for line in sorted(lines, key=lambda line: line.text.partition(" ")[0]):
        text = line.text if timestamps else line.text.partition(" ")[2]
        output.line(prefixes.line(line.source, text))
    for text in (*problems, *(f"{pod} has not started yet" for pod in silent)):
        output.note(text)
    if not following.count:
        _nothing(job)


def _nothing(job: StoredJob) -> None:
    output.note(f"no container of {job.shown} has a log; tf-dist explain {job.shown} says how it stands")
    raise typer.Exit(exits.RETRYABLE)


def _follow(cluster: Cluster, job: StoredJob, wanted: LogOptions, chosen: frozenset[str]) -> None:
    """Lines as they come, of restarted replicas too, until the job has finished and every line is read."""
    from tf_dist.cli.lines import Prefixes
    from tf_dist.client.following import Following, opener
    from tf_dist.client.jobs import pods_of
    from tf_dist.client.watching import JobWatch, Listed, pods_in
    from tf_dist.cluster.api import PODS

    prefixes = Prefixes(job.job)
    with JobWatch(cluster, job) as watch:
        following = Following(job.job, opener(cluster, wanted), watch.put)
        while True:
            over = watch.over and not following.pending(watch.ended)
            batch = watch.take(0 if over else None)
            _write(batch, prefixes)
            pods = list(pods_in(batch))
            if over and not batch:
                # Job and pods are watched apart: the job's end may be known before that of its pods.
                pods = pods_of(cluster, job)
                watch.learn(Listed(PODS, pods))
            news = [following.notice(pod) for pod in pods if _wanted(pod, chosen)]
            if over and not batch and not any(news) and not following.pending(watch.ended):
                break
        following.close()


def _write(batch: list[Item], prefixes: Prefixes) -> None:
    from tf_dist.client.following import Ended, LogLine

    for item in batch:
        if isinstance(item, LogLine):
            output.line(prefixes.line(item.source, item.text))
        elif isinstance(item, Ended) and item.problem:
            output.note(item.problem)
    output.flush()
