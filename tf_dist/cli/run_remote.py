"""``tf-dist run`` on a cluster: the job is there, its driver and monitor are here."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from tf_dist.cli import output
from tf_dist.cli.run_output import view_of
from tf_dist.client.connection import Connection
from tf_dist.client.inline_driver import inline_driver
from tf_dist.client.log_follower import log_opener
from tf_dist.client.progress_lines import show_warnings
from tf_dist.client.run_session import RunOptions, RunRequest, RunResult, RunSession
from tf_dist.client.submission import create_job
from tf_dist.cluster.api import LogOptions
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.api.job import JobKey
from tf_dist.core.dialects.kubeflow_extensions.accelerators import Accelerators
from tf_dist.errors import ClusterError

_FOLLOW: Final = LogOptions(follow=True)


def run_remotely(
    request: RunRequest, connection: Connection, *, keep: bool, accelerators: Accelerators | None = None
) -> RunResult:
    """Run it to its end, and take the job away again unless ``keep``. ClusterError when the cluster does not let us."""
    cluster, entry, namespace = connection.cluster, request.entry, request.namespace
    output.announce_target(connection, namespace)
    run_options = RunOptions(
        open_log=lambda _: log_opener(cluster, _FOLLOW),
        gives_up=False,
        keep=keep,
        second="once more to leave without waiting for them",
    )
    request.create_companions(cluster)
    key = JobKey(namespace, entry.job.key.name)
    with (
        Signals() as signals,
        closing(view_of(entry.job, data_wanted=request.data_wanted)) as view,
        show_warnings(view),
        inline_driver(connection, entry.job.dialect, key, accelerators=accelerators) as annotations,
    ):
        signals.listen(lambda _: connection.hurry())
        workdir = None if connection.here else ""
        job = create_job(cluster, entry, namespace, workdir=workdir, annotations=annotations)
        try:
            return RunSession(cluster, job, view, signals, run_options, timeout=request.timeout).run()
        except ClusterError:
            output.warning(
                f"{job.shown} may still be in {connection.name}", f"tf-dist delete {job.shown} -n {namespace}"
            )
            raise
