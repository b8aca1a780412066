"""A run on this machine: a whole cluster in this process, started for one job and ended with it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tf_dist.cli.running.order import Order
from tf_dist.cli.running.preflight import check
from tf_dist.cli.running.views import view_of
from tf_dist.client.following import Instance, Opener
from tf_dist.client.session import Manner, Result, Session
from tf_dist.client.submitting import create_job
from tf_dist.client.telling import warnings_told
from tf_dist.client.watching import JobWatch
from tf_dist.cluster.api import NAMESPACES, Cluster, LogOptions, Object, Stream
from tf_dist.cluster.node.logs import LogStream
from tf_dist.driver.embedded import EmbeddedCluster, EmbeddedSettings
from tf_dist.driver.signals import Signals
from tf_dist.errors import AlreadyExists


def run(order: Order, settings: EmbeddedSettings) -> Result:
    """Run it to its end; InvalidFiles when this machine cannot."""
    with Signals() as signals, EmbeddedCluster(settings) as embedded:
        check(order.entry, order.companions, settings, embedded.network)
        cluster = embedded.cluster
        for written in (order.entry.written, *order.companions):
            _make_namespace(cluster, order.spaces.of(written))
        order.create_companions(cluster)
        logs = embedded.node.state_dir / (settings.keep_logs_dir or "")
        manner = Manner(open_log=lambda watch: _from_files(logs, watch))
        with closing(view_of(order.entry.job, data_wanted=order.data_wanted)) as view, warnings_told(view):
            job = create_job(cluster, order.entry, order.namespace, workdir="")
            return Session(cluster, job, view, signals, manner, timeout=order.timeout).run()


def _make_namespace(cluster: Cluster, name: str) -> None:
    try:
        cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    except AlreadyExists:
        return


def _from_files(logs: Path, watch: JobWatch) -> Opener:
    """Logs from their files: a pod may be gone before one has asked for its log, the file stays."""

    def open_log(pod: Object, instance: Instance) -> Stream[bytes]:
        metadata = pod["metadata"]
        folder = logs / metadata["namespace"] / metadata["name"] / instance.pod_uid / instance.container
        file = folder / f"{instance.number}.log"
        return LogStream(file, LogOptions(follow=True), lambda: not watch.ended(instance))

    return open_log
