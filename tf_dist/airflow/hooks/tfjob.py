"""The hook: a cluster, as an Airflow connection names it, and what one does with jobs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.task_options import DEFAULT_CONNECTION
from tf_dist.airflow.version_compat import AirflowNotFoundException, BaseHook, conf

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.client.client import Client, JobReference
    from tf_dist.client.connection import Connection
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.client.tfjob import TFJob
    from tf_dist.cluster.api import Cluster, Object


def make_shared_informer(access: ClusterArguments, namespace: str, extras: Mapping[str, Any]) -> SharedJobInformer:
    """A shared informer with its own connection; ClusterError when there is none."""
    from tf_dist.airflow.informers.job_informer import SharedJobInformer

    streams = conf.getint("tf_dist", "log_streams", fallback=128)
    return SharedJobInformer(open_connection(access, extras), namespace, streams=streams)


def job_summary(job: StoredJob) -> dict[str, Any]:
    """What a task returns of a job that it did not run."""
    return {"name": job.name, "namespace": job.namespace, "uid": job.uid, "status": job.state}


class TFJobHook(BaseHook):
    """Jobs of one cluster.

    :param kubernetes_conn_id: a connection of type ``kubernetes``; the default one need not exist.
    :param in_cluster: whether to use the cluster that this process is a pod of.
    :param config_file: a kubeconfig, instead of the connection's.
    :param cluster_context: a context of it, instead of the current one.

    Nothing is asked of the cluster until something is needed. ``close`` it when done.
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "kubernetes"
    hook_name = "TensorFlow jobs"

    def __init__(
        self,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        *,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.access = ClusterArguments(
            kubernetes_conn_id=kubernetes_conn_id,
            in_cluster=in_cluster,
            config_file=config_file,
            cluster_context=cluster_context,
        )

    @classmethod
    def of(cls, access: ClusterArguments) -> TFJobHook:
        """The hook of these arguments."""
        return cls(**access.fields())

    def get_conn(self) -> Connection:
        """The cluster, and its usual namespace; ClusterError with a hint when there is none."""
        return self.connection

    def close(self) -> None:
        """Close what was opened; it may be used again."""
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    @cached_property
    def connection(self) -> Connection:
        """The same, opened once."""
        return open_connection(self.access, self._extras())

    @property
    def cluster(self) -> Cluster:
        """Its nine verbs."""
        return self.connection.cluster

    def get_namespace(self) -> str:
        """Where jobs are that say nothing else; never empty."""
        return self.connection.namespace

    def client(self, namespace: str | None = None) -> Client:
        """What tf-dist does with jobs there, as in Python: submit, wait, scale, suspend, resume, …"""
        from tf_dist.client.client import Client

        return Client(connection=self.connection, namespace=namespace or "")

    def get_job(self, job: JobReference, namespace: str | None = None) -> StoredJob:
        """A job by NAME, ``tfjob/NAME`` or ``vcjob/NAME``, or one that was got before as it is now; NotFound."""
        return self.client(namespace).get(job)

    def get_pods(self, job: StoredJob) -> list[Object]:
        """The pods of a job."""
        return self.client().pods(job)

    def submit(self, job: TFJob, namespace: str | None = None) -> StoredJob:
        """Submit a job under its own name, for a controller that leads; AlreadyExists, InvalidJob."""
        return self.client().submit(job, namespace=namespace or "")

    def wait(
        self,
        job: JobReference,
        until: str = "finished",
        *,
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> StoredJob:
        """The job once it is ``until``; see ``Client.wait``. It blocks: ``TFJobSensor`` can wait in the triggerer."""
        return self.client(namespace).wait(job, until, timeout=timeout)

    def suspend(self, job: JobReference, namespace: str | None = None) -> StoredJob:
        """End its pods and give up its admission; InvalidJob if it is over."""
        return self.client(namespace).suspend(job)

    def resume(self, job: JobReference, namespace: str | None = None) -> StoredJob:
        """Let a suspended or aborted job start again; InvalidJob if it is over."""
        return self.client(namespace).resume(job)

    def scale(self, job: JobReference, workers: int, namespace: str | None = None) -> StoredJob:
        """Give it another number of workers; the same object if it has that many. InvalidJob."""
        return self.client(namespace).scale(job, workers)

    def delete(
        self,
        job: JobReference,
        namespace: str | None = None,
        *,
        wait: bool = False,
        timeout: float | None = None,
        missing_ok: bool = False,
    ) -> None:
        """Delete a job and what belongs to it; see ``Client.delete``. NotFound, unless ``missing_ok``."""
        self.client(namespace).delete(job, wait=wait, timeout=timeout, missing_ok=missing_ok)

    @contextmanager
    def informer(self, namespace: str) -> Iterator[SharedJobInformer]:
        """The informer that all tasks of this process share for that namespace. Blocks: keep it off an event loop."""
        key = (self.access, namespace)
        informer = SHARED_INFORMERS.enter(key, lambda: make_shared_informer(self.access, namespace, self._extras()))
        try:
            yield informer
        finally:
            SHARED_INFORMERS.leave(key)

    def _extras(self) -> Mapping[str, Any]:
        """What the connection says besides; nothing if it is the default one and is not there."""
        name = self.access.kubernetes_conn_id
        if not name:
            return {}
        try:
            return dict(self.get_connection(name).extra_dejson)
        except AirflowNotFoundException:
            if name != DEFAULT_CONNECTION:
                raise
            return {}
