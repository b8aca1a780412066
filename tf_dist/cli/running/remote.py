"""A run on a cluster: the job is there, its driver and whoever looks on are here."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from tf_dist.cli import output
from tf_dist.cli.running.order import Order
from tf_dist.cli.running.views import view_of
from tf_dist.client.connect import Connection
from tf_dist.client.following import opener
from tf_dist.client.inline import inline_driver
from tf_dist.client.session import Manner, Result, Session
from tf_dist.client.submitting import create_job
from tf_dist.client.telling import warnings_told
from tf_dist.cluster.api import LogOptions
from tf_dist.core.model import JobKey
from tf_dist.driver.signals import Signals
from tf_dist.errors import ClusterError

_FOLLOW: Final = LogOptions(follow=True)


def run(order: Order, connection: Connection, *, keep: bool) -> Result:
    """Run it to its end, and take the job away again unless ``keep``. ClusterError when the cluster does not let us."""
    cluster, entry, namespace = connection.cluster, order.entry, order.namespace
    output.announce(connection, namespace)
    manner = Manner(
        open_log=lambda _: opener(cluster, _FOLLOW),
        gives_up=False,
        keep=keep,
        second="once more to leave without waiting for them",
    )
    order.create_companions(cluster)
    key = JobKey(namespace, entry.job.key.name)
    with (
        Signals() as signals,
        closing(view_of(entry.job, data_wanted=order.data_wanted)) as view,
        warnings_told(view),
        inline_driver(connection, entry.job.dialect, key) as annotations,
    ):
        signals.listen(lambda _: connection.hurry())
        workdir = None if connection.here else ""
        job = create_job(cluster, entry, namespace, workdir=workdir, annotations=annotations)
        try:
            return Session(cluster, job, view, signals, manner, timeout=order.timeout).run()
        except ClusterError:
            output.warning(
                f"{job.shown} may still be in {connection.name}", f"tf-dist delete {job.shown} -n {namespace}"
            )
            raise
